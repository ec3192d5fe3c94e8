"""SAGE's cold start at full scale: conversations of a stronger model, kept where it solved the whole scenario.

Each scenario is played in order with a library carried along, so that the set shows functions being made and being
used. What is kept lies in one JSONL file, an SFT set (`data.sft_sets`); what was tried lies beside it, so that the same
command goes on where it stopped.

# Deviation: the paper trains on the last turn of each example; here an example is a whole conversation with a loss on
every turn of the model, which trains on the same tokens once each.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import pathlib
from collections.abc import Callable, Sequence

from sage_jax.agents.llm_coder import LlmCoder
from sage_jax.methods.chains import Chain, ChainRollout, play_chains
from sage_jax.methods.libraries import CodeLibrary
from sage_jax.seeding import derive_seed


class ExpertSet:
    """The file of kept conversations, and beside it `<name>.tried` with one line an attempt that came to an end."""

    def __init__(self, path: pathlib.Path, chains: Sequence[Chain]) -> None:
        """Opens or continues a set; conversations of a scenario that is not whole are taken out."""
        self.path, self._tried = path, path.with_name(path.name + ".tried")
        path.parent.mkdir(parents=True, exist_ok=True)
        sizes = {chain.key: len(chain.tasks) for chain in chains}
        found: dict[str, list[str]] = {}
        for line in _whole_lines(path):
            found.setdefault(json.loads(line)["scenario"], []).append(line)
        kept = {key: lines for key, lines in found.items() if len(lines) == sizes.get(key, len(lines))}
        temporary = path.with_name(path.name + ".part")
        temporary.write_text("".join(line + "\n" for lines in kept.values() for line in lines))
        os.replace(temporary, path)
        self.kept = set(kept)
        self.attempts: dict[str, int] = {}
        for line in _whole_lines(self._tried):
            key = json.loads(line)["scenario"]
            self.attempts[key] = self.attempts.get(key, 0) + 1

    def add(self, rollout: ChainRollout) -> bool:
        """Notes an attempt; returns whether its conversations were kept. What the machine lost counts for nothing."""
        played, key = rollout.trajectories, rollout.chain.key
        if any(trajectory.reward.value is None for trajectory in played):
            return False
        solved = len(played) == len(rollout.chain.tasks) and all(t.info["success"] for t in played)
        if solved:
            entries = [
                {"scenario": key, "task": t.task.id, "messages": [list(message) for message in t.info["messages"]]}
                for t in played
            ]
            with self.path.open("a") as file:
                file.write("".join(json.dumps(entry) + "\n" for entry in entries))
            self.kept.add(key)
        self.attempts[key] = self.attempts.get(key, 0) + 1
        with self._tried.open("a") as file:
            file.write(json.dumps({"scenario": key, "kept": solved}) + "\n")
        return solved


def _whole_lines(path: pathlib.Path) -> list[str]:
    """Returns the lines of a file that are whole: a kill may have cut the last."""
    if not path.exists():
        return []
    text = path.read_text()
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line.strip()]


async def collect(
    coder: LlmCoder,
    chains: Sequence[Chain],
    found: ExpertSet,
    *,
    tries: int,
    seed: int,
    temperature: float,
    concurrency: int,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Plays each scenario until it is solved as a whole, `tries` times at most, attempts of earlier starts included.

    Args:
      coder: plays.
      chains: the scenarios.
      found: where conversations go.
      tries: attempts at a scenario.
      seed: tells attempts apart.
      temperature: of the LLM.
      concurrency: scenarios at one time.
      done: called after each scenario.

    Raises:
      BudgetError: the LLM's budget is used up; what was found stays.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(chain: Chain) -> None:
        async with gate:
            for attempt in range(found.attempts.get(chain.key, 0), tries):
                if chain.key in found.kept:
                    break
                (rollout,) = await play_chains(
                    coder,
                    [chain],
                    functools.partial(CodeLibrary),
                    members=1,
                    group=f"expert/{attempt}",
                    seed=derive_seed(seed, "expert", attempt),
                    temperature=temperature,
                    concurrency=1,
                )
                found.add(rollout)
        done()

    await asyncio.gather(*(one(chain) for chain in chains))
