"""GRPO (arXiv 2402.03300) on ALFWorld: the baseline of SkillMaster, with neither skills nor reviews.

    python -m experiments.main --config=configs/grpo_alfworld.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/grpo_alfworld.py:smoke     # every stage once, about a minute
    python -m experiments.main --config=configs/grpo_alfworld.py:smollm2   # SmolLM2-135M, a night on a CPU
    python -m experiments.main --config=configs/grpo_alfworld.py:paper --mode=check

paper reproduces the GRPO row of SkillMaster's main table (arXiv 2605.08693): 77.6 % success over all families with
Qwen2.5-7B-Instruct, 8 tasks x 8 rollouts a step, 300 steps; it needs accelerators.
Model, games, cold start, rollouts a round, prices of act turns and optimizer are those of skillmaster_alfworld.py at
the same scale. SkillMaster also plays probe episodes (utility/probe_run in its metrics), so local has more rounds here:
about as many episodes in all. At other scales raise `rounds` by their share.
"""

from configs.alfworld_common import SCALES, make_config

OWN = dict(method="grpo", retrieval="none", mutate="never", utility=False)
LOCAL = OWN | dict(rounds=29)


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    return make_config(arg, "grpo_alfworld", dict.fromkeys(SCALES, OWN) | {"local": LOCAL})
