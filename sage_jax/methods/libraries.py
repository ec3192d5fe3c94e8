"""What a rollout of a chain learns into: a library of programs (the paper's), a bank of texts, or nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from sage_jax.agents.episode import EpisodePlan
from sage_jax.agents.parsing import parse_review
from sage_jax.rollout.engine import LENGTH
from sage_jax.skills import Provenance, SkillBank, apply_edit
from sage_jax.skills.program_retrieval import Embedder, ProgramRetrieval, retrieve_programs
from sage_jax.skills.programs import Origin, ProgramLibrary, extract_programs, named_uses
from sage_jax.types import Trajectory


@dataclasses.dataclass(frozen=True)
class NoLibrary:
    """Learns and shows nothing."""

    def __len__(self) -> int:
        return 0

    def show(self, plan: EpisodePlan) -> EpisodePlan:
        """Returns the plan."""
        return plan

    def learn(self, trajectory: Trajectory, position: int) -> NoLibrary:
        """Returns itself."""
        return self

    def used(self, trajectory: Trajectory) -> frozenset[int]:
        """Returns nothing."""
        return frozenset()


@dataclasses.dataclass(frozen=True)
class FixedBank:
    """A bank of texts that every task is shown and none changes: SkillMaster's, in evaluations by scenario."""

    bank: SkillBank

    def __len__(self) -> int:
        return len(self.bank)

    def show(self, plan: EpisodePlan) -> EpisodePlan:
        """Returns the plan with the bank to retrieve from."""
        return dataclasses.replace(plan, bank=self.bank)

    def learn(self, trajectory: Trajectory, position: int) -> FixedBank:
        """Learns nothing."""
        return self

    def used(self, trajectory: Trajectory) -> frozenset[int]:
        """Returns nothing: no task of the chain wrote what was shown."""
        return frozenset()


@dataclasses.dataclass(frozen=True)
class CodeLibrary:
    """Functions that the agent's code defined and that ran (`methods.chains.Library`).

    Attributes:
      programs: by name.
      credit: what counts as use: "trace", it was called and returned; "name", the code names it (as published).
      retrieval: how programs are chosen for a task; None gives all of them, as in training.
      embed: texts -> unit vectors, for retrievals that compare them.
    """

    programs: ProgramLibrary = ProgramLibrary()
    credit: str = "trace"
    retrieval: ProgramRetrieval | None = None
    embed: Embedder | None = None

    def __len__(self) -> int:
        return len(self.programs)

    def show(self, plan: EpisodePlan) -> EpisodePlan:
        """Returns the plan with the programs that its task is given."""
        shown = self.programs.programs
        if self.retrieval is not None:
            task = plan.task.payload
            shown = retrieve_programs(
                shown,
                query=str(task.get("instruction", "")),
                scenario=str(task.get("scenario", "")),
                config=self.retrieval,
                embed=self.embed,
            )
        return dataclasses.replace(plan, programs=shown, credit=self.credit)

    def learn(self, trajectory: Trajectory, position: int) -> CodeLibrary:
        """Counts what was used, then keeps every function of the code that ran; one of a known name takes its place."""
        programs = self.programs.record_use(self._names(trajectory), won=bool(trajectory.info["success"]))
        for turn in trajectory.turns:
            if turn.info.get("ran"):
                origin = Origin(
                    task_id=trajectory.task.id,
                    scenario=str(trajectory.task.payload.get("scenario", "")),
                    query=str(trajectory.task.payload.get("instruction", "")),
                    rollout=f"{trajectory.group}/{trajectory.seed}",
                    policy_version=turn.weight_version,
                    position=position,
                )
                programs = programs.save(extract_programs(str(turn.info["action"]), origin))
        return dataclasses.replace(self, programs=programs)

    def used(self, trajectory: Trajectory) -> frozenset[int]:
        """Returns the positions whose programs the episode used, by `credit`."""
        names = self._names(trajectory)
        return frozenset(program.origin.position for program in self.programs.programs if program.name in names)

    def _names(self, trajectory: Trajectory) -> frozenset[str]:
        """Returns the shown programs that the episode used."""
        shown = trajectory.info.get("programs", ())
        if self.credit == "trace":
            return frozenset(trajectory.info.get("called", ())) & frozenset(shown)
        # Of the whole episode's code: a function that is defined anew in any turn is no longer the stored one.
        code = "\n".join(str(turn.info["action"]) for turn in trajectory.turns if turn.info.get("ran"))
        return named_uses(code, shown)


@dataclasses.dataclass(frozen=True)
class TextLibrary:
    """Skills in words, for environments that run no code (`methods.chains.Library`).

    After each task the agent reviews it with one edit (SkillMaster's three tools); the next task is shown the bank.

    Attributes:
      bank: the texts.
      positions: skill id -> position whose review wrote it last.
    """

    bank: SkillBank = dataclasses.field(default_factory=SkillBank)
    positions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.bank)

    def show(self, plan: EpisodePlan) -> EpisodePlan:
        """Returns the plan with the bank to retrieve from, and with a review behind it."""
        return dataclasses.replace(plan, bank=self.bank, review=True)

    def learn(self, trajectory: Trajectory, position: int) -> TextLibrary:
        """Makes the edit that the review turn calls for; one that cannot be made leaves the library as it is."""
        turn = trajectory.turns[-1] if trajectory.turns else None
        if turn is None or turn.stream != "review":
            return self
        call = parse_review(str(turn.info["text"]), truncated=turn.finish_reason == LENGTH).call
        origin = Provenance(task_id=trajectory.task.id, policy_version=turn.weight_version)
        outcome = apply_edit(self.bank, call, task_category=trajectory.task.family, provenance=origin)
        if not outcome.kind.changes_bank:
            return self
        return TextLibrary(outcome.bank, {**self.positions, outcome.skill_id: position})

    def used(self, trajectory: Trajectory) -> frozenset[int]:
        """Returns the positions whose skills the episode was shown and spoke of.

        Unspecified: the paper's skills are functions. Here a text counts as used when one act turn holds every word of
        its principle, as code uses a function that it names.
        """
        acts = [_words(str(turn.info["text"])) for turn in trajectory.turns if turn.stream == "act"]
        shown = set(trajectory.info["skills"])
        return frozenset(
            self.positions[skill.id]
            for skill in self.bank
            if skill.id in shown & self.positions.keys() and any(_words(skill.principle) <= words for words in acts)
        )


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))
