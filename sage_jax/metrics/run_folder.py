"""The run folder: what must be known to tell, later, what a run was.

config.json       the resolved configuration of the latest start
starts.jsonl      one line per start: time, command line, versions, git revision, what changed in the configuration
metrics.jsonl     rounds/NNNN.jsonl     eval/<tag>.json     checkpoints/     tensorboard/     report.html
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers", "alfworld",
    "textworld", "bm25s", "rapidfuzz",
)  # fmt: skip


def open_run_folder(
    run_dir: str | pathlib.Path, config: Mapping[str, Any], argv: Sequence[str] | None = None
) -> pathlib.Path:
    """Makes the folder when missing and records this start; returns the folder.

    Args:
      run_dir: the run's folder.
      config: resolved flat configuration (`config.flatten(settings)`), JSON-serialisable.
      argv: the command line; this process's by default.
    """
    folder = pathlib.Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads(json.dumps(config))
    path = folder / "config.json"
    before = json.loads(path.read_text()) if path.exists() else config
    changed = {
        key: [before.get(key), config.get(key)]
        for key in sorted(before.keys() | config.keys())
        if before.get(key) != config.get(key)
    }
    start = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": list(sys.orig_argv if argv is None else argv),
        "versions": versions(),
        "git": git_revision(pathlib.Path(__file__).parents[2]),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "config_changed": changed,
    }
    with (folder / "starts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(start) + "\n")
    part = folder / "config.json.part"
    part.write_text(json.dumps(config, indent=1) + "\n")
    os.replace(part, path)
    return folder


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that can change a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def git_revision(checkout: pathlib.Path) -> str | None:
    """Returns the commit a checkout stands at, or None outside one. Reads git's files, so it starts no process."""
    git = checkout / ".git"
    if git.is_file():  # a worktree or submodule points at its real folder
        git = (checkout / git.read_text().removeprefix("gitdir:").strip()).resolve()
    head = git / "HEAD"
    if not head.is_file():
        return None
    text = head.read_text().strip()
    if not text.startswith("ref: "):
        return text
    name = text.removeprefix("ref: ")
    common = git / "commondir"
    roots = [git, (git / common.read_text().strip()).resolve()] if common.is_file() else [git]
    for root in roots:
        if (root / name).is_file():
            return (root / name).read_text().strip()
        if (root / "packed-refs").is_file():
            for line in (root / "packed-refs").read_text().splitlines():
                if line.endswith(f" {name}"):
                    return line.split()[0]
    return None
