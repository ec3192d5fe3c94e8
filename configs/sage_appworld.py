"""SAGE (arXiv 2512.17102) on AppWorld: chains of two tasks, functions kept from one to the next, and paid for.

    python -m experiments.main --config=configs/sage_appworld.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/sage_appworld.py:smoke     # every stage once
    python -m experiments.main --config=configs/sage_appworld.py:paper --mode=check

local is a twin: our generated tasks in plain Python (`appworld_lite`) and a model of a million parameters that was
pre-trained on a sloppy programmer's traces. It first trains GRPO without a library from the same start (`baseline`), so
that one table has all: the SFT start, GRPO, SAGE, the last with and without its library. On the real engine with the
same tasks: :local,benchmark=appworld (third_party/appworld/install.sh first).
paper reproduces the paper's main row: TGC 72.0 %, SGC 60.7 % on test_normal and 50.1 %, 32.4 % on test_challenge with
Qwen2.5-32B-Instruct, 384 rollouts a step, 75 steps on 32 devices; its update fits 32 chips of v5p
(51.8 of 95.7 GiB each, docs/scale.md). It needs the 750 official tasks ($APPWORLD_ROOT) and
expert conversations (experiments/collect_experts.py) in `sft_data`.
"""

from configs.appworld_common import make_config

OWN = dict(method="sage", chain_length=2, chain_by="scenario")
LOCAL = OWN | dict(tasks_per_round=6, baseline=True)
SMOKE = OWN | dict(tasks_per_round=2, baseline=True)
PAPER = OWN | dict(tasks_per_round=24, sft_data="data/appworld_experts.jsonl")  # 24 chains x 2 tasks x 8 rollouts


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    return make_config(arg, "sage_appworld", {"local": LOCAL, "smoke": SMOKE, "paper": PAPER})
