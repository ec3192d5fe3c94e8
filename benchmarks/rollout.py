"""Compares generation side by side in one run: the embedded engine, Tunix' sampler, transformers (and so TRL).

    python -m benchmarks.rollout --tunix=PYTHON --transformers=PYTHON

Each side is a process of its own on one core, one after the other; --tunix and --transformers name interpreters of
environments that have google-tunix==0.1.7 and torch with transformers; without them those sides are left out.

Multi-turn: episodes that take their turns together, 60 new observation tokens and 24 sampled tokens a turn. Single
turn: batches of prompts of 128 tokens, 128 sampled. CPU-seconds of all threads, the least of `--repeats` runs,
compilation not counted.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.sides import run_side

TOKENS = 60 + 24


def flatness(turns: list[float]) -> tuple[float, float]:
    """Fits cost = a + b * turn over turns 2 to the last; returns b / a, and the largest residual / a.

    What grows with the context is attention, in a straight line; a is the rest.
    """
    points = list(enumerate(turns))[1:]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    base = mean_y - slope * mean_x
    return slope / base, max(abs(y - base - slope * x) for x, y in points) / base


def show(results: list[dict], episodes: int) -> None:
    """Prints both tables; ratios are to the first side."""
    first = results[0]
    if first["turns"]:
        print(f"{episodes} episodes x {len(first['turns'])} turns")
        print(f"{'side':32s} {'CPU s':>8s} {'ratio':>6s} {'new tok/CPU s':>14s} {'turn 2':>7s} {'last':>7s}")
        for result in results:
            turns = result["turns"]
            name, total = f"{result['side']} {result['version']}", sum(turns)
            speed, ratio = episodes * len(turns) * TOKENS / total, total / sum(first["turns"])
            print(f"{name:32s} {total:8.2f} {ratio:6.2f} {speed:14.0f} {turns[1]:7.3f} {turns[-1]:7.3f}")
        for result in results:
            if len(result["turns"]) > 3:
                growth, off = flatness(result["turns"])
                print(f"{result['side']}: grows by {growth:.1%} of its base a turn; off that line by {off:.0%} at most")
    for batch in first["batches"]:
        print(f"single turn, batch {batch}:", end="")
        for result in (one for one in results if one["batches"]):
            spent = result["batches"][batch]
            print(f"  {result['side']} {spent:.2f} s ({spent / first['batches'][batch]:.2f}x)", end="")
        print()


def main() -> None:
    """Reads the flags, runs the sides, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix", default="", help="interpreter that has google-tunix")
    parser.add_argument("--transformers", default="", help="interpreter that has torch and transformers")
    parser.add_argument("--modes", default="keep,resampled,again", help="of the embedded engine")
    parser.add_argument("--engine", default="", help="its sizes, as in decode_rows=32,prefill_rows=16")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=12, help="0 leaves the multi-turn part out")
    parser.add_argument("--batches", default="8,16,32", help="empty leaves the single-turn part out")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    names = ("episodes", "turns", "batches", "repeats", "core")
    flags = [f"--{name}={getattr(args, name)}" for name in names]
    ours = [f"--mode={mode}" for mode in args.modes.split(",")]
    sides = [(sys.executable, "generate_sage_jax.py", *flags, f"--engine={args.engine}", mode) for mode in ours]
    # A request of one turn is the same in every mode.
    sides[1:] = [(*side, "--batches=") for side in sides[1:]]
    for python, script in ((args.tunix, "generate_tunix.py"), (args.transformers, "generate_transformers.py")):
        if python:
            sides.append((python, script, *flags))
    show([run_side(*side) for side in sides], args.episodes)


if __name__ == "__main__":
    main()
