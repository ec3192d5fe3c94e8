"""Who plays the episodes of a run, built from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax

from sage_jax.agents.coding import CodePlayer
from sage_jax.agents.editor import Editor, EditorOptions
from sage_jax.agents.episode import AgentOptions, Player
from sage_jax.agents.episode_agent import EpisodeAgent
from sage_jax.agents.ray_player import RayPlayer
from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.benchmarks.base import plays_code
from sage_jax.data.editor_corpus import SEED_SKILL
from sage_jax.data.sft import text_encoder
from sage_jax.data.tokenizer import load_tokenizer
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError
from sage_jax.methods.skill_r1_player import SkillR1Player
from sage_jax.rewards import ActShaping, OutcomeConfig
from sage_jax.rollout import Engine
from sage_jax.rollout.engine_llm import EngineLlm
from sage_jax.rollout.layout import engine_mesh
from sage_jax.rollout.task_llm import Budget, TaskLlm
from sage_jax.setting_groups import TOOL_BENCHMARKS
from sage_jax.settings import RunSettings
from sage_jax.skills import RetrievalConfig, SkillFolder, load_folder
from sage_jax.training.engines import open_client, open_engine, open_task_llm
from sage_jax.training.policy import frozen_policy, load_policy, model_config


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
        frozen = frozen_policy(settings)
        # On the engine's own devices: in a run of several processes the others do not load it.
        mesh = jax.sharding.get_mesh()
        with contextlib.nullcontext() if mesh.empty else jax.set_mesh(engine_mesh(mesh)):
            engine = stack.enter_context(contextlib.closing(open_engine(frozen, folder, *load_policy(frozen))))
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
