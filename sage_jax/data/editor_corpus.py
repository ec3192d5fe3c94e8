"""What the small editor of the local scale is taught before RL: the form of a skill, and a faint idea of the work.

The lessons are prompts as `agents.editor` writes them, answered by an imperfect editor: it keeps some of the steps it
sees, more of them when they solved something, and adds others by chance, now and then one that fits the words of the
question. Where things are found, what a failure says and what to do about it is left to RL.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from sage_jax.agents.editor import Attempt, editor_message
from sage_jax.agents.tool_agent import TaskRollout
from sage_jax.data.sft import Message
from sage_jax.data.word_tokenizer import split_words
from sage_jax.envs.gaia.questions import world_tasks
from sage_jax.envs.gaia.worlds import WorldSpec
from sage_jax.envs.webwalker import vocabulary
from sage_jax.rollout import file_follower, site_follower
from sage_jax.skills.folders import SkillFile
from sage_jax.types import RewardResult, Status, Task

IDLE_STEPS = ("read news", "ask members")  # the task LLM does not know what to do with them
STEPS_OF_A_SKILL = 4
HISTORY_TOKENS = 24  # the last skill and whether it worked
SEED_SKILL = SkillFile("answer-question", "answer a question with tools", "read news")
KEEP_SOLVED, KEEP_FAILED, FIT = 0.97, 0.4, 0.3  # chances to keep a step, and that a new one is the fitting one

_LESSON_SEED = 10**6  # worlds of lessons are none of a run's


@dataclasses.dataclass(frozen=True)
class Work:
    """What lessons of one benchmark are about.

    Attributes:
      steps: that its local task LLM follows.
      ask: rng -> a question, and the step that its words call for ("" for none).
    """

    steps: tuple[str, ...]
    ask: Callable[[random.Random], tuple[str, str]]


def skill_body(steps: Sequence[str]) -> str:
    """Returns the steps as the small editor writes them."""
    return " . ".join(steps)


def _ask_site(rng: random.Random) -> tuple[str, str]:
    form = rng.choice(tuple(vocabulary.QUESTIONS))
    kind = rng.choice(vocabulary.KINDS)
    names = vocabulary.item_names(kind, "en", 2, rng)
    label = vocabulary.attribute_label(kind, rng.choice(vocabulary.ATTRIBUTES), "en")
    words = {"a": label, "x": names[0], "y": names[1], "year": rng.randrange(2023, 2028)}
    return vocabulary.QUESTIONS[form][0].format(**words), site_follower.STEP_OF.get(form, "")


def _ask_files(rng: random.Random) -> tuple[str, str]:
    world = WorldSpec(_LESSON_SEED + rng.randrange(10**6), 0)
    question = rng.choice(world_tasks(world, "train")).payload["question"]
    return question, file_follower.step_for(question)


WORKS = {"webwalker": Work(site_follower.STEPS, _ask_site), "gaia": Work(file_follower.STEPS, _ask_files)}


def lessons(rng: random.Random, answers: int) -> list[list[Message]]:
    """Returns one prompt with each of several answers of an imperfect editor: what it may do, not what it did once."""
    work = rng.choice(tuple(WORKS.values()))
    question, fitting = work.ask(rng)
    task = Task("lesson", "", "train", "", {"question": question})
    history, last = [Attempt(0, SEED_SKILL, _rollouts(task, rng))], [SEED_SKILL.body]
    for generation in range(1, rng.randint(1, 3)):
        last = _edit(work, fitting, last, history[-1], rng)
        skill = SkillFile(SEED_SKILL.name, SEED_SKILL.description, skill_body(last))
        history.append(Attempt(generation, skill, _rollouts(task, rng)))
    length = lambda text: len(split_words(text))  # noqa: E731
    message = editor_message(question, history, form="body", budget=HISTORY_TOKENS, length=length)
    edits = (skill_body(_edit(work, fitting, last, history[-1], rng)) for _ in range(answers))
    return [[("user", message, False), ("assistant", edit, True)] for edit in edits]


def editor_words() -> set[str]:
    """Returns every word of the lessons, and those that any prompt of the local scale may hold."""
    rng, words = random.Random(0), set()
    for _ in range(400):
        for _, text, _ in lessons(rng, 1)[0]:
            words |= {word for word in split_words(text) if not word.isdigit()}
    extra = "untried unreadable tokens longer than skill no answer gave steps malformed unknown"
    return words | set(split_words(extra)) | set("0123456789")


def _edit(work: Work, fitting: str, last: Sequence[str], attempt: Attempt, rng: random.Random) -> list[str]:
    """Returns the steps of the imperfect editor: in each place the one that is there, or a new one."""
    solved = any(rollout.reward.value for rollout in attempt.rollouts)
    keep, steps = KEEP_SOLVED if solved else KEEP_FAILED, []
    for place in range(STEPS_OF_A_SKILL):
        if place < len(last) and rng.random() < keep:
            steps.append(last[place])
        elif fitting and rng.random() < FIT:
            steps.append(fitting)
        else:
            steps.append(rng.choice((*work.steps, *IDLE_STEPS)))
    return steps


def _rollouts(task: Task, rng: random.Random) -> tuple[TaskRollout, ...]:
    chance = rng.choice((0.0, 0.0, 0.5, 1.0, 1.0))  # the rollouts of a skill are alike
    return tuple(_rollout(task, rng.random() < chance, rng) for _ in range(2))


def _rollout(task: Task, solved: bool, rng: random.Random) -> TaskRollout:
    outcomes = ["ok"] * rng.randint(1, 12) + ["not_found"] * rng.choice((0, 0, 0, 1))
    info = {"outcomes": outcomes, "ended_by": rng.choice(("answer", "steps")), "success": solved}
    answer = rng.choice(("unknown", str(rng.randrange(400)), "Workshop Maren"))
    return TaskRollout(task, RewardResult(float(solved), Status.OK), answer, (), info)
