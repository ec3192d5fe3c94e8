"""GRPO (arXiv 2402.03300) on AppWorld: SAGE's baseline, single tasks and no library.

    python -m experiments.main --config=configs/grpo_appworld.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/grpo_appworld.py:smoke     # every stage once
    python -m experiments.main --config=configs/grpo_appworld.py:paper --mode=check

Twice the tasks of a SAGE round, which plays two a chain: as many episodes. paper reproduces the row "GRPO, no library"
of the paper (arXiv 2512.17102): TGC 69.2 %, SGC 51.8 %, 16.4 steps, 3613 tokens on test_normal, without a cold start.
"""

from configs.appworld_common import make_config

OWN = dict(method="grpo")


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    own = {scale: OWN | dict(tasks_per_round=count) for scale, count in (("local", 12), ("smoke", 4), ("paper", 48))}
    return make_config(arg, "grpo_appworld", own)
