"""Skill-R1 in a run: rounds of evolution for training, and evaluations with and without skills."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Sequence

from sage_jax.agents.editor import Editor
from sage_jax.agents.tool_agent import TaskRollout
from sage_jax.methods import skill_r1
from sage_jax.methods.grpo import Round
from sage_jax.methods.outcomes import failure, require_outcome
from sage_jax.methods.skill_r1 import Evolution, SkillR1Options
from sage_jax.metrics.evaluation import EpisodeOutcome
from sage_jax.seeding import derive_seed
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.skills.folders import SkillFile, SkillFolder
from sage_jax.types import Task


@dataclasses.dataclass(frozen=True)
class SkillR1Player:
    """What Skill-R1 plays with.

    Attributes:
      editor: the policy that is trained, as a writer of skills.
      agent: plays the frozen task LLM.
      settings: the run's.
      folder: the run's; banks B_x go to its folder `banks`.
      seeds: seed skills.
    """

    editor: Editor
    agent: skill_r1.TaskAgent
    settings: RunSettings
    folder: pathlib.Path
    seeds: SkillFolder

    async def play_round(
        self, player: object, settings: RunSettings, tasks: Sequence[Task], train_tasks: Sequence[Task],
        bank: SkillBank, number: int,
    ) -> Round:  # fmt: skip
        """Evolves a skill for each task and pays each generation (arguments as in grpo.play_round).

        Raises:
          EngineError: no rollout of the task LLM came to an outcome, or no skill was written.
        """
        options = self.options()
        evolutions = await skill_r1.evolve_all(
            self.editor, self.agent, tasks, self.seed_skill, options, seed=settings.seed, tag=str(number)
        )
        failed_parts = skill_r1.failures(evolutions, dropped=settings.rl.running_turns == "drop")
        for failed, kind in zip(failed_parts, ("rollouts", "skills"), strict=True):
            require_outcome(failed, f"round {number + 1}, {kind}")
        on_policy = settings.rl.epochs * settings.rl.minibatches == 1
        trajectories = skill_r1.assign_advantages(
            evolutions, options, on_policy=on_policy, keep_flat=settings.rl.kl_coef > 0
        )
        skill_r1.write_banks(self.folder / "banks" / f"{number + 1:06d}.jsonl", evolutions)
        return Round(tuple(trajectories), bank, skill_r1.round_metrics(evolutions, options, trajectories))

    async def evaluate(self, split: str, tasks: Sequence[Task]) -> tuple[list[EpisodeOutcome], list[Evolution]]:
        """Plays every task without a skill, and evolves a skill for it, one a generation as the paper does.

        The outcome with skills is that of the first rollout under the last generation's skill. No skill is chosen by
        its rewards, but the editor sees those of earlier generations, as in training.
        """
        settings = self.settings
        options = dataclasses.replace(
            self.options(),
            siblings=1,
            rollouts=settings.skillr1.eval_rollouts,
            mode="sibling",
            straggler_factor=0.0,
        )
        seed = settings.evaluation.eval_seed
        plans = [(task, None, derive_seed(seed, "eval", split, task.id)) for task in tasks]
        plain = await self.agent.play_all(plans, concurrency=settings.agent.concurrency)
        editor = self.editor.at(settings.evaluation.eval_temperature)
        evolutions = await skill_r1.evolve_all(
            editor, self.agent, tasks, self.seed_skill, options, seed=seed, tag=f"eval/{split}"
        )
        outcomes = [_outcome(split, False, rollout) for rollout in plain]
        return outcomes + [_last_outcome(split, evolution) for evolution in evolutions], evolutions

    def options(self) -> SkillR1Options:
        """Returns the sizes of training."""
        own = self.settings.skillr1
        return SkillR1Options(
            generations=own.generations,
            siblings=own.siblings,
            rollouts=own.skill_rollouts,
            mode=own.generation_mode,
            inter_coef=own.inter_coef,
            keep=own.keep_sibling,
            concurrency=self.settings.agent.concurrency,
            instances=own.instances,
            straggler_factor=self.settings.agent.straggler_factor,
        )

    def seed_skill(self, task: Task) -> SkillFile:
        """Returns the seed skill named after the task's family ("level1", "single-source-easy"), else the first."""
        name = re.sub(r"[^a-z0-9]+", "-", task.family.lower()).strip("-")
        return self.seeds.skills.get(name) or next(iter(self.seeds))


def _outcome(split: str, with_skill: bool, rollout: TaskRollout) -> EpisodeOutcome:
    value, info = rollout.reward.value, rollout.info
    success = None if value is None else value > 0
    return EpisodeOutcome(
        split,
        with_skill,
        rollout.task.family,
        success,
        info["steps"],
        info["tokens"],
        info["score"],
        error=failure(rollout.reward, str(info["ended_by"])),
    )


def _last_outcome(split: str, evolution: Evolution) -> EpisodeOutcome:
    """Returns the outcome of the first rollout under the last skill; a text that is no skill has failed."""
    last = evolution.generations[-1][evolution.kept[-1]]
    if last.rollouts:
        return _outcome(split, True, last.rollouts[0])
    success = None if last.written is None else False
    score = None if success is None else 0.0
    return EpisodeOutcome(split, True, evolution.task.family, success, 0, 0, score, error=last.error)
