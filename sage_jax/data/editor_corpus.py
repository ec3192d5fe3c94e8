"""What the small editor of the local scale is taught before RL: the form of a skill, and nothing about which one helps.

The lessons are prompts as `agents.editor` writes them, answered by steps drawn at random: some of those that the local
task LLM follows, some that do nothing. Which steps a question needs is left to RL.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sage_jax.agents.editor import Attempt, editor_message
from sage_jax.agents.tool_agent import TaskRollout
from sage_jax.data.sft import Message
from sage_jax.data.word_tokenizer import split_words
from sage_jax.rollout.follower_llm import STEPS
from sage_jax.skills.folders import SkillFile
from sage_jax.types import RewardResult, Status, Task

IDLE_STEPS = ("read news", "ask members")  # the task LLM does not know what to do with them
STEPS_OF_A_SKILL = 4
SEED_SKILL = SkillFile("walk-site", "answer a question about a site", "read news")
_ATTRIBUTES = "chair room fee seats lecturer campus credits lead budget staff designer zone price levels".split()
_FORMS = (
    "What is the {a} of {x} in the 2025 edition?",
    "What is the {a} of {x}, and what is the {a} of {y}, in the 2025 edition?",
    "Add up the {a} of {x} and of {y} in the 2025 edition. What is the total?",
    "Which has the larger {a} in the 2025 edition, {x} or {y}?",
)
_DEPTHS = ("easy", "medium", "hard")
_FAMILIES = tuple(f"{kind}-{depth}" for kind in ("single_source", "multi_source") for depth in _DEPTHS)


def skill_body(steps: Sequence[str]) -> str:
    """Returns the steps as the small editor writes them."""
    return " . ".join(steps)


def lesson(rng: random.Random) -> list[Message]:
    """Returns one prompt and an answer of random steps."""
    form = rng.choice(_FORMS)
    question = form.format(a=rng.choice(_ATTRIBUTES), x="Workshop Tavira", y="Workshop Maren")
    task = Task("lesson", "webwalker", "train", rng.choice(_FAMILIES), {"question": question})
    history = [Attempt(0, SEED_SKILL, tuple(_rollout(task, rng) for _ in range(2)))]
    for generation in range(1, rng.randint(1, 3)):
        skill = SkillFile(SEED_SKILL.name, SEED_SKILL.description, _random_body(rng))
        history.append(Attempt(generation, skill, tuple(_rollout(task, rng) for _ in range(2))))
    length = lambda text: len(split_words(text))  # noqa: E731
    message = editor_message(question, task.family, history, form="body", budget=200, length=length)
    return [("user", message, False), ("assistant", _random_body(rng), True)]


def editor_words() -> set[str]:
    """Returns every word of the lessons, and those that any prompt of the local scale may hold."""
    rng, words = random.Random(0), set()
    for _ in range(400):
        for _, text, _ in lesson(rng):
            words |= set(split_words(text))
    extra = "unreadable tokens longer than skill no answer gave steps malformed course project update workshop"
    return words | set(split_words(extra)) | set("0123456789")


def _random_body(rng: random.Random) -> str:
    return skill_body(rng.sample((*STEPS, *IDLE_STEPS), STEPS_OF_A_SKILL))


def _rollout(task: Task, rng: random.Random) -> TaskRollout:
    solved = rng.random() < 0.3
    outcomes = [rng.choice(("ok", "ok", "ok", "not_found")) for _ in range(rng.randint(1, 12))]
    info = {"outcomes": outcomes, "ended_by": rng.choice(("answer", "steps")), "success": solved}
    answer = rng.choice(("unknown", "unknown", str(rng.randrange(400)), "Workshop Maren"))
    return TaskRollout(task, RewardResult(float(solved), Status.OK), answer, (), info)
