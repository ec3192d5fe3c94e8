"""From a sweep to a list of jobs. Starts nothing, writes nothing, imports no jax.

A sweep is a list of variants (a config file and the keys in which it differs) and a list of seeds; each pair is one
job, a command line of `experiments.main`. Every job's configuration is resolved here, exactly as the job will resolve
it, so that a wrong key is found before the first job starts and not after the last.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.util
import itertools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from sage_jax import config
from sage_jax.errors import ConfigError
from sage_jax.settings import RunSettings

PROGRAM = ("-m", "experiments.main")
RESERVED = ("name", "run_dir", "seed")
NAME_LENGTH = 40  # a pod's name, which adds to a job's, may have 63 characters
_SWEEP_KEYS = ("config", "variants", "grid", "seeds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """What one job asks of a cluster; an adapter reads the fields its cluster knows.

    Attributes:
      cpus: CPU cores.
      memory_gb: main memory, in GB.
      hours: longest wall time.
      gpus: GPUs of one machine.
      tpu: kind of TPU slice, e.g. "tpu-v5p-slice"; empty is none.
      topology: chips of the slice along each axis, e.g. "2x2x4".
    """

    cpus: int = 2
    memory_gb: int = 16
    hours: float = 24.0
    gpus: int = 0
    tpu: str = ""
    topology: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One configuration of a sweep.

    Attributes:
      name: unique in the sweep; letters, digits, '_', '-', '.' and '='.
      config: `path.py[:scale,key=value]`.
      overrides: config key -> value, on top of that.
    """

    name: str
    config: str
    overrides: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Variants, the first of which is the one the others are compared with, and the seeds each is run with."""

    name: str
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run, ready to start.

    Attributes:
      name: unique in the plan; a DNS label of at most 40 characters.
      argv: command line.
      env: environment variables on top of the inherited ones.
      run_dir: folder that the run writes to.
      resources: what it asks of a cluster.
      variant: variant it belongs to.
      seed: its seed.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    run_dir: str
    resources: Resources
    variant: str
    seed: int


def load_sweep(spec: str) -> Sweep:
    """Loads `configs/sweeps/x.py[:scale,key=value]`; what follows the colon is handed to every variant's config.

    The file's `get_sweep()` returns a dict: `config` (base config), `variants` {name: overrides} or `grid`
    {key: values}, and `seeds`. A variant may name another base with the override `config`.

    Raises:
      ConfigError: the file is missing or says something else.
    """
    path, _, arg = spec.partition(":")
    content = _load_file(path)
    for key in content:
        if key not in _SWEEP_KEYS:
            raise ConfigError(f"{path}: unknown sweep key {key!r}.{config.suggest(str(key), _SWEEP_KEYS)}")
    if ("variants" in content) == ("grid" in content):
        raise ConfigError(f"{path}: a sweep has either 'variants' or 'grid'")
    variants = content["variants"] if "variants" in content else grid(content["grid"])
    return make_sweep(
        pathlib.Path(path).stem, content.get("config", ""), variants, seeds=content.get("seeds", (0,)), arg=arg
    )


def grid(axes: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Returns the Cartesian product of {key: values} as {name: overrides}; the last key changes fastest.

    Raises:
      ConfigError: an axis has no value.
    """
    for key, values in axes.items():
        if isinstance(values, str) or not values:
            raise ConfigError(f"grid key {key!r} has {values!r}: a list of at least one value would fit")
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return {_point_name(point): point for point in points}


def make_sweep(
    name: str, base: str, variants: Mapping[str, Mapping[str, Any]], *, seeds: Sequence[int] = (0,), arg: str = ""
) -> Sweep:
    """Makes a sweep from plain values.

    Args:
      name: what its jobs' names begin with.
      base: config of the variants that name none.
      variants: name -> overrides; the first is the baseline of comparisons.
      seeds: seeds of each variant.
      arg: text that is put behind the colon of every variant's config.

    Raises:
      ConfigError: no variant, no seed, a repeated seed, a bad name, or a reserved key.
    """
    if not variants:
        raise ConfigError(f"sweep {name!r} has no variants")
    if not seeds or len(set(seeds)) != len(seeds) or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ConfigError(f"sweep {name!r} has seeds {list(seeds)}: distinct integers >= 0 would fit")
    made = []
    for title, overrides in variants.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.=-]*", title) or len(title) > 100:
            raise ConfigError(f"variant name {title!r} is also a folder's: use letters, digits, '_', '-', '.' and '='")
        own = dict(overrides)
        spec = own.pop("config", base)
        for key in RESERVED:
            if key in own:
                raise ConfigError(f"variant {title!r} sets {key!r}, which the sweep sets itself: leave it out")
        if not spec:
            raise ConfigError(f"variant {title!r} has no config: give the sweep or the variant one")
        made.append(Variant(name=title, config=_with_arg(spec, arg), overrides=own))
    return Sweep(name=name, variants=tuple(made), seeds=tuple(seeds))


def select(sweep: Sweep, names: Sequence[str]) -> Sweep:
    """Returns the sweep with the named variants only, in the sweep's order; without names, all of it.

    Raises:
      ConfigError: a name is unknown.
    """
    known = [variant.name for variant in sweep.variants]
    for name in names:
        if name not in known:
            raise ConfigError(f"sweep {sweep.name!r} has no variant {name!r}.{config.suggest(name, known)}")
    kept = tuple(variant for variant in sweep.variants if not names or variant.name in names)
    return dataclasses.replace(sweep, variants=kept)


def make_jobs(
    sweep: Sweep,
    out: str,
    *,
    python: str = "python",
    env: Mapping[str, str] | None = None,
    resources: Resources | None = None,
) -> list[Job]:
    """Returns one job per seed and variant, all of a seed before the next, so that an early look compares variants.

    Args:
      sweep: what to run.
      out: folder of the sweep; a run goes to <out>/<variant>/seed_<seed>.
      python: interpreter where the jobs run.
      env: environment variables of every job.
      resources: what every job asks for.

    Raises:
      ConfigError: a configuration cannot be resolved, or two variants have the same one.
    """
    jobs: list[Job] = []
    names: set[str] = set()
    for seed, variant in itertools.product(sweep.seeds, sweep.variants):
        name = _job_name(f"{sweep.name}-{variant.name}-s{seed}", names)
        names.add(name)
        run_dir = f"{out.rstrip('/')}/{variant.name}/seed_{seed}"
        values = {**variant.overrides, "seed": seed, "name": name, "run_dir": run_dir}
        flags_ = [f"--config.{key}={_text(variant.name, key, value)}" for key, value in values.items()]
        argv = (python, *PROGRAM, f"--config={variant.config}", *flags_)
        jobs.append(
            Job(
                name=name,
                argv=argv,
                env=dict(env or {}),
                run_dir=run_dir,
                resources=resources or Resources(),
                variant=variant.name,
                seed=seed,
            )
        )
    _check(jobs)
    return jobs


def resolve(job: Job) -> RunSettings:
    """Returns the settings that the job's command line gives, by the code that the job itself will use.

    Raises:
      ConfigError: it gives none; names the variant.
    """
    argv = list(job.argv[1 + len(PROGRAM) :])
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", lock_config=True, flag_values=values, sys_argv=["launch", *argv])
    try:
        config.check_command_line(argv, "")
        values(["launch", *argv])
        return config.to_dataclass(holder.value, RunSettings)
    except (ConfigError, flags.Error) as error:
        raise ConfigError(f"variant {job.variant!r}: {error}") from error


def as_json(jobs: Sequence[Job]) -> str:
    """Returns the plan as JSON text, for --dry_run."""
    return json.dumps([dataclasses.asdict(job) for job in jobs], indent=1)


def _check(jobs: Sequence[Job]) -> None:
    """Resolves every job; a variant that differs from another in nothing would be paid for twice."""
    seen: dict[str, str] = {}
    for job in jobs:
        values = config.flatten(resolve(job))
        key = json.dumps({name: value for name, value in values.items() if name not in ("name", "run_dir")})
        if key in seen:
            raise ConfigError(
                f"variants {seen[key]!r} and {job.variant!r} have the same configuration: change or leave out one"
            )
        seen[key] = job.variant


def _load_file(path: str) -> dict[str, Any]:
    if not pathlib.Path(path).is_file():
        near = difflib.get_close_matches(path, map(str, pathlib.Path("configs/sweeps").glob("*.py")), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"sweep file {path!r} does not exist.{hint}")
    spec = importlib.util.spec_from_file_location(f"sweep_{pathlib.Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"sweep file {path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_sweep"):
        raise ConfigError(f"sweep file {path!r} defines no get_sweep()")
    content = module.get_sweep()
    if not isinstance(content, dict):
        raise ConfigError(f"get_sweep() of {path!r} returns {type(content).__name__}: a dict would fit")
    return content


def _with_arg(spec: str, arg: str) -> str:
    path, _, own = spec.partition(":")
    joined = ",".join(filter(None, [own, arg]))
    for key in RESERVED:
        if any(part.partition("=")[0].strip() == key and "=" in part for part in joined.split(",")):
            raise ConfigError(f"config argument {joined!r} sets {key!r}, which the sweep sets itself: leave it out")
    return f"{path}:{joined}" if joined else path


def _point_name(point: Mapping[str, Any]) -> str:
    """Returns "gamma=0.2,probes=4" with what a folder's name cannot hold replaced."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", "_".join(f"{key}={value}" for key, value in point.items())) or "base"


def _job_name(text: str, taken: set[str]) -> str:
    """Returns a lower-case DNS label; a shortened or taken one ends in a hash of the whole text."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(label) > NAME_LENGTH or label in taken or not label[:1].isalpha():
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        label = f"{('j' + label if not label[:1].isalpha() else label)[: NAME_LENGTH - 9].rstrip('-')}-{digest}"
    return label


def _text(variant: str, key: str, value: Any) -> str:
    """Writes a value as the flag parser reads it back."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return repr(tuple(value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"variant {variant!r} sets {key!r} to {value!r}: text, number, true/false or tuple would fit")
