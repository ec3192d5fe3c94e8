"""Chips that programs can be compiled for, whether they are here or not."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Sequence

import jax
import numpy as np
import psutil
from jax.experimental import topologies

from sage_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one device can do at best.

    Attributes:
      name: as in `--topology`.
      memory: bytes that programs can use, as the compiler states it; the published size less what is reserved.
      flops: bfloat16 multiplications and additions a second (float32 on a CPU).
      bandwidth: bytes a second between chip and memory.
      link: bytes a second that a ring of chips passes on: two links, one for each direction.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float


_GIB = 2**30
# Sources: Cloud TPU's pages of each chip. A chip has 4 (v5e, v6e) or 6 (v5p) ports; its published interconnect
# bandwidth counts all of them in both directions, so a ring through two of them passes on 1/4 or 1/6 of it.
CHIPS = {
    "v5e": Chip("v5e", 15.75 * _GIB, 197e12, 819e9, 400e9 / 4),
    "v5p": Chip("v5p", 95.74 * _GIB, 459e12, 2765e9, 1200e9 / 6),
    "v6e": Chip("v6e", 31.25 * _GIB, 918e12, 1638e9, 800e9 / 4),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices to compile for."""

    text: str
    chip: Chip
    devices: Sequence[jax.Device]


def open_topology(text: str) -> Topology:
    """Returns the devices of "v5p:4x4x4" (chips along each axis of the slice), which need not exist, or of "cpu:8".

    "cpu:8" must be opened before jax first uses its devices.

    Raises:
      ConfigError: an unknown chip, a shape that is no slice of it, or no compiler for it (the libtpu wheel).
    """
    name, _, shape = text.partition(":")
    if name == "cpu" and shape.isdigit() and int(shape):
        return _open_cpu(text, int(shape))
    if name not in CHIPS or not all(part.isdigit() for part in shape.split("x")):
        known = ", ".join(f"{chip}:{'4x4x4' if chip == 'v5p' else '4x4'}" for chip in CHIPS)
        raise ConfigError(f"topology={text!r}: unknown; the form is cpu:8, or chip and shape of the slice: {known}")
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(f"topology={text!r}: the TPU compiler is missing; install it: pip install 'sage-jax[tpu]'")
    # The compiler needs no TPU; without these it looks for one, and logs that it found none.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "none")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    jax.config.update("jax_platforms", "cpu")
    try:
        devices = topologies.get_topology_desc(topology_name=text, platform="tpu").devices
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise ConfigError(f"topology={text!r}: no such slice: {str(error).splitlines()[0]}") from error
    return Topology(text, CHIPS[name], devices)


def _open_cpu(text: str, count: int) -> Topology:
    """Makes `count` virtual devices that share this machine; its speed is measured for a moment."""
    # Fails when the devices are there already, perhaps enough of them.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(f"topology={text!r}: jax runs with {len(devices)} CPU devices already")
    flops, bandwidth = _measure_machine()
    memory = psutil.virtual_memory().total
    chip = Chip("cpu", memory / count, flops / count, bandwidth / count, bandwidth / count)
    return Topology(text, chip, devices[:count])


def _measure_machine(size: int = 1024) -> tuple[float, float]:
    """Returns this machine's float32 multiplications and additions, and bytes copied, a second."""
    square, block = np.ones((size, size), np.float32), np.ones(2**24, np.float32)
    target = np.empty_like(block)
    return 2 * size**3 / _seconds(lambda: square @ square), 2 * block.nbytes / _seconds(
        lambda: np.copyto(target, block)
    )


def _seconds(work) -> float:
    """Returns the shortest of three runs."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
