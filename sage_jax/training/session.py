"""The parts of a run, built from its settings: tasks, model, engine, environments, player, optimizer, update."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import optax

from sage_jax.agents.episode import Player
from sage_jax.benchmarks import Benchmark
from sage_jax.benchmarks.base import TRAIN, Progress
from sage_jax.data.sft import text_encoder
from sage_jax.data.tasks import cache_folder
from sage_jax.data.tokenizer import load_tokenizer
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError
from sage_jax.losses.policy import RatioLevel
from sage_jax.methods.chains import make_chains
from sage_jax.methods.skill_r1_player import SkillR1Player
from sage_jax.metrics.progress import show_progress
from sage_jax.models import lora
from sage_jax.models.config import ModelConfig
from sage_jax.models.transformer import head_weights
from sage_jax.rollout import Engine
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank, load_bank
from sage_jax.training.engines import open_engine
from sage_jax.training.optimizer import make_optimizer, make_schedule, rl_options
from sage_jax.training.players import make_players
from sage_jax.training.policy import fresh_adapters, load_policy, policy_forward, policy_mesh, with_adapters
from sage_jax.training.processes import in_first, once, whole_arrays
from sage_jax.training.state import state_layout
from sage_jax.training.step import LossOptions, UpdateStep, make_logprob_fn, make_update_step
from sage_jax.types import Task


@dataclasses.dataclass(frozen=True)
class Session:
    """Everything a run works with. Made by `open_session`, which also ends it.

    In a run of several processes, pool, engine and players are those of the first one and None in the others.

    Attributes:
      model: the policy, with its adapters.
      params: what is trained, as it is before training: all parameters, or the adapters.
      frozen: the base under adapters, None when all parameters are trained.
    """

    settings: RunSettings
    folder: pathlib.Path
    benchmark: Benchmark
    tasks: dict[str, tuple[Task, ...]]
    model: ModelConfig
    params: Any
    frozen: Any
    tokenizer: Any
    pool: EnvPool | None
    engine: Engine | None
    player: Player | None
    skill_player: SkillR1Player | None
    runner: asyncio.Runner
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    update: Any
    logprobs: Any
    forward: Any

    @property
    def eval_splits(self) -> list[str]:
        """Splits to evaluate: those that the settings name, then those that the benchmark's own keys ask for."""
        named = self.settings.evaluation.eval_splits
        return [*named, *(split for split in self.tasks if split not in (TRAIN, *named))]

    @property
    def streams(self) -> dict[str, int]:
        """Numbers of the streams in a packed batch."""
        return {"act": 0, "review": 1, "skill": 2}

    def make_update(self, optimizer: optax.GradientTransformation, options: LossOptions) -> UpdateStep:
        """Returns an update of what this session trains."""
        layout = state_layout(self.params, optimizer)
        return make_update_step(self.forward, head_weights, optimizer, options, frozen=self.frozen, layout=layout)

    def weights(self, params: Any) -> Any:
        """Returns the plain weights that engines and model folders take, of trained parameters."""
        return params if self.frozen is None else lora.merge(self.model, lora.join(params, self.frozen))

    def start_bank(self) -> SkillBank:
        """Returns the bank a run starts with."""
        return load_bank(self.settings.skills.bank) if self.settings.skills.bank else SkillBank()


@contextlib.contextmanager
def open_session(settings: RunSettings, folder: pathlib.Path, *, training: bool = True) -> Iterator[Session]:
    """Builds the parts, and ends engine and workers on the way out.

    Args:
      settings: of the run.
      folder: the run's.
      training: False needs no training tasks.

    Raises:
      ConfigError, DataError: a setting or a file does not fit; the message says which.
    """
    # Programs are compiled once a machine and not once a start.
    jax.config.update("jax_compilation_cache_dir", str(cache_folder(settings.tasks.cache) / "xla"))
    tasks = once(lambda: all_tasks(settings, training=training))
    with contextlib.ExitStack() as stack:
        stack.enter_context(policy_mesh(settings))
        model, params = load_policy(settings)
        tokenizer = load_tokenizer(pathlib.Path(settings.policy.model))
        encode = text_encoder(tokenizer)
        benchmark = settings.open_benchmark()
        weights = whole_arrays(params)
        pool, engine = in_first(lambda: open_world(settings, folder, benchmark, model, weights, stack)) or (None, None)
        frozen = None
        if settings.lora.lora_rank:
            model, frozen = with_adapters(settings, model), params
            params = fresh_adapters(settings, model)
        runner = stack.enter_context(asyncio.Runner())
        player, skill_player = in_first(
            lambda: make_players(settings, engine, pool, tokenizer, encode, folder, stack, runner)
        ) or (None, None)
        optimizer = make_optimizer(rl_options(settings))
        run_forward = policy_forward(settings, model)
        options = loss_options(settings)
        yield Session(
            settings=settings,
            folder=folder,
            benchmark=benchmark,
            tasks=tasks,
            model=model,
            params=params,
            frozen=frozen,
            tokenizer=tokenizer,
            pool=pool,
            engine=engine,
            player=player,
            skill_player=skill_player,
            runner=runner,
            optimizer=optimizer,
            schedule=make_schedule(rl_options(settings)),
            update=make_update_step(
                run_forward,
                head_weights,
                optimizer,
                options,
                frozen=frozen,
                layout=state_layout(params, optimizer),
            ),
            logprobs=make_logprob_fn(run_forward, head_weights, options, frozen=frozen),
            forward=run_forward,
        )


def open_world(
    settings: RunSettings,
    folder: pathlib.Path,
    benchmark: Benchmark,
    model: ModelConfig,
    weights: Any,
    stack: contextlib.ExitStack,
) -> tuple[EnvPool, Engine]:
    """Opens environments and engine; `stack` closes them. Errors as `open_engine`."""
    own = settings.tasks
    pool = EnvPool(benchmark.factory(), workers=own.env_workers, timeout_s=own.env_timeout_s, backend=own.env_backend)
    stack.callback(pool.close)
    return pool, stack.enter_context(contextlib.closing(open_engine(settings, folder, model, weights)))


def all_tasks(settings: RunSettings, *, training: bool = True) -> dict[str, tuple[Task, ...]]:
    """Lists the run's tasks by split, making them first where there are none.

    Raises:
      ConfigError: a split that is needed would be empty, a family of skills could not be probed, or a chain not drawn.
      DataError: official data lack a split or a file.
    """
    benchmark = settings.open_benchmark()
    needed = tuple(dict.fromkeys((*((TRAIN,) if training else ()), *settings.evaluation.eval_splits)))
    with contextlib.ExitStack() as stack:
        tasks = benchmark.load(needed, _late_bar(stack))
    for split in needed:
        if not tasks.get(split):
            raise ConfigError(
                f"split {split!r} has no tasks: raise {benchmark.size_key(split)} or take the split out of eval_splits"
            )
    if training and settings.rl.method == "sage":  # chains that cannot be drawn are told before anything is built
        own, train = settings.sage, tasks[TRAIN]
        make_chains(train, train, length=own.chain_length, by=own.chain_by, seed=settings.seed, number=0)
    if training and settings.rl.method == "skillmaster" and settings.skills.utility:
        families = collections.Counter(task.family for task in tasks[TRAIN])
        if lonely := sorted(family for family, count in families.items() if count == 1):
            raise ConfigError(
                f"family {lonely[0]!r} has one training task, so an edit made on it has no other to be probed on: "
                f"raise {benchmark.size_key(TRAIN)} or set utility=False"
            )
    return tasks


def _late_bar(stack: contextlib.ExitStack) -> Progress:
    """Returns a callback whose bar appears only when there are tasks to make."""
    shown: list = []

    def progress(done: int, total: int) -> None:
        if not shown:
            shown.extend((stack.enter_context(show_progress("tasks", total)), 0))
        shown[0].advance(done - shown[1])
        shown[1] = done

    return progress


def importance_level(settings: RunSettings) -> RatioLevel:
    """Returns what has one importance weight: a token or a sequence."""
    rl = settings.rl
    return rl.ratio_level if rl.importance_level == "ratio" else rl.importance_level


def loss_options(settings: RunSettings) -> LossOptions:
    """Returns the loss of RL."""
    rl = settings.rl
    return LossOptions(
        aggregation=rl.aggregation,
        constant_length=rl.constant_length or None,
        clip_low=rl.clip_low,
        clip_high=rl.clip_high,
        dual_clip=rl.dual_clip or None,
        kl_coef=rl.kl_coef,
        kl_kind=rl.kl_kind,
        entropy_coef=rl.entropy_coef,
        importance_cap=rl.importance_cap or None,
        ratio_level=rl.ratio_level,
        importance_level=importance_level(settings),
        temperature=settings.agent.temperature,
    )
