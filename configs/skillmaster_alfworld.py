"""SkillMaster (arXiv 2605.08693) on ALFWorld: act, review with one skill edit, pay the edit by its probes.

    python -m experiments.main --config=configs/skillmaster_alfworld.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/skillmaster_alfworld.py:smoke     # every stage once, about a minute
    python -m experiments.main --config=configs/skillmaster_alfworld.py:smollm2   # SmolLM2-135M, a night on a CPU
    python -m experiments.main --config=configs/skillmaster_alfworld.py:paper --mode=check

paper reproduces the ALFWorld column of the paper's main table: 98.7 % success over all families (GRPO: 77.6 %) with
Qwen2.5-7B-Instruct, 8 tasks x 8 rollouts a step, 300 steps; it needs an SFT start and accelerators: its update
fits 32 chips of v5e (10.7 of 15.75 GiB each, docs/scale.md).
local is a twin: generated games (rooms of at most 12 receptacles, 10 steps, a world with habits) and a model of 0.9M
parameters; a skill is about one kind of object, and is shown and probed where that object is looked for.
"""

from configs.alfworld_common import SCALES, make_config

LOCAL = dict(
    method="skillmaster",
    retrieval="condition",
    probes=2,
    probe_topic=True,
    gamma=1.0,  # at the paper's 0.2 twenty rounds teach the review turn nothing: docs/results.md
)
SMOKE = LOCAL | dict(probes=1)
SMOLLM2 = LOCAL | dict(probes=1)
PAPER = dict(
    method="skillmaster",
    review_tokens=512,
    retrieval_top_k=13,
    mutate="never",  # as released: training edits are dry runs
    probes=4,
    sign_weight=0.3,
    gamma=0.2,
)


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    return make_config(arg, "skillmaster_alfworld", dict(zip(SCALES, (LOCAL, SMOKE, SMOLLM2, PAPER), strict=True)))
