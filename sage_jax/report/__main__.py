"""`python -m sage_jax.report RUN_DIR`: writes RUN_DIR/report.html and prints the tables."""

import argparse
import sys
from collections.abc import Sequence

from sage_jax.errors import SageError
from sage_jax.report.html import write_report
from sage_jax.report.load import load_run
from sage_jax.report.tables import print_tables


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the report; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sage_jax.report", description=__doc__)
    parser.add_argument("run_dir", help="folder of the run")
    folder = parser.parse_args(argv).run_dir
    try:
        path = write_report(folder)
        print_tables(load_run(folder).evals)
    except SageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
