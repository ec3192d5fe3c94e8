"""The parts of a run, built from its settings: tasks, model, engine, environments, player, optimizer, update."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import optax

from sage_jax.agents.coding import CodePlayer
from sage_jax.agents.editor import Editor, EditorOptions
from sage_jax.agents.episode import AgentOptions, Player
from sage_jax.agents.episode_agent import EpisodeAgent
from sage_jax.agents.ray_player import RayPlayer
from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.benchmarks import Benchmark
from sage_jax.benchmarks.base import TRAIN, Progress, plays_code
from sage_jax.data.editor_corpus import SEED_SKILL
from sage_jax.data.sft import text_encoder
from sage_jax.data.tasks import cache_folder
from sage_jax.data.tokenizer import load_tokenizer
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError
from sage_jax.losses.policy import RatioLevel
from sage_jax.methods.chains import make_chains
from sage_jax.methods.skill_r1_player import SkillR1Player
from sage_jax.metrics.progress import show_progress
from sage_jax.models import hf, lora
from sage_jax.models.config import LoraConfig, ModelConfig
from sage_jax.models.presets import preset
from sage_jax.models.sharding import make_mesh, param_shardings, parse_mesh
from sage_jax.models.transformer import abstract_params, forward, head_weights, logical_axes
from sage_jax.rewards import ActShaping, OutcomeConfig
from sage_jax.rollout import Engine
from sage_jax.rollout.engine_llm import EngineLlm
from sage_jax.rollout.task_llm import Budget, TaskLlm
from sage_jax.seeding import jax_key
from sage_jax.settings import TOOL_BENCHMARKS, RunSettings
from sage_jax.skills import RetrievalConfig, SkillBank, SkillFolder, load_bank, load_folder
from sage_jax.training.engines import open_client, open_engine, open_task_llm
from sage_jax.training.optimizer import make_optimizer, make_schedule, rl_options
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


def make_players(
    settings: RunSettings,
    engine: Engine,
    pool: EnvPool,
    tokenizer: Any,
    encode: Any,
    folder: pathlib.Path,
    stack: contextlib.ExitStack,
    runner: asyncio.Runner,
) -> tuple[Player, SkillR1Player | None]:
    """Returns the run's player and, for Skill-R1, what that plays with; `stack` closes both. Errors of either."""
    player = make_player(settings, engine, pool, tokenizer, encode)
    stack.callback(player.close)
    return player, make_skill_player(settings, engine, pool, tokenizer, folder, stack, runner)


def policy_mesh(settings: RunSettings) -> contextlib.AbstractContextManager[Any]:
    """Returns the context in which the policy's mesh is set; without one it changes nothing.

    Raises:
      ConfigError: the mesh does not fit the devices, or several processes have none.
    """
    if not settings.policy.mesh:
        if jax.process_count() > 1:
            raise ConfigError(
                f"mesh='' in a run of {jax.process_count()} processes: give a mesh of all {jax.device_count()} devices"
            )
        return contextlib.nullcontext()
    return jax.set_mesh(make_mesh(**{"data": 1, **parse_mesh(settings.policy.mesh)}))


def load_policy(settings: RunSettings) -> tuple[ModelConfig, Any]:
    """Loads the policy's folder, onto the mesh that is set.

    Raises:
      ConfigError: the folder is missing.
    """
    folder = pathlib.Path(settings.policy.model)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model={settings.policy.model!r}: no such model folder (it needs config.json, safetensors and tokenizer); "
            "`make base-model` makes assets/base, `make editor-model` assets/editor, and any "
            "Qwen2/2.5, Qwen3, Llama or SmolLM2 folder fits"
        )
    shardings = None
    if settings.policy.mesh:
        model = hf.read_config(folder)
        shardings = param_shardings(logical_axes(model), abstract_params(model), jax.sharding.get_mesh())
    return hf.load(folder, compute_dtype=settings.policy.compute_dtype, shardings=shardings)


def with_adapters(settings: RunSettings, model: ModelConfig) -> ModelConfig:
    """Returns the model with the run's adapters, or as it is when the run has none."""
    own = settings.lora
    if not own.lora_rank:
        return model
    return dataclasses.replace(model, lora=LoraConfig(own.lora_rank, own.lora_alpha, own.lora_targets))


def fresh_adapters(settings: RunSettings, model: ModelConfig) -> Any:
    """Returns the adapters a run starts with, on the mesh that is set."""
    adapters = lora.init_adapters(model, jax_key(settings.seed, "lora"))
    if not settings.policy.mesh:
        return adapters
    layout = param_shardings(logical_axes(model), abstract_params(model), jax.sharding.get_mesh())
    return jax.device_put(adapters, lora.split(layout)[0])


def model_config(settings: RunSettings) -> ModelConfig:
    """Returns the sizes of the policy, from its folder or else from `model_preset`; needs no weights.

    Raises:
      ConfigError: neither tells the sizes.
    """
    folder, name = pathlib.Path(settings.policy.model), settings.policy.model_preset
    if (folder / "config.json").is_file():
        return hf.read_config(folder, dtype=settings.policy.compute_dtype)
    if name:
        return preset(name, dtype=settings.policy.compute_dtype)
    raise ConfigError(f"model={settings.policy.model!r} is no folder; set model_preset to a published model")


def policy_forward(settings: RunSettings, model: ModelConfig):
    """Returns forward(params, ids, positions, segment_ids) with the run's options."""
    policy = settings.policy
    return functools.partial(
        forward,
        model,
        remat=policy.remat,
        unroll=policy.unroll,
        attention_implementation=policy.attention,
    )


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


def make_player(settings: RunSettings, engine: Engine, pool: EnvPool, tokenizer: Any, encode: Any) -> Player:
    """Returns the player of the run's agent."""
    agent, skills = settings.agent, settings.skills
    options = AgentOptions(
        context=agent.context,
        max_steps=agent.max_steps,
        act_tokens=agent.act_tokens,
        review_tokens=agent.review_tokens,
        history=agent.history,
        top_p=agent.top_p,
        top_k=agent.top_k,
        choices=agent.choices,
        episode_timeout_s=agent.episode_timeout_s,
    )
    retrieval = RetrievalConfig(
        method=skills.retrieval,
        top_k=skills.retrieval_top_k,
        category_limit=skills.retrieval_category or None,
        mistakes=skills.retrieval_mistakes,
    )
    free = dict.fromkeys(("not_admissible", "truncated", "no_action", "no_think", "empty", "repetition"), 0.0)
    shaping = ActShaping() if settings.rl.act_shaping else ActShaping(**free)
    outcome = OutcomeConfig(kind=settings.rl.outcome, scale=settings.rl.reward_scale)
    kind = Player
    if agent.rollout_backend == "ray":
        kind = functools.partial(
            RayPlayer,
            open_player=functools.partial(open_player, settings),
            workers=agent.rollout_workers,
            concurrency=agent.concurrency,
        )
    elif plays_code(settings.open_benchmark()):
        kind = functools.partial(CodePlayer, guide=settings.appworld.app_guide)
    return kind(engine, pool, tokenizer, options, encode=encode, retrieval=retrieval, shaping=shaping, outcome=outcome)


@contextlib.contextmanager
def open_player(settings: RunSettings) -> Iterator[Player]:
    """Opens a player with environments and a client of the run's servers of its own: what a Ray actor hosts."""
    local = dataclasses.replace(settings, agent=dataclasses.replace(settings.agent, rollout_backend="local"))
    own, tokenizer = settings.tasks, load_tokenizer(pathlib.Path(settings.policy.model))
    factory = settings.open_benchmark().factory()
    with (
        EnvPool(factory, workers=own.env_workers, timeout_s=own.env_timeout_s) as pool,
        contextlib.closing(open_client(settings, model_config(settings))) as client,
    ):
        yield make_player(local, client, pool, tokenizer, text_encoder(tokenizer))


def make_skill_player(
    settings: RunSettings,
    engine: Engine,
    pool: EnvPool,
    tokenizer: Any,
    folder: pathlib.Path,
    stack: contextlib.ExitStack,
    runner: asyncio.Runner,
) -> SkillR1Player | None:
    """Returns what Skill-R1 plays with, None for other methods; `stack` closes its task LLM or frozen policy.

    Raises:
      ConfigError: the endpoint's key is missing, or a size does not fit.
      SkillError: the folder of seed skills is missing or broken.
    """
    if settings.rl.method != "skillr1":
        return None
    own, agent = settings.skillr1, settings.agent
    seeds = load_folder(own.seed_skills) if own.seed_skills else SkillFolder().put(SEED_SKILL)
    if not len(seeds):
        raise ConfigError(f"seed_skills={own.seed_skills!r} holds no skill (NAME/SKILL.md)")
    editor_options = EditorOptions(
        format=own.skill_format,
        history_tokens=own.history_tokens,
        skill_tokens=own.skill_tokens,
        temperature=agent.temperature,
        top_p=agent.top_p,
        top_k=agent.top_k,
    )
    return SkillR1Player(
        editor=Editor(engine, tokenizer, editor_options, encode=text_encoder(tokenizer)),
        agent=make_task_agent(settings, pool, folder, stack, runner),
        settings=settings,
        folder=folder,
        seeds=seeds,
    )


def make_task_agent(
    settings: RunSettings, pool: EnvPool, folder: pathlib.Path, stack: contextlib.ExitStack, runner: asyncio.Runner
) -> ToolAgent | EpisodeAgent:
    """Returns who plays the tasks of Skill-R1: a task LLM with tools, or a frozen policy where tasks are episodes.

    Raises:
      ConfigError: the endpoint's key or the frozen policy's folder is missing.
    """
    task, agent = settings.task, settings.agent
    if task.task_llm == "policy":
        frozen = dataclasses.replace(
            settings, policy=dataclasses.replace(settings.policy, model=task.task_policy or settings.policy.model)
        )
        model, params = load_policy(frozen)
        engine = stack.enter_context(contextlib.closing(open_engine(frozen, folder, model, whole_arrays(params))))
        tokenizer = load_tokenizer(pathlib.Path(frozen.policy.model))
        if settings.tasks.benchmark not in TOOL_BENCHMARKS:
            player = make_player(frozen, engine, pool, tokenizer, text_encoder(tokenizer))
            return EpisodeAgent(player, temperature=task.task_temperature)
        llm: TaskLlm = EngineLlm(engine, tokenizer, Budget(task.task_calls, task.task_tokens, task.task_money))
    else:
        llm = open_task_llm(settings, folder)
        stack.callback(lambda: runner.run(llm.close()))
    options = ToolAgentOptions(
        mode=task.task_mode,
        max_steps=agent.max_steps,
        max_tokens=task.task_reply_tokens,
        episode_tokens=task.task_episode_tokens,
        old_chars=0 if task.task_llm == "follower" else ToolAgentOptions.old_chars,
        temperature=task.task_temperature,
        timeout_s=agent.episode_timeout_s,
    )
    return ToolAgent(llm, pool, options, judge=llm if task.task_judge else None)


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
