"""SkillMaster (arXiv 2605.08693) on WebShop: act, review with one skill edit, pay the edit by its probes.

    python -m experiments.main --config=configs/skillmaster_webshop.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/skillmaster_webshop.py:smoke     # every stage once, about a minute
    python -m experiments.main --config=configs/skillmaster_webshop.py:smollm2   # SmolLM2-135M, a night on a CPU
    python -m experiments.main --config=configs/skillmaster_webshop.py:paper --mode=check

paper reproduces the WebShop columns of the paper's main table: score 95.0, success 82.0 % (GRPO: 79.3, 66.1 %) on goals
0-499 of the official 1,000 products with Qwen2.5-7B-Instruct, 8 tasks x 8 rollouts a step, 300 steps; it needs
$WEBSHOP_DATA, an SFT start and accelerators.
local is a twin: a generated catalogue of 2,000 products with 5 results a page, and a model of 0.9M parameters.
"""

from configs.webshop_common import SCALES, make_config

# What to search with is no matter of departments: a skill is shown in all of them. Skills that are shown together are
# measured together, so a round adds the best edit alone (docs/results.md).
LOCAL = dict(method="skillmaster", retrieval="all", accept="best", probes=2, gamma=1.0)
SMOKE = LOCAL | dict(probes=1)
SMOLLM2 = LOCAL | dict(probes=1)
PAPER = dict(
    method="skillmaster",
    review_tokens=768,
    mutate="never",  # as released: training edits are dry runs
    probes=4,
    sign_weight=0.3,
    gamma=0.2,
)


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    return make_config(arg, "skillmaster_webshop", dict(zip(SCALES, (LOCAL, SMOKE, SMOLLM2, PAPER), strict=True)))
