"""Skill-R1 on GAIA (arXiv 2605.09359; its table: 6.1 % without skills, 30.9 % inference only, 41.8 % trained).

Local scale: the small editor of assets/editor writes skills of four steps for a program that follows them in generated
worlds of files and pages (twin): it shows the mechanism and does not stand for the paper's numbers. In half of the
worlds pages are found by the search alone, in the others the search knows last year's copies alone.
Over three seeds 11 % without skills, 55 inference only, 70 vanilla, 78 trained; 2 to 5 minutes on 2 CPU cores.

    python -m experiments.main --config=configs/skillr1_gaia.py:smoke
    python -m experiments.main --config=configs/skillr1_gaia.py
    python -m experiments.main --config=configs/skillr1_gaia.py:local,generations=1          # vanilla GRPO editor
    python -m experiments.main --config=configs/skillr1_gaia.py:paper --mode=check

The paper's scale needs $GAIA_DATA (your own copy: it may not be passed on), a search API for most questions, Qwen3-4B,
a key for the task LLM, and accelerators: its update fits 16 chips of v5e (13.7 of 15.75 GiB each, docs/scale.md).
On the generated twin, with any model behind any endpoint:

    python -m experiments.main --config=configs/skillr1_gaia.py:paper,source=generated \
        --config.task_url=http://127.0.0.1:30000/v1 --config.task_model=NAME --config.task_key_env=
"""

from configs import skillr1_common


def get_config(arg: str | None = None):
    """Returns the config of a scale."""
    own = dict(benchmark="gaia")
    if not (arg or "").startswith("paper"):
        own |= dict(worlds_layouts=("numbered", "stale"), worlds_train=20, worlds_test=12, gaia_python=False)
    return skillr1_common.make_config(arg, "skillr1_gaia", ("local", "smoke", "paper"), own)
