"""Skill-R1 on GAIA (arXiv 2605.09359; its table: 6.1 % without skills, 30.9 % inference only, 41.8 % trained).

There is one scale. It needs $GAIA_DATA (your own copy: it may not be passed on), a search API for most questions,
Qwen3-4B, and a key for the task LLM. On the generated twin, with any model behind any endpoint:

    python -m experiments.main --config=configs/skillr1_gaia.py:paper --mode=check
    python -m experiments.main --config=configs/skillr1_gaia.py:paper,source=generated \
        --config.task_url=http://127.0.0.1:30000/v1 --config.task_model=NAME --config.task_key_env=
"""

from configs import skillr1_common


def get_config(arg: str | None = None):
    """Returns the config of a scale."""
    return skillr1_common.make_config(arg, "skillr1_gaia", ("paper",), dict(benchmark="gaia"))
