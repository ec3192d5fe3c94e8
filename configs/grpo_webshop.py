"""GRPO (arXiv 2402.03300) on WebShop: the baseline of SkillMaster, with neither skills nor reviews.

    python -m experiments.main --config=configs/grpo_webshop.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/grpo_webshop.py:smoke     # every stage once, about a minute
    python -m experiments.main --config=configs/grpo_webshop.py:smollm2   # SmolLM2-135M, a night on a CPU
    python -m experiments.main --config=configs/grpo_webshop.py:paper --mode=check

paper reproduces the GRPO row of SkillMaster's main table (arXiv 2605.08693): score 79.3, success 66.1 % on goals 0-499
of the official 1,000 products with Qwen2.5-7B-Instruct, 8 tasks x 8 rollouts a step, 300 steps; it needs $WEBSHOP_DATA
and accelerators. Everything but skills and reviews is as in skillmaster_webshop.py at the same scale. SkillMaster plays
probe episodes, too (utility/probe_run in its metrics), so local has a round more here: about as many episodes in all.
"""

from configs.webshop_common import SCALES, make_config

OWN = dict(method="grpo", retrieval="none", mutate="never", utility=False)
LOCAL = OWN | dict(rounds=11)


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    return make_config(arg, "grpo_webshop", dict.fromkeys(SCALES, OWN) | {"local": LOCAL})
