"""What a run measures and leaves behind: metric names, writers, progress, evaluation rows, the run folder."""

from sage_jax.metrics.evaluation import (
    EpisodeOutcome,
    EvalRow,
    metrics_of,
    read_rows,
    summarise,
    wilson_interval,
    write_rows,
)
from sage_jax.metrics.names import METRICS, Metric, check_names
from sage_jax.metrics.progress import Progress, show_progress
from sage_jax.metrics.run_folder import git_revision, open_run_folder, versions
from sage_jax.metrics.writers import (
    MetricsWriter,
    read_jsonl,
    read_metrics,
    trajectory_record,
    write_trajectories,
)

__all__ = [
    "METRICS",
    "EpisodeOutcome",
    "EvalRow",
    "Metric",
    "MetricsWriter",
    "Progress",
    "check_names",
    "git_revision",
    "metrics_of",
    "open_run_folder",
    "read_jsonl",
    "read_metrics",
    "read_rows",
    "show_progress",
    "summarise",
    "trajectory_record",
    "versions",
    "wilson_interval",
    "write_rows",
    "write_trajectories",
]
