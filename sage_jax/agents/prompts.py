"""The user messages of the step-wise convention: a fresh prompt every turn, and the review after the episode.

verl-agent, SkillRL and SkillMaster prompt like this: task, skills, the last H observations and actions, the current
observation, the admissible actions, the answer format. The words are ours. Texts of the environment are joined in,
never formatted, so braces in a task are harmless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sage_jax.skills import GENERAL, TOOLS, Skill, render_skills

ACT_FORMAT = (
    "First reason about what to do next between <think> and </think>. "
    "Then give one admissible action, copied as it stands, between <action> and </action>."
)
REVIEW_FORMAT = (
    "First reason briefly between <think> and </think>. Then call one tool, once, as JSON:\n"
    '<tool_call>{"name": "<tool>", "arguments": {"<argument>": "<text>", ...}}</tool_call>'
)
RECAP_STEPS = 12  # SkillMaster


@dataclasses.dataclass(frozen=True)
class Step:
    """An observation and the action that answered it."""

    observation: str
    action: str


@dataclasses.dataclass(frozen=True)
class ActPrompt:
    """What an act turn is told.

    Attributes:
      task: the goal in words.
      observation: the current one; at the first step, the room's description.
      admissible: actions on offer; "help" is left out of the prompt.
      history: all earlier steps of the episode, oldest first.
      history_length: H, how many of them are shown (SkillMaster: 12 on ALFWorld, 2 on WebShop).
      skills: rendered skills, "" for none.
    """

    task: str
    observation: str
    admissible: tuple[str, ...]
    history: tuple[Step, ...] = ()
    history_length: int = 12
    skills: str = ""


@dataclasses.dataclass(frozen=True)
class ReviewPrompt:
    """What the review turn is told.

    Attributes:
      task: the goal in words.
      category: the task's family, the only one a skill may be proposed for besides "general".
      success: the episode's outcome.
      reward: the episode's reward.
      steps: all steps of the episode, oldest first; the last `RECAP_STEPS` are shown.
      skills: the retrieved skills, shown with ids.
      style: of the skills, see `render_skills`.
    """

    task: str
    category: str
    success: bool
    reward: float
    steps: tuple[Step, ...]
    skills: tuple[Skill, ...] = ()
    style: str = "full"


def act_prompt(prompt: ActPrompt) -> str:
    """Returns the user message of one act turn."""
    parts = [f"You act in an environment of text. Your task is: {prompt.task}"]
    if prompt.skills:
        parts.append(f"What earlier episodes taught:\n{prompt.skills}")
    taken = len(prompt.history)
    shown = _last(prompt.history, prompt.history_length)
    if shown:
        parts.append(f"Steps taken so far: {taken}. The last {len(shown)}:\n{_recap(shown, taken - len(shown) + 1)}")
    parts.append(f"Observation {taken + 1}: {prompt.observation}")
    actions = "\n".join(a for a in prompt.admissible if a != "help")
    parts.append(f"Admissible actions:\n{actions}")
    parts.append(ACT_FORMAT)
    return "\n\n".join(parts)


def review_prompt(prompt: ReviewPrompt) -> str:
    """Returns the user message of the review turn."""
    outcome = "success" if prompt.success else "failure"
    total = len(prompt.steps)
    shown = _last(prompt.steps, RECAP_STEPS)
    skills = render_skills(prompt.skills, style=prompt.style, ids=True) or "none"
    parts = [
        "An episode is over. Decide what it should change in the skills that later episodes are given.",
        f"Task: {prompt.task}\nCategory: {prompt.category}\nOutcome: {outcome} after {total} steps, "
        f"reward {prompt.reward:g}",
        f"Skills that were shown:\n{skills}",
    ]
    if shown:
        parts.append(f"The last {len(shown)} steps:\n{_recap(shown, total - len(shown) + 1)}")
    parts.append(f"Tools:\n{_tools(prompt.category)}")
    parts.append(REVIEW_FORMAT)
    return "\n\n".join(parts)


def _last(steps: tuple[Step, ...], count: int) -> tuple[Step, ...]:
    return steps[max(len(steps) - count, 0) :]


def _recap(steps: Sequence[Step], first: int) -> str:
    lines = []
    for number, step in enumerate(steps, start=first):
        lines += [f"Observation {number}: {step.observation}", f"Action {number}: {step.action}"]
    return "\n".join(lines)


def _tools(category: str) -> str:
    purposes = {
        "propose_skill": f"adds a skill; category is {GENERAL} or {category}",
        "update_skill": "rewrites a shown skill; skill_id is its id or exact title",
        "keep_skill": "leaves the skills as they are",
    }
    return "\n".join(f"{name}({', '.join(arguments)}): {purposes[name]}" for name, arguments in TOOLS.items())
