"""Collects expert conversations on AppWorld from an OpenAI-compatible endpoint, for SAGE's cold start.

    python -m experiments.collect_experts --url=http://localhost:8000/v1 --model=NAME --out=data/appworld_experts.jsonl

Every training scenario is tried until all its tasks are solved, --tries times at most; only those are kept. The same
command goes on where it stopped. configs/sage_appworld.py:paper trains on that file.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from absl import app, flags

from sage_jax.agents.llm_coder import LlmCoder
from sage_jax.benchmarks.appworld import Appworld, AppworldLite, AppworldSettings
from sage_jax.data.tasks import SOURCES, cache_folder
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import SageError
from sage_jax.methods.sage_experts import ExpertSet, collect
from sage_jax.metrics.progress import show_progress
from sage_jax.rollout.openai_llm import OpenAiLlm, OpenAiOptions
from sage_jax.rollout.task_llm import Budget
from sage_jax.training.evaluate_chains import scenario_chains

_URL = flags.DEFINE_string("url", "", "Base address of the endpoint, .../v1.", required=True)
_MODEL = flags.DEFINE_string("model", "", "Name of the model there.", required=True)
_KEY_ENV = flags.DEFINE_string("key_env", "", "Environment variable that holds its key; empty sends none.")
_BENCHMARK = flags.DEFINE_enum("benchmark", "appworld", ["appworld", "appworld_lite"], "Real engine, or plain Python.")
_SOURCE = flags.DEFINE_enum("source", "auto", SOURCES, "Tasks: official ($APPWORLD_ROOT) or generated.")
_SPLIT = flags.DEFINE_string("split", "train", "Split whose scenarios are tried; never one that is evaluated.")
_SCENARIOS = flags.DEFINE_integer("scenarios", 0, "Scenarios at most; 0 takes all.", lower_bound=0)
_OUT = flags.DEFINE_string("out", "data/appworld_experts.jsonl", "The set.")
_TRIES = flags.DEFINE_integer("tries", 4, "Attempts at a scenario.", lower_bound=1)
_STEPS = flags.DEFINE_integer("max_steps", 40, "Turns of an episode.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("max_tokens", 1500, "Tokens of a turn.", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.7, "Of the model.", lower_bound=0.0)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 8, "Scenarios at one time.", lower_bound=1)
_BUDGET = flags.DEFINE_integer("budget_tokens", 0, "Tokens in all; 0 is no limit.", lower_bound=0)
_SEED = flags.DEFINE_integer("seed", 0, "Tells attempts apart.")


def main(argv: list[str]) -> None:
    """Collects, and says how much there is."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    try:
        asyncio.run(_collect())
    except SageError as error:
        sys.exit(f"{type(error).__name__}: {error}")


async def _collect() -> None:
    kind = {"appworld": Appworld, "appworld_lite": AppworldLite}[_BENCHMARK.value]
    settings = AppworldSettings(app_servers=_CONCURRENCY.value)
    benchmark = kind(settings, source=_SOURCE.value, cache=cache_folder(""))
    tasks = benchmark.load((_SPLIT.value,), lambda done, total: None)[_SPLIT.value]
    chains = scenario_chains(tasks, 0)
    chains = chains[: _SCENARIOS.value] if _SCENARIOS.value else chains
    found = ExpertSet(pathlib.Path(_OUT.value), chains)
    options = OpenAiOptions(_URL.value, _MODEL.value, key_env=_KEY_ENV.value, concurrency=_CONCURRENCY.value)
    llm = OpenAiLlm(options, Budget(tokens=_BUDGET.value))
    try:
        with (
            EnvPool(benchmark.factory(), workers=1, timeout_s=180.0) as pool,
            show_progress("scenarios", len(chains)) as progress,
        ):
            coder = LlmCoder(llm, pool, max_steps=_STEPS.value, max_tokens=_TOKENS.value)
            await collect(
                coder, chains, found, tries=_TRIES.value, seed=_SEED.value, temperature=_TEMPERATURE.value,
                concurrency=_CONCURRENCY.value, done=lambda: progress.advance(),
            )  # fmt: skip
    finally:
        await llm.close()
    print(f"{_OUT.value} holds the conversations of {len(found.kept)} of {len(chains)} scenarios")


if __name__ == "__main__":
    app.run(main)
