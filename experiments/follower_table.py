"""What the local scale's task LLM solves under a given skill: the room that an editor has to learn in.

    python -m experiments.follower_table --benchmark=webwalker
    python -m experiments.follower_table --benchmark=gaia

The last row is an oracle: it knows where each answer lies, which no question tells.
"""

import argparse
import asyncio
import collections
from collections.abc import Callable, Sequence

from sage_jax.agents.tool_agent import ToolAgent, ToolAgentOptions
from sage_jax.data.editor_corpus import IDLE_STEPS, SEED_SKILL, skill_body
from sage_jax.envs.gaia import GaiaFactory
from sage_jax.envs.gaia import TwinOptions as Worlds
from sage_jax.envs.gaia import make_tasks as world_tasks
from sage_jax.envs.webwalker import TwinOptions as Sites
from sage_jax.envs.webwalker import WebwalkerFactory
from sage_jax.envs.webwalker import make_tasks as site_tasks
from sage_jax.rollout.file_follower import FileFollower, step_for
from sage_jax.rollout.site_follower import STEP_OF, SiteFollower
from sage_jax.skills import SkillFile
from sage_jax.testing.local_pool import LocalPool
from sage_jax.types import Task

Steps = Callable[[Task], Sequence[str]]


def _site_step(task: Task) -> str:
    return STEP_OF.get(task.payload["form"], IDLE_STEPS[0])


def _file_step(task: Task) -> str:
    return step_for(task.payload["question"]) or IDLE_STEPS[0]


def _site_oracle(task: Task) -> Sequence[str]:
    place = "open archive" if task.payload["past"] else "open sections"
    return (place, "open groups", _site_step(task))


def _file_oracle(task: Task) -> Sequence[str]:
    way = "search pages" if task.payload["world"]["layout"] == "numbered" else "guess address"
    return (way, _file_step(task))


# benchmark -> skills by name; a guess is the best that can be written without knowing where the answer lies
SKILLS: dict[str, dict[str, Steps]] = {
    "webwalker": {
        "no skill": lambda task: (),
        "idle steps": lambda task: IDLE_STEPS,
        "fitting step alone": lambda task: (_site_step(task),),
        "guess: this year": lambda task: ("open sections", "open groups", _site_step(task)),
        "guess: last year": lambda task: ("open archive", "open groups", _site_step(task)),
        "oracle": _site_oracle,
    },
    "gaia": {
        "no skill": lambda task: (),
        "idle steps": lambda task: IDLE_STEPS,
        "fitting step alone": lambda task: (_file_step(task),),
        "guess: search": lambda task: ("search pages", _file_step(task)),
        "guess: address": lambda task: ("guess address", _file_step(task)),
        "oracle": _file_oracle,
    },
}


def main(argv: Sequence[str] | None = None) -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(prog="experiments.follower_table", description=__doc__)
    parser.add_argument("--benchmark", choices=tuple(SKILLS), default="webwalker")
    parser.add_argument("--slip", type=float, default=0.02, help="chance to overlook a step in a turn")
    parser.add_argument("--places", type=int, default=24, help="sites or worlds")
    args = parser.parse_args(argv)
    if args.benchmark == "webwalker":
        options = Sites(seed=0, train=args.places, valid=0, test=0, languages=("en",), past=0.5)
        tasks, factory, llm = site_tasks(options)["train"], WebwalkerFactory(), SiteFollower(slip=args.slip)
    else:
        worlds = Worlds(seed=0, train=args.places, valid=0, test=0, layouts=("numbered", "stale"))
        tasks, factory, llm = world_tasks(worlds)["train"], GaiaFactory(), FileFollower(slip=args.slip)
    agent = ToolAgent(llm, LocalPool(factory), ToolAgentOptions(max_steps=25, old_chars=0))
    families = sorted({task.family for task in tasks})
    print("| skill |", *(f"{family} |" for family in families), "all |")
    print("|---|", *("---|" for _ in families), "---|")
    for name, steps in SKILLS[args.benchmark].items():
        solved = _play(agent, tasks, steps)
        cells = [f"{100 * sum(solved[f]) / len(solved[f]):.0f} |" for f in families]
        every = [value for values in solved.values() for value in values]
        print(f"| {name} |", *cells, f"{100 * sum(every) / len(every):.0f} |", flush=True)
    factory.close()


def _play(agent: ToolAgent, tasks: Sequence[Task], steps: Steps) -> dict[str, list[float]]:
    """Returns the rewards of one rollout a task, by family."""
    plans = []
    for task in tasks:
        body = skill_body(steps(task))
        plans.append((task, SkillFile(SEED_SKILL.name, SEED_SKILL.description, body) if body else None, 0))
    solved = collections.defaultdict(list)
    for rollout in asyncio.run(agent.play_all(plans, concurrency=4)):
        solved[rollout.task.family].append(rollout.reward.value or 0.0)
    return solved


if __name__ == "__main__":
    main()
