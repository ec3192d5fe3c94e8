"""Every method on every environment: a cell is named by `method` and `env`.

    python -m experiments.main --config=configs/matrix.py:method=sage,env=alfworld            # local, a twin
    python -m experiments.main --config=configs/matrix.py:smoke,method=skillr1,env=webshop    # every stage, quickly
    python -m experiments.main --config=configs/matrix.py:method=grpo,env=gaia,rounds=5       # other keys behind them

Methods: grpo, skillmaster (arXiv 2605.08693), sage (2512.17102), skillr1 (2605.09359). Environments: alfworld, webshop,
appworld, webwalker, gaia; appworld is AppWorld lite at these scales (benchmark=appworld takes the engine). Cells that
a paper has are the paper's config at that scale; its `:paper` scale is in the config of its own name.
What the others need to exist at all:

- sage where no code is run: skills are texts. After each task of a chain the agent reviews it with one edit, and the
  next task of the chain (of its family: ALFWorld's six, WebShop's departments, GAIA's levels, WebWalker's kinds) is
  shown them.
- skillr1 where tasks are no questions with tools: a frozen copy of the base model plays the episodes under the skill
  (`task_llm=policy`), and the editor is the same base model, trained. Also on GAIA, which has no follower.
- skillmaster on appworld: the bank's texts stand above the task, beside no programs; the review follows the last turn
  of code. skillr1 there: the frozen policy writes the code.
- grpo, skillmaster and sage on webwalker and gaia: the policy calls the tools itself, as actions `visit_page[Courses]`.
  No small base model was trained to read pages, so these cells show that the parts fit; there is nothing to expect of
  their success (0 %) until `model` names one that can read.
"""

from typing import Any

from configs import (
    alfworld_common,
    appworld_common,
    grpo_alfworld,
    grpo_appworld,
    grpo_webshop,
    sage_appworld,
    skillmaster_alfworld,
    skillmaster_webshop,
    skillr1_webwalker,
    webshop_common,
)
from sage_jax import config
from sage_jax.errors import ConfigError
from sage_jax.settings import RunSettings

SCALES = ("local", "smoke")
# Pages of a few hundred words, for a context that holds some of them.
_QUESTIONS: dict[str, Any] = dict(
    source="generated", eval_splits=("test",), sft_episodes=0, max_steps=6, max_length=2048, row_length=2048
)
_WEBWALKER = _QUESTIONS | dict(benchmark="webwalker", sites_languages=("en",), sites_page_chars=800)
_GAIA = _QUESTIONS | dict(benchmark="gaia", gaia_python=False)
_FEW = dict(eval_episodes=4)
ENVIRONMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "alfworld": {"local": alfworld_common.LOCAL, "smoke": alfworld_common.SMOKE},
    "webshop": {"local": webshop_common.LOCAL, "smoke": webshop_common.SMOKE},
    "appworld": {"local": appworld_common.LOCAL, "smoke": appworld_common.SMOKE},
    "webwalker": {
        "local": alfworld_common.LOCAL | _WEBWALKER | dict(sites_train=30, sites_test=10),
        "smoke": alfworld_common.SMOKE | _WEBWALKER | _FEW | dict(sites_train=2, sites_test=1),
    },
    "gaia": {
        "local": alfworld_common.LOCAL | _GAIA | dict(worlds_train=30, worlds_test=6),
        "smoke": alfworld_common.SMOKE | _GAIA | _FEW | dict(worlds_train=2, worlds_test=1),
    },
}
_SKILLMASTER = dict(method="skillmaster", retrieval="template", mutate="train", utility=True)
_SAGE = dict(
    method="sage",
    skill_form="texts",
    chain_by="family",
    advantage="mean",
    aggregation="sequence_mean",
    gamma=1.0,  # a review's tokens are tokens of its task
    retrieval="template",
    mutate="never",
    utility=False,
    dual_clip=0.0,
    kl_coef=0.0,
)
_SKILLR1 = dict(
    method="skillr1",
    aggregation="sequence_mean",
    ratio_level="sequence",
    dual_clip=0.0,
    entropy_coef=0.0,
    sft_episodes=0,
    task_llm="policy",
    task_reply_tokens=40,
    skill_format="body",
    skill_tokens=24,
    history_tokens=256,
    generations=3,
    siblings=4,
    skill_rollouts=4,
)
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": dict.fromkeys(SCALES, dict(method="grpo", retrieval="none", mutate="never", utility=False)),
    "skillmaster": {"local": _SKILLMASTER | dict(probes=2), "smoke": _SKILLMASTER | dict(probes=1)},
    "sage": dict.fromkeys(SCALES, _SAGE),
    "skillr1": {
        "local": _SKILLR1 | dict(tasks_per_round=6, rounds=12),
        "smoke": _SKILLR1 | dict(generations=2, siblings=2, skill_rollouts=2, tasks_per_round=2),
    },
}
# Cells with a config of their own.
PAPERS = {
    ("grpo", "alfworld"): grpo_alfworld,
    ("grpo", "webshop"): grpo_webshop,
    ("grpo", "appworld"): grpo_appworld,
    ("sage", "appworld"): sage_appworld,
    ("skillmaster", "alfworld"): skillmaster_alfworld,
    ("skillmaster", "webshop"): skillmaster_webshop,
    ("skillr1", "webwalker"): skillr1_webwalker,
}


def get_config(arg: str | None = None):
    """Returns the config of a cell, with typed overrides: "smoke,method=sage,env=webshop,seed=3".

    Raises:
      ConfigError: `method` or `env` is none of those above.
    """
    scale, values = config.parse_arg(arg, scales=SCALES, settings=RunSettings, env=str)
    method, env = values.pop("method", "grpo"), values.pop("env", "alfworld")
    for key, value, known in (("method", method, METHODS), ("env", env, ENVIRONMENTS)):
        if value not in known:
            raise ConfigError(f"{key}={value!r}: expected one of {', '.join(known)}.{config.closest(value, known)}")
    name = f"{method}_{env}" if scale == "local" else f"{method}_{env}_{scale}"
    named = dict(name=name, run_dir=f"runs/matrix/{name}", scale=scale)
    if (method, env) in PAPERS:
        shared = dict(PAPERS[method, env].get_config(scale))
    else:
        shared = ENVIRONMENTS[env][scale] | METHODS[method][scale]
    return config.configure(RunSettings, shared | named | values)
