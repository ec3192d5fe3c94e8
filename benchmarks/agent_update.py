"""The update on agent trajectories, packed here and padded by Tunix and TRL: CPU-seconds on one core, tokens a second.

    python -m benchmarks.agent_update --tunix PYTHON --trl PYTHON --mixes uniform,short,long

Episodes of 20 turns and 400 to 3000 tokens, four fifths of them observations (benchmarks/rivals/workload.py); the model
is that of benchmarks/update.py, strictly on-policy and without a reference. The rivals get the same trajectories in the
form their own trainers use for rollouts of several turns: padded to the longest, with a mask over what the agent wrote.
Environments of the rivals: see update.py.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.sides import run_side


def main() -> None:
    """Reads the flags, runs the sides in turn for each mix of lengths, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunix", default="", help="Python that has Tunix; empty leaves it out")
    parser.add_argument("--trl", default="", help="Python that has TRL; empty leaves it out")
    parser.add_argument("--mixes", default="uniform,short,long")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    chosen = [(sys.executable, "side_sage_jax.py"), (args.tunix, "side_tunix.py"), (args.trl, "side_trl.py")]
    rows = []
    for mix in args.mixes.split(","):
        results = []
        for _ in range(args.rounds):
            for python, script in chosen:
                if python:
                    options = ("--steps", str(args.steps), "--core", str(args.core), "--episodes", str(args.episodes))
                    results.append(run_side(python, script, "agent", *options, "--mix", mix))
        seconds: dict[str, float] = {}
        for result in results:
            spent = result["cpu_s"]["update"]["best"]
            seconds[result["side"]] = min(spent, seconds.get(result["side"], spent))
        rivals = [value for side, value in seconds.items() if side != "sage_jax"]
        ratio = f"{min(rivals) / seconds['sage_jax']:.1f} times faster" if rivals else ""
        figures = ", ".join(f"{side} {spent:.2f} s" for side, spent in seconds.items())
        speed = results[0]["tokens"] / seconds["sage_jax"]
        rows.append(f"{mix}: {results[0]['tokens']} tokens; {figures}; {speed:.0f} tokens/s; {ratio}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
