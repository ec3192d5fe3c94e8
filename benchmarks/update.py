"""A step of GRPO side by side with Tunix 0.1.7 and TRL 1.16: CPU-seconds on one core, peak memory, first step.

    python -m benchmarks.update --tunix PYTHON --trl PYTHON --rounds 2 --steps 5

Each side runs in a process of its own, with the Python of an environment that has it:

    python -m venv tunix && tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2 flax==0.12.8
    python -m venv trl && trl/bin/pip install trl==1.16.0 torch transformers

The workload (benchmarks/rivals/workload.py): 8.0M parameters, 4 prompts x 8 answers of 128 + 128 tokens, and a KL term.
Sides alternate, so that what else the machine does meets them all; of each figure the best of all rounds is taken.
"reference and update" is all that the learner does with finished answers; sage_jax runs the reference in its update.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from benchmarks.sides import run_side

GOALS = (
    # what, sides to beat, factor
    ("reference and update", ("tunix", "trl"), 0.85),
    ("step", ("tunix", "trl"), 0.8),
    ("first step", ("tunix",), 0.6),
    ("peak MB", ("tunix", "trl"), 0.5),
    ("peak MB", ("trl, checkpointing",), 1.0),
)


def sides(args: argparse.Namespace) -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns (python, script, options) of every side that was asked for."""
    chosen = [(sys.executable, "side_sage_jax.py", ())]
    if args.tunix:
        chosen.append((args.tunix, "side_tunix.py", ()))
    if args.trl:
        chosen += [(args.trl, "side_trl.py", ()), (args.trl, "side_trl.py", ("--checkpointing",))]
    return chosen


def figures(result: dict[str, Any]) -> dict[str, float]:
    """Returns the compared figures of one run."""
    times = result["cpu_s"]
    learner = [times[name]["best"] for name in ("reference and update", "reference", "update") if name in times]
    return {
        "generate": times["generate"]["best"],
        "reference and update": sum(learner),
        "step": times["step"]["best"],
        "first step": times["step"]["first"],
        "peak MB": result["peak_rss_mb"],
    }


def best(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Returns by side the least of every figure."""
    table: dict[str, dict[str, float]] = {}
    for result in results:
        own = table.setdefault(result["side"], {})
        for name, value in figures(result).items():
            own[name] = min(value, own.get(name, value))
    return table


def print_table(table: dict[str, dict[str, float]]) -> None:
    """Prints the figures of all sides, then each goal and whether it is met."""
    names = list(next(iter(table.values())))
    print(f"{'':20s}" + "".join(f"{name:>22s}" for name in names))
    for side, own in table.items():
        print(f"{side:20s}" + "".join(f"{own[name]:22.2f}" for name in names))
    for name, rivals, factor in GOALS:
        known = [table[rival][name] for rival in rivals if rival in table]
        if known:
            ratio = table["sage_jax"][name] / min(known)
            verdict = "met" if ratio <= factor else "missed"
            print(f"{name}: {ratio:.2f} of the better of {' / '.join(rivals)}, at most {factor}: {verdict}")


def main() -> None:
    """Reads the flags, runs the sides in turn, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix", default="", help="Python that has Tunix; empty leaves it out")
    parser.add_argument("--trl", default="", help="Python that has TRL; empty leaves it out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    results = []
    for _ in range(args.rounds):
        for python, script, options in sides(args):
            common = ("grpo", "--steps", str(args.steps), "--core", str(args.core))
            results.append(run_side(python, script, *common, *options))
    print_table(best(results))


if __name__ == "__main__":
    main()
