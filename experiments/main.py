"""Runs a configuration: `python -m experiments.main --config=configs/skillmaster_alfworld.py[:scale,key=value]`.

--mode=train   trains, or continues the run in run_dir, and prints the table before and after RL
--mode=eval    evaluates the newest checkpoint of run_dir, or the model folder when there is none
--mode=check   prints parameters, batch shapes and memory; needs no weights and starts nothing
--mode=compile compiles the run for --topology=v5p:4x4x4 --mesh=fsdp:16,tensor:4 and says, by its exit too, if it fits
--mode=review  lets the start and the newest checkpoint review the same episodes, and measures their edits
--mode=export  writes the newest checkpoint as a Hugging Face folder to run_dir/export
"""

import faulthandler
import logging as python_logging
import os
import signal
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from sage_jax import config
from sage_jax.errors import SageError
from sage_jax.settings import RunSettings

_DEFAULT = "configs/skillmaster_alfworld.py"
_CONFIG = config_flags.DEFINE_config_file(
    "config", _DEFAULT, "Config file, optionally :scale,key=value.", lock_config=True
)
_MODE = flags.DEFINE_enum("mode", "train", ["train", "eval", "check", "compile", "review", "export"], "What to do.")
_TAG = flags.DEFINE_string("tag", "eval", "Name of the evaluation file that --mode=eval writes.")
_PROBES = flags.DEFINE_integer("review_probes", 4, "Games that --mode=review measures an edit on.", lower_bound=1)
_TOPOLOGY = flags.DEFINE_string("topology", "cpu:8", "Chips that --mode=compile compiles for.")
_DISTRIBUTED = flags.DEFINE_string("distributed", "", "Several processes: auto, or address:port,number,count.")
_MESH = flags.DEFINE_string("mesh", "", "Mesh axes for --mode=compile, in place of the config's.")


def _parse(argv: list[str]) -> list[str]:
    config.check_command_line(argv[1:], _DEFAULT)
    return app.parse_flags_with_usage(argv)


def main(argv: list[str]) -> None:
    """Dispatches to the library."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    python_logging.getLogger("stamina").setLevel(python_logging.ERROR)  # clients log failed attempts
    settings = config.to_dataclass(_CONFIG.value, RunSettings)
    # Imported here: a wrong flag should not wait for jax.
    if _MODE.value == "compile":
        from sage_jax.training import compile_page

        sys.exit(0 if compile_page.print_report(settings, _TOPOLOGY.value, _MESH.value) else 1)
    from sage_jax import report
    from sage_jax.training import baseline, modes, processes

    title = f"{settings.rl.method} on {settings.tasks.benchmark} ({settings.scale})"
    if _MODE.value == "train":
        processes.initialize(_DISTRIBUTED.value)
        folder = baseline.train(settings)
        if not processes.is_first():
            return
        report.report_run(folder, ("before", baseline.TAG, "after"), title=title)
        print(f"report: {report.write_report(folder)}")
    elif _MODE.value == "eval":
        print(f"wrote {modes.evaluate_run(settings, _TAG.value)}")
        report.report_run(settings.run_dir, (_TAG.value,), title=title)
    elif _MODE.value == "review":
        from sage_jax.training.reviews import judge_reviews

        report.report_reviews(settings.run_dir, judge_reviews(settings, probes=_PROBES.value), title=title)
    elif _MODE.value == "check":
        modes.check(settings)
    else:
        modes.export(settings)


def run() -> None:
    """Runs `main`; an error that a user can mend is one line, not a traceback."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1 PID` shows where a run is that seems to hang
    try:
        app.run(main, flags_parser=_parse)
    except SageError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("interrupted: the same command continues from the last checkpoint", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # Files, engine and workers are closed. A computation that was cut short may still run in XLA's threads, and
        # an interpreter that ends under it crashes or waits for ever: so the process ends at once.
        os._exit(130)


if __name__ == "__main__":
    run()
