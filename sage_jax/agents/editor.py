"""The editor of Skill-R1: reads a task and what was tried on it, and writes the next skill.

What the editor is shown never holds the reference answer: of each rollout it sees whether it solved the task, what it
answered, and how its tool calls ended.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from sage_jax.agents.chat import ChatTemplate
from sage_jax.agents.tool_agent import TaskRollout
from sage_jax.errors import ConfigError, EngineError, SkillError
from sage_jax.rollout.engine import LENGTH, Engine, GenerateRequest, SamplingParams, require_whole
from sage_jax.skills.folders import SkillFile, parse_skill
from sage_jax.types import Turn

FORMATS = ("file", "body")
STREAM = "skill"
_MOST_ANSWER = 80
_SHORT_BODY = 100  # characters
_ASK = {
    "file": (
        "You improve a skill that another model follows. Keep what helped, mend what failed, stay general: never write "
        "an answer to the task into the skill. Reply with the whole new skill and nothing else:\n"
        "---\nname: lower-case-words\ndescription: when to use it\n---\nthe procedure, step by step"
    ),
    "body": "write the steps of a better skill .",
}


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One generation as the editor sees it: a skill and the rollouts of the task LLM under it.

    Attributes:
      generation: 0 for the seed skill.
      skill: None for a text that could not be read as one.
      problem: why not.
      rollouts: with their rewards; a rollout without one is not shown.
    """

    generation: int
    skill: SkillFile | None
    rollouts: tuple[TaskRollout, ...]
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Written:
    """A generated skill.

    Attributes:
      turn: ids and log-probabilities, for the update.
      skill: None when the text is no skill.
      problem: why it is none.
    """

    turn: Turn
    skill: SkillFile | None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class EditorOptions:
    """How skills are written. Raises ConfigError naming the field.

    Attributes:
      format: "file" (a whole SKILL.md), or "body" (the procedure alone, under the seed skill's name: for small models).
      history_tokens: of the prompt's history at most.
      skill_tokens: of a skill at most.
      temperature, top_p, top_k: of sampling.
    """

    format: str = "file"
    history_tokens: int = 3000
    skill_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"skill_format={self.format!r}: must be one of {', '.join(FORMATS)}")
        for name in ("history_tokens", "skill_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


class Editor:
    """Writes skills with an engine."""

    def __init__(
        self, engine: Engine, tokenizer: Any, options: EditorOptions, *, encode: Callable[[str], tuple[int, ...]]
    ):
        """Takes the engine of the policy that is trained, and its tokenizer."""
        self._engine, self._tokenizer, self.options, self._encode = engine, tokenizer, options, encode
        self._template = ChatTemplate.from_tokenizer(tokenizer)

    def at(self, temperature: float) -> Editor:
        """Returns the same editor sampling at another temperature."""
        options = dataclasses.replace(self.options, temperature=temperature)
        return Editor(self._engine, self._tokenizer, options, encode=self._encode)

    def prompt(self, question: str, history: Sequence[Attempt]) -> tuple[int, ...]:
        """Returns the ids of the prompt; the history is cut to its budget, oldest generations first."""
        options = self.options
        text = editor_message(
            question,
            history,
            form=options.format,
            budget=options.history_tokens,
            length=lambda text: len(self._encode(text)),
        )
        return self._template.user(self._encode(text), first=True)

    async def write(self, name: str, prompt: tuple[int, ...], seed: int, parent: SkillFile) -> Written:
        """Writes one skill.

        Args:
          name: of the request, unique among running ones.
          prompt: from `prompt`; siblings share it.
          seed: of the sampling.
          parent: gives name and description in format "body".

        Raises:
          EngineError: generation failed, or the prompt leaves no room.
        """
        options = self.options
        sampling = SamplingParams(
            max_new_tokens=options.skill_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            stop_token_ids=self._template.stop_ids,
            seed=seed,
        )
        try:
            result = require_whole(await self._engine.generate(GenerateRequest(name, name, prompt, sampling)), name)
        finally:
            await self._engine.end_session(name)
        if not result.ids:
            raise EngineError(f"{name}: no room for a skill behind {len(prompt)} tokens of prompt")
        text = self._tokenizer.decode(result.ids, skip_special_tokens=True)
        skill, problem = self._read(text, parent, truncated=result.finish_reason == LENGTH)
        turn = Turn(
            stream=STREAM,
            prompt_ids=prompt,
            output_ids=result.ids,
            logprobs=result.logprobs,
            sampled_logprobs=result.sampled_logprobs,
            starts_context=True,
            weight_version=result.weight_version,
            weight_versions=result.weight_versions,
            finish_reason=result.finish_reason,
            info={"text": text, "problem": problem},
        )
        return Written(turn, skill, problem)

    def _read(self, text: str, parent: SkillFile, *, truncated: bool) -> tuple[SkillFile | None, str]:
        if truncated:
            return None, f"longer than {self.options.skill_tokens} tokens"
        try:
            if self.options.format == "file":
                return parse_skill(text.partition("</think>")[2] or text), ""
            return SkillFile(parent.name, parent.description, text.strip()), ""
        except SkillError as error:
            return None, str(error)


def editor_message(
    question: str, history: Sequence[Attempt], *, form: str, budget: int, length: Callable[[str], int]
) -> str:
    """Returns the one message that the editor answers (arguments as in `render_history`; `form` as in the options).

    The task's family is not told: how hard a question is, is a label of the benchmark and no part of the question.
    """
    shown = render_history(history, form=form, budget=budget, length=length)
    return f"{_ASK[form]}\n\nTask: {question}\n\n{shown}"


def render_history(history: Sequence[Attempt], *, form: str = "file", budget: int, length: Callable[[str], int]) -> str:
    """Returns the history as text of at most `budget` tokens.

    The newest generation comes with a line for each rollout and then its whole skill, so that what is to be edited
    stands last. Earlier ones are one line each, as many of the latest as fit: a body of one short line itself, else the
    description. A newest generation that is too long by itself loses its rollouts' lines first and then the end of its
    skill.

    Args:
      history: oldest first, at least one.
      form: "body" shows the newest skill's body alone.
      budget: in tokens.
      length: tokens of a text.
    """
    newest = history[-1]
    head = f"Generation {newest.generation} {_score(newest)}:"
    name = f"generation {newest.generation}"
    lines = [f"- {name}, {_describe(rollout, number)}" for number, rollout in enumerate(_rewarded(newest), start=1)]
    if newest.skill is None:
        skill = f"(no skill: {newest.problem})"
    else:
        skill = newest.skill.body.strip() if form == "body" else newest.skill.text
    text = "\n".join([*lines, head, skill])
    while lines and length(text) > budget:
        lines.pop()
        text = "\n".join([*lines, head, skill])
    while skill and length(text) > budget:
        skill = skill[: len(skill) * 3 // 4]
        text = f"{head}\n{skill}"
    for attempt in reversed(history[:-1]):
        longer = f"Generation {attempt.generation} {_score(attempt)}: {_summary(attempt)}\n{text}"
        if length(longer) > budget:
            break
        text = longer
    return text


def _summary(attempt: Attempt) -> str:
    if attempt.skill is None:
        return f"no skill: {attempt.problem}"
    body = attempt.skill.body.strip()
    return body if len(body) <= _SHORT_BODY and "\n" not in body else attempt.skill.description


def _rewarded(attempt: Attempt) -> list[TaskRollout]:
    return [rollout for rollout in attempt.rollouts if rollout.reward.value is not None]


def _score(attempt: Attempt) -> str:
    """Returns a word for the outcome, which a small editor reads more easily than a number, and the number."""
    rewarded = _rewarded(attempt)
    solved = sum(rollout.reward.value > 0 for rollout in rewarded)
    if attempt.skill is not None and not rewarded:
        return "untried"
    word = "failed" if not solved else "helped" if solved < len(rewarded) else "worked"
    return f"{word}, solved {solved} of {len(rewarded)}"


def _describe(rollout: TaskRollout, number: int) -> str:
    """Returns one line on a rollout."""
    outcome = "solved" if rollout.reward.value else "failed"
    calls = collections.Counter(rollout.info["outcomes"])
    counts = ", ".join(f"{count} {name}" for name, count in sorted(calls.items()))
    answer = " ".join(rollout.answer.split())[:_MOST_ANSWER]
    said = f'answered "{answer}"' if answer else f"gave no answer ({rollout.info['ended_by'][:_MOST_ANSWER]})"
    return f"rollout {number}: {outcome}, {said}; calls: {counts or 'none'}"
