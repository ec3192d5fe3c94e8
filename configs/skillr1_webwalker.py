"""Skill-R1 on WebWalkerQA (arXiv 2605.09359; its table: 2.0 % without skills, 19.0 % inference only, 26.0 % trained).

Local scale: the small editor of assets/editor writes skills of four steps for a program that follows them on generated
English websites (twin): it shows the mechanism and does not stand for the paper's numbers. The table's row without
skills is the task LLM alone; "before" with skills is the editor untrained (inference only), "after" is trained.
Over three seeds 17 % without skills, 48 inference only, 58 vanilla, 69 trained; 2 to 12 minutes on 2 CPU cores.

    python -m experiments.main --config=configs/skillr1_webwalker.py:smoke
    python -m experiments.main --config=configs/skillr1_webwalker.py
    python -m experiments.main --config=configs/skillr1_webwalker.py:local,generation_mode=literal,siblings=1
    python -m experiments.main --config=configs/skillr1_webwalker.py:local,generations=1          # vanilla GRPO editor
    python -m experiments.main --config=configs/skillr1_webwalker.py:paper --mode=check

The paper's scale needs $WEBWALKER_DATA, the live web, Qwen3-4B, a key for the task LLM, and
accelerators: its update is that of configs/skillr1_gaia.py.
"""

from configs import skillr1_common


def get_config(arg: str | None = None):
    """Returns the config of a scale."""
    own = dict(benchmark="webwalker", sites_languages=("en",), sites_past=0.5, sites_train=30, sites_test=20)
    if (arg or "").startswith("paper"):
        own |= dict(task_judge=True)
    return skillr1_common.make_config(arg, "skillr1_webwalker", ("local", "smoke", "paper"), own)
