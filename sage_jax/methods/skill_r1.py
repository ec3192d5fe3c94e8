"""Skill-R1 (arXiv 2605.09359): an editor writes skills for a frozen task LLM, generation after generation.

    H_0 = K rollouts of the task LLM under the seed skill
    for g = 1..G:  M skills are written after H_{g-1};  K rollouts under each;  the best one and its rollouts join H_g
    advantages within and between generations (losses/generations.py); one ratio a skill

The task LLM is a black box that gives text; what is trained is the editor, on the tokens of the skills it wrote.

Deviation: M > 1 siblings in mode "sibling" (the default); M = 1 is the paper's.
Deviation: siblings of a generation share the seeds of their K rollouts (common random numbers).
Unspecified: a text that is no skill is not played; its K rollouts count as failed. A skill whose writing failed (an
engine error) has no reward and leaves the statistics.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sage_jax.agents.editor import Attempt, Editor, Written
from sage_jax.agents.episode_agent import EpisodeAgent
from sage_jax.agents.tool_agent import TaskRollout, ToolAgent
from sage_jax.errors import AbortedError, ConfigError, EngineError
from sage_jax.losses import generation_advantages
from sage_jax.losses.generations import MODES
from sage_jax.methods.outcomes import failure, means
from sage_jax.seeding import derive_seed
from sage_jax.skills.folders import SkillFile
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

TaskAgent = ToolAgent | EpisodeAgent
KEEPS = ("first", "best")


@dataclasses.dataclass(frozen=True)
class SkillR1Options:
    """Sizes and formulas. Raises ConfigError naming the field.

    Attributes:
      generations: G.
      siblings: M, skills written after one history.
      rollouts: K, rollouts of the task LLM under one skill.
      mode: "sibling" or "literal", see `losses.generation_advantages`.
      inter_coef: lambda.
      keep: which sibling goes on into the history: "best" (highest mean reward) or "first" (any one, as an evaluation
        with one skill a generation has it).
      concurrency: rollouts of the task LLM at one time, per instance.
      instances: instances evolved at one time.
      straggler_factor: see `gathering.Stragglers`, of the rollouts under one skill; 0 waits for all.
    """

    generations: int = 5
    siblings: int = 4
    rollouts: int = 4
    mode: str = "sibling"
    inter_coef: float = 1.0
    keep: str = "first"
    concurrency: int = 16
    instances: int = 8
    straggler_factor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("generations", "siblings", "rollouts", "concurrency", "instances"):
            if getattr(self, name) < 1:
                raise ConfigError(f"skill_r1 {name}={getattr(self, name)} must be at least 1")
        if self.mode not in MODES:
            raise ConfigError(f"mode={self.mode!r}: must be one of {', '.join(MODES)}")
        if self.mode == "literal" and self.siblings != 1:
            raise ConfigError(f"mode='literal' with siblings={self.siblings}: the paper's formula has one skill; use 1")
        if self.keep not in KEEPS:
            raise ConfigError(f"keep={self.keep!r}: must be one of {', '.join(KEEPS)}")
        if self.inter_coef < 0:
            raise ConfigError(f"inter_coef={self.inter_coef} must be 0 or more")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One sibling.

    Attributes:
      written: None when the engine failed.
      rollouts: none when it is no skill.
      error: of the engine.
      aborted: the engine was told to end the writing.
    """

    written: Written | None
    rollouts: tuple[TaskRollout, ...]
    error: str = ""
    aborted: bool = False

    def rewards(self, count: int) -> list[float | None]:
        """Returns K rewards; None where there is none."""
        if self.written is None:
            return [None] * count
        if self.written.skill is None:
            return [0.0] * count
        return [rollout.reward.value for rollout in self.rollouts]

    def mean(self, count: int) -> float | None:
        """Returns the mean reward of the rollouts that have one."""
        known = [reward for reward in self.rewards(count) if reward is not None]
        return float(np.mean(known)) if known else None


@dataclasses.dataclass(frozen=True)
class Evolution:
    """One instance's skills over generations: its bank B_x.

    Attributes:
      task: the instance.
      seed_rollouts: H_0.
      generations: siblings of each generation that was reached.
      kept: sibling that each generation went on from.
    """

    task: Task
    seed_skill: SkillFile
    seed_rollouts: tuple[TaskRollout, ...]
    generations: tuple[tuple[Candidate, ...], ...]
    kept: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the bank as JSON: skills with their rewards, and the rollouts without their conversations."""
        generations = [
            [_candidate_json(candidate, number == kept) for number, candidate in enumerate(siblings)]
            for siblings, kept in zip(self.generations, self.kept, strict=True)
        ]
        return {
            "task": self.task.id,
            "family": self.task.family,
            "seed": {"skill": self.seed_skill.text, "rollouts": [_rollout_json(r) for r in self.seed_rollouts]},
            "generations": generations,
        }


async def evolve_all(
    editor: Editor,
    agent: TaskAgent,
    tasks: Sequence[Task],
    seed_skill: Callable[[Task], SkillFile],
    options: SkillR1Options,
    *,
    seed: int,
    tag: str,
) -> list[Evolution]:
    """Evolves a skill for each task, some at a time; the result of one does not depend on the others.

    Args:
      editor: writes skills.
      agent: plays the task LLM.
      tasks: instances; one that comes twice is evolved twice, with other seeds.
      seed_skill: task -> s_0.
      options: sizes.
      seed: of the run.
      tag: tells rounds and evaluations apart.
    """
    gate, times = asyncio.Semaphore(options.instances), collections.Counter[str]()

    async def one(task: Task, key: str) -> Evolution:
        async with gate:
            return await evolve(editor, agent, task, seed_skill(task), options, seed=seed, key=key)

    jobs = []
    for task in tasks:
        jobs.append(one(task, f"{tag}/{task.id}#{times[task.id]}"))
        times[task.id] += 1
    return list(await asyncio.gather(*jobs))


async def evolve(
    editor: Editor, agent: TaskAgent, task: Task, seed_skill: SkillFile, options: SkillR1Options, *, seed: int, key: str
) -> Evolution:
    """Evolves a skill for one task. A generation in which no skill could be written ends it early."""
    question = str(task.payload.get("question") or task.payload.get("instruction") or task.id)

    async def play(skill: SkillFile, generation: int) -> tuple[TaskRollout, ...]:
        seeds = [derive_seed(seed, "skill-r1/rollout", key, generation, k) for k in range(options.rollouts)]
        plans = [(task, skill, s) for s in seeds]
        played = await agent.play_all(plans, concurrency=options.concurrency, straggler_factor=options.straggler_factor)
        return tuple(played)

    async def candidate(prompt: tuple[int, ...], parent: SkillFile, generation: int, sibling: int) -> Candidate:
        name = f"skill/{key}/{generation}/{sibling}"
        try:
            written = await editor.write(name, prompt, derive_seed(seed, "skill-r1/skill", name), parent)
        except EngineError as error:
            return Candidate(None, (), str(error), isinstance(error, AbortedError))
        return Candidate(written, await play(written.skill, generation) if written.skill else ())

    history = [Attempt(0, seed_skill, await play(seed_skill, 0))]
    parent, generations, kept = seed_skill, [], []
    for generation in range(1, options.generations + 1):
        prompt = editor.prompt(question, history)
        jobs = [candidate(prompt, parent, generation, sibling) for sibling in range(options.siblings)]
        siblings = tuple(await asyncio.gather(*jobs))
        generations.append(siblings)
        kept.append(_choose(siblings, options))
        chosen = siblings[kept[-1]]
        if chosen.written is None:
            break
        parent = chosen.written.skill or parent
        history.append(Attempt(generation, chosen.written.skill, chosen.rollouts, chosen.written.problem))
    return Evolution(task, seed_skill, history[0].rollouts, tuple(generations), tuple(kept))


def assign_advantages(
    evolutions: Sequence[Evolution], options: SkillR1Options, *, on_policy: bool, keep_flat: bool = False
) -> list[Trajectory]:
    """Returns one trajectory for each skill that was written, its turn's advantage filled.

    Args:
      evolutions: of one round.
      options: mode and lambda.
      on_policy: the round is one update, so that every ratio is 1. Otherwise a literal skill becomes two sequences,
        one for the positive and one for the negative part of its advantage, because the two are clipped differently;
        each counts twice, so that the mean over sequences stays the mean over skills.
      keep_flat: keep skills whose advantage is zero, for the KL term.
    """
    rewards, valid, kept = reward_arrays(evolutions, options)
    got = generation_advantages(rewards, valid, kept, mode=options.mode, inter_coef=options.inter_coef)
    trajectories = []
    for b, evolution in enumerate(evolutions):
        for g, siblings in enumerate(evolution.generations):
            for m, candidate in enumerate(siblings):
                if candidate.written is None:
                    continue
                total, positive = float(got.total[b, g, m]), float(got.positive[b, g, m])
                split = options.mode == "literal" and not on_policy
                parts = [2 * positive, 2 * (total - positive)] if split else [total]
                for advantage in parts:
                    turn = _with_advantage(candidate.written.turn, advantage, keep_flat or (split and positive != 0))
                    trajectories.append(_trajectory(evolution, g, m, candidate, turn, float(got.means[b, g, m])))
    return trajectories


def reward_arrays(
    evolutions: Sequence[Evolution], options: SkillR1Options
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rewards and valid [B, G, M, K], kept [B, G]; generations that were not reached are invalid."""
    shape = (len(evolutions), options.generations, options.siblings, options.rollouts)
    rewards, valid, kept = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape[:2], np.int64)
    for b, evolution in enumerate(evolutions):
        for g, siblings in enumerate(evolution.generations):
            kept[b, g] = evolution.kept[g]
            for m, candidate in enumerate(siblings):
                for k, reward in enumerate(candidate.rewards(options.rollouts)):
                    if reward is not None:
                        rewards[b, g, m, k], valid[b, g, m, k] = reward, True
    return rewards, valid, kept


def failures(evolutions: Sequence[Evolution], *, dropped: bool = False) -> tuple[list[str], list[str]]:
    """Returns why each rollout of the task LLM has no outcome, and why each skill was not written; "" where it did.

    With `dropped` those that were aborted are left out.
    """
    rollouts = [rollout for evolution in evolutions for rollout in _rollouts(evolution)]
    played = [one for one in rollouts if not (dropped and one.reward.status is Status.ABORTED)]
    lost = [failure(rollout.reward, str(rollout.info["ended_by"])) for rollout in played]
    return lost, [one.error for one in _candidates(evolutions) if not (dropped and one.aborted)]


def generation_curve(evolutions: Sequence[Evolution], options: SkillR1Options) -> list[tuple[float | None, float]]:
    """Returns (mean reward, share of instances solved by any rollout so far) for the seed and each generation.

    The mean of a generation without any reward is None.
    """
    curve, solved = [], set()
    for generation in range(options.generations + 1):
        rewards = []
        for number, evolution in enumerate(evolutions):
            found = _kept_rewards(evolution, generation, options.rollouts)
            rewards += found
            if any(reward > 0 for reward in found):
                solved.add(number)
        curve.append((float(np.mean(rewards)) if rewards else None, len(solved) / max(len(evolutions), 1)))
    return curve


def round_metrics(
    evolutions: Sequence[Evolution], options: SkillR1Options, trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Returns the metrics of a round, named as in metrics/names.py; what nothing is known of is left out."""
    played = [rollout for evolution in evolutions for rollout in _rollouts(evolution)]
    rewarded = [rollout for rollout in played if rollout.reward.value is not None]
    rewards = [rollout.reward.value for rollout in rewarded]
    written = [candidate.written for candidate in _candidates(evolutions) if candidate.written]
    skills = [candidate.mean(options.rollouts) for candidate in _candidates(evolutions)]
    advantages = [turn.advantage for t in trajectories for turn in t.turns if turn.advantage is not None]
    metrics = means(
        {
            "reward/mean": rewards,
            "reward/success": [float(rollout.info["success"]) for rollout in rewarded],
            "episode/steps": [float(rollout.info["steps"]) for rollout in rewarded],
            "episode/truncated": [float(r.reward.status is Status.TRUNCATED) for r in played],
            "skill/reward": [mean for mean in skills if mean is not None],
            "skill/unreadable": [float(one.skill is None) for one in written],
            "skill/tokens": [float(len(one.turn.output_ids)) for one in written],
        }
    )
    metrics |= {"reward/std": float(np.std(rewards))} if rewards else {}
    metrics |= {
        "tokens/generated": float(sum(len(one.turn.output_ids) for one in written)),
        "skill/written": float(len(written)),
        "advantage/skill_std": float(np.std(advantages)) if advantages else 0.0,
        "task_llm/tokens": float(sum(rollout.info["tokens"] for rollout in played)),
        "task_llm/cost": float(sum(rollout.info["cost"] for rollout in played)),
    }
    for number, (mean, solved) in enumerate(generation_curve(evolutions, options)):
        metrics |= {} if mean is None else {f"generation/{number}/reward": mean}
        metrics[f"generation/{number}/solved"] = solved
    statuses = collections.Counter(rollout.reward.status.value for rollout in played)
    return metrics | {f"status/{name}": float(count) for name, count in statuses.items()}


def write_banks(folder: pathlib.Path, evolutions: Sequence[Evolution]) -> None:
    """Writes the banks B_x of a round, a JSON line for each instance."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(evolution.to_json(), ensure_ascii=False) + "\n" for evolution in evolutions]
    folder.write_text("".join(lines), encoding="utf-8", errors="replace")


def _choose(siblings: Sequence[Candidate], options: SkillR1Options) -> int:
    """Returns the sibling that goes on: one that was written, if any was."""
    if options.keep == "best":
        return max(range(len(siblings)), key=lambda m: _rank(siblings[m], options.rollouts))
    return next((m for m, candidate in enumerate(siblings) if candidate.written is not None), 0)


def _rank(candidate: Candidate, count: int) -> tuple[float, bool]:
    """Orders siblings: the higher mean reward, then one that is a skill; the first among equals."""
    mean = candidate.mean(count)
    return (-1.0 if mean is None else mean, candidate.written is not None and candidate.written.skill is not None)


def _kept_rewards(evolution: Evolution, generation: int, count: int) -> list[float]:
    if generation == 0:
        rewards = [rollout.reward.value for rollout in evolution.seed_rollouts]
    elif generation <= len(evolution.generations):
        rewards = evolution.generations[generation - 1][evolution.kept[generation - 1]].rewards(count)
    else:
        rewards = []
    return [reward for reward in rewards if reward is not None]


def _candidates(evolutions: Sequence[Evolution]) -> list[Candidate]:
    return [one for evolution in evolutions for siblings in evolution.generations for one in siblings]


def _rollouts(evolution: Evolution) -> list[TaskRollout]:
    later = [r for siblings in evolution.generations for candidate in siblings for r in candidate.rollouts]
    return [*evolution.seed_rollouts, *later]


def _with_advantage(turn: Turn, advantage: float, keep_flat: bool) -> Turn:
    learns = np.isfinite(advantage) and (advantage != 0 or keep_flat)
    return dataclasses.replace(turn, advantage=float(advantage) if learns else None)


def _trajectory(evolution: Evolution, g: int, m: int, candidate: Candidate, turn: Turn, mean: float) -> Trajectory:
    known = np.isfinite(mean)
    reward = RewardResult(mean if known else None, Status.OK if known else Status.ENGINE_ERROR)
    info = {
        "generation": g + 1,
        "sibling": m,
        "kept": evolution.kept[g] == m,
        "success": bool(known and mean > 0),
        "score": mean if known else 0.0,
        "steps": len(candidate.rollouts),
        "tokens": len(turn.output_ids),
    }
    group = f"{evolution.task.id}/{g + 1}"
    return Trajectory(evolution.task, group, 0, (dataclasses.replace(turn, reward=reward),), reward, info)


def _candidate_json(candidate: Candidate, kept: bool) -> dict[str, Any]:
    if candidate.written is None:
        return {"kept": kept, "skill": None, "problem": "the engine failed", "rollouts": []}
    skill = candidate.written.skill.text if candidate.written.skill else candidate.written.turn.info["text"]
    rollouts = [_rollout_json(rollout) for rollout in candidate.rollouts]
    return {"kept": kept, "skill": skill, "problem": candidate.written.problem, "rollouts": rollouts}


def _rollout_json(rollout: TaskRollout) -> Mapping[str, Any]:
    reward = {"reward": rollout.reward.value, "status": rollout.reward.status.value}
    return {**reward, "answer": rollout.answer, **rollout.info}
