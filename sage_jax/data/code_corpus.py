"""Pre-training text for code: traces of a sloppy programmer in the lite world's apps, drawn without end.

It looks up the documents of an app it has no function for, defines and calls, reads what went wrong, and completes the
task. It makes mistakes that a hurried person makes (`SLIPS`), about as often as not; where it is shown functions it
calls them more often than not. So a model that imitates it can do the tasks and has much to learn from rewards. The app
of test_challenge is never in it. A conversation is a list of `data.sft.Message`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from sage_jax.agents.code_prompts import code_opening, code_text
from sage_jax.data.code_tokenizer import build_code_tokenizer
from sage_jax.data.sft import Message
from sage_jax.envs.appworld.lite import apps
from sage_jax.envs.appworld.lite.state import State
from sage_jax.envs.appworld.twin.base import COMPLETE, Draft, Person, Solution, Template, TwinTask
from sage_jax.envs.appworld.twin.words import FIRST_NAMES, LAST_NAMES, RELATIONSHIPS, THINGS, TOPICS, VERBS
from sage_jax.envs.appworld.twin.world import SEEN, make_person, solution_functions
from sage_jax.skills.programs import extract_programs

# What is written wrong, by template: (right, wrong). The first two fit many.
_FIRST_PAGE = ("all_pages(apis.", "first_page(apis.")
_PHONE_NAME = ('profile["phone_number"] if app == "phone" else profile["email"]', 'profile["email"]')
SLIPS: dict[str, tuple[tuple[str, str], ...]] = {
    "note_count": (_FIRST_PAGE,),
    "note_pin": (_FIRST_PAGE, ('if tag in note["tags"] and not note["pinned"]', 'if not note["pinned"]')),
    "note_delete": (_FIRST_PAGE,),
    "note_append": (_FIRST_PAGE, ('content + "\\n" + line', "content + line")),
    "note_longest": (_FIRST_PAGE, ("lines > most", "lines < most")),
    "todo_count": ((' if not task["is_completed"]', ""),),
    "todo_complete": (('task["priority"] == "high" and not task["is_completed"]', 'not task["is_completed"]'),),
    "todo_tidy": (('if task["is_completed"]', 'if not task["is_completed"]'),),
    "todo_from_note": (_FIRST_PAGE, ('line.removeprefix("- ")', "line")),
    "contact_number": (_FIRST_PAGE, _PHONE_NAME),
    "contact_count": (_FIRST_PAGE, _PHONE_NAME),
    "alarms_off": (_FIRST_PAGE, _PHONE_NAME, ('start <= alarm["time"] < end', 'alarm["time"] < end')),
    "contact_note": (_FIRST_PAGE, ('    mine.sort(key=lambda c: c["first_name"])\n', "")),
    "file_count": ((" if path.endswith(ending)", ""),),
    "file_clean": (("        if path.endswith(ending):\n            apis", "        apis"),),
    "file_totals": (
        ("round(total, 2)", "round(total)"),
        ('for line in content.split("\\n") if', "for line in [content] if"),
    ),
    "file_from_note": (_FIRST_PAGE, ("content=content, ", "")),
}
SLIP_CHANCE = 0.5  # of a definition
USE_CHANCE = 0.65  # of a call where the function is shown
LOOKUP_CHANCE = 0.8  # of looking up documents before defining
_WORDS = (*FIRST_NAMES, *LAST_NAMES, *TOPICS, *THINGS, *VERBS, *RELATIONSHIPS)
_MOST_TEXT = 600  # characters of an output


class LocalApis:
    """`apis` as the shell has it, without a sandbox: for the project's own code only, never for an agent's."""

    def __init__(self, state: State, app: str | None = None) -> None:
        """Of one world."""
        self._state, self._app = state, app

    def __getattr__(self, name: str) -> Any:
        if self._app is None:
            return LocalApis(self._state, name)
        return lambda **arguments: json.loads(json.dumps(apps.call(self._state, self._app or "", name, arguments)))

    __getitem__ = __getattr__


class LocalShell:
    """Runs the project's own code in this process, and tells what a lite environment would tell."""

    def __init__(self, person: Person, task: TwinTask) -> None:
        """With a fresh world."""
        self._names: dict[str, Any] = {"apis": LocalApis(State(person, {}, task))}

    def run(self, code: str) -> tuple[bool, str]:
        """Returns whether code ran through, and what the agent sees."""
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "<code>", "exec"), self._names)
        except Exception as error:  # whatever the slips lead to
            lines = code.splitlines()
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<code>"]
            shown = "".join(
                f'  File "<code>", line {f.lineno}, in {f.name}\n    {lines[(f.lineno or 1) - 1].strip()}\n'
                for f in frames
                if (f.lineno or 1) <= len(lines)
            )
            name = "Exception" if isinstance(error, apps.CallFault) else type(error).__name__
            return False, f"Execution failed. Traceback:\n{shown}{name}: {error}"[:_MOST_TEXT]
        return True, (printed.getvalue() or "Execution successful.")[:_MOST_TEXT]


def slipped(template: Template, rng: random.Random) -> str:
    """Returns the expert's functions with one mistake."""
    right, wrong = rng.choice(SLIPS[template.name])
    functions = solution_functions(template)
    if (right, wrong) == _FIRST_PAGE:
        functions = solution_functions(template, pages=False).replace("all_pages(apis.", "apis.")
        return _drop_first_argument_comma(functions)
    return functions.replace(right, wrong)


def _drop_first_argument_comma(functions: str) -> str:
    """Turns `apis.x.y, a=b)` into the call `apis.x.y(a=b)`."""
    for template in SEEN:
        for app in template.apps:
            for name in apps.APIS[app]:
                functions = functions.replace(f"apis.{app}.{name}, ", f"apis.{app}.{name}(")
    return functions


def lookups(template: Template) -> tuple[str, ...]:
    """Returns the turns that read the documents of a template's apps."""
    return tuple(f"print(apis.api_docs.show_api_descriptions(app_name={app!r}))" for app in template.apps)


def code_trace(rng: random.Random) -> list[Message]:
    """One task, from the opening to its completion."""
    template = rng.choice(SEEN)
    person = make_person(rng.randrange(300), rng)
    draft = rng.choice(template.make(person, rng))
    task = _task(template, draft)
    shell = LocalShell(person, task)
    shown = ""
    if rng.random() < 0.5:
        shown = slipped(template, rng) if rng.random() < 0.35 else solution_functions(template)
        shell.run(shown)
    messages = [("user", opening(person, draft.instruction, shown), False)]
    for code in _turns(template, draft, shell, bool(shown), rng):
        ran, text = shell.run(code)
        messages += [("assistant", code_text(code), True), ("user", text, False)]
        if not ran:  # written anew, without the mistake
            code = Solution(solution_functions(template), draft.call).turns()[0]
            messages += [("assistant", code_text(code), True), ("user", shell.run(code)[1], False)]
    return [*messages, ("assistant", code_text(COMPLETE), True)]


def _turns(template: Template, draft: Draft, shell: LocalShell, shown: bool, rng: random.Random) -> Iterator[str]:
    """Yields the turns before the completion."""
    if shown and rng.random() < USE_CHANCE:
        yield Solution("", draft.call).turns_with_library()[0]
        return
    if rng.random() < LOOKUP_CHANCE:
        yield from lookups(template)
    functions = slipped(template, rng) if rng.random() < SLIP_CHANCE else solution_functions(template)
    yield Solution(functions, draft.call).turns()[0]


def copy_exercise(rng: random.Random) -> list[Message]:
    """Repeat a list of words: where induction heads form first, since no token can be had in another way."""
    text = " ".join(rng.sample(_WORDS, 20))
    return [("user", text, False), ("assistant", text, True)]


def call_exercise(rng: random.Random) -> list[Message]:
    """Call a function, of which the head alone is shown, with what an instruction says."""
    template = rng.choice(SEEN)
    person = make_person(rng.randrange(300), rng)
    draft = rng.choice(template.make(person, rng))
    head = extract_programs(template.functions)[-1].source.split("\n")[0]
    text = f"{head}\n\n{draft.instruction}"
    return [("user", text, False), ("assistant", code_text(Solution("", draft.call).turns_with_library()[0]), True)]


def calls_exercise(rng: random.Random) -> list[Message]:
    """Call one function after another for one instruction after another: many words to copy in few tokens."""
    heads, texts, calls = [], [], []
    for template in rng.sample(SEEN, rng.randint(2, 4)):
        person = make_person(rng.randrange(300), rng)
        heads.append(extract_programs(template.functions)[-1].source.split("\n")[0])
        for draft in rng.sample(template.make(person, rng), rng.randint(1, 3)):
            texts.append(draft.instruction)
            calls.append(f"answer = {draft.call}\nprint(answer)")
    order = rng.sample(range(len(texts)), len(texts))
    asked = "\n\n".join([*heads, *(texts[i] for i in order)])
    return [("user", asked, False), ("assistant", code_text("\n".join(calls[i] for i in order)), True)]


def conversations(rng: random.Random, progress: Callable[[], float]) -> Iterator[list[Message]]:
    """Yields conversations for ever; `progress()` in [0, 1] moves from calls alone to whole tasks."""
    while True:
        if rng.random() < max(0.4, 0.9 - 2 * progress()):  # of conversations; short ones
            yield rng.choices((calls_exercise, call_exercise, copy_exercise), (6, 3, 1))[0](rng)
        else:
            yield code_trace(rng)


def opening(person: Person, instruction: str, functions: str = "") -> str:
    """Returns the first message of an episode, as the agent meets it."""
    who = f"{person.first_name} {person.last_name} ({person.email}, {person.phone_number})"
    return code_opening(f"{instruction}\n\nMy name is {who}.", extract_programs(functions))


@functools.lru_cache(maxsize=2)
def make_tokenizer(size: int) -> Any:
    """Returns the tokenizer of the corpus."""
    rng = random.Random(0)
    texts = [text for _ in range(600) for make in (code_trace, copy_exercise) for _, text, _ in make(rng)]
    return build_code_tokenizer(texts, size)


def _task(template: Template, draft: Draft) -> TwinTask:
    solution = Solution(solution_functions(template), draft.call)
    return TwinTask("corpus_1", 0, draft.instruction, template.difficulty, draft.answer, draft.changes, solution)
