"""What an agent that writes code is told: optionally how to work, the functions it has, and the task."""

from __future__ import annotations

from collections.abc import Sequence

from sage_jax.skills.programs import Program

GUIDE = """You work for a person by writing Python in a shell that keeps its names from turn to turn. Call the apps as
apis.<app>.<api>(name=value, ...); arguments are passed by name. What you print is shown to you after each turn.
- apis.api_docs.show_app_descriptions() lists the apps, apis.api_docs.show_api_descriptions(app_name=...) the APIs of
  one, apis.api_docs.show_api_doc(app_name=..., api_name=...) describes one.
- apis.supervisor has the person's profile, account passwords and more. Log in to an app to get an access token.
- Lists come in pages: read all of them.
- Write the solution as functions with parameters for what may differ from task to task, and call them in the same turn:
  they can then be used again in later tasks. Functions listed below are defined already: call them instead of writing
  them again; define one anew to correct it.
- When all is done, call apis.supervisor.complete_task(answer=...), with the answer alone, or without one if none is
  asked for.
Each turn, think in a sentence or two, then write one piece of code between <action> and </action>."""
_SHOWN = "You have these functions:"


def code_text(code: str) -> str:
    """How a turn of code is written."""
    return f"<action>\n{code}\n</action>"


def code_opening(observation: str, programs: Sequence[Program], *, guide: bool = False) -> str:
    """Returns the first user message: the guide, the functions that lie in the shell, the task."""
    parts = [GUIDE] if guide else []
    if programs:
        parts.append("\n\n".join([_SHOWN, *(program.code for program in programs)]))
    return "\n\n".join([*parts, observation])
