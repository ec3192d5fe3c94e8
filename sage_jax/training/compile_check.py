"""Compiles a run's real programs for chips that need not be here, and tells what they would hold, send and take.

    python -m experiments.main --config=configs/x.py:paper --mode=compile --topology=v5p:4x4x4 --mesh=fsdp:16,tensor:4

Nothing is allocated: parameters, optimizer state and batches are shapes with shardings. The update is the one that
`training.loop` runs, the generation programs those of the embedded engine (left out when generation is on servers).
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from sage_jax.errors import ConfigError
from sage_jax.models.config import ModelConfig
from sage_jax.models.lora import split
from sage_jax.models.memory import count_parameters
from sage_jax.models.sharding import make_mesh, parse_mesh, token_shards
from sage_jax.models.transformer import head_weights
from sage_jax.rollout.layout import abstract_engine, engine_mesh
from sage_jax.rollout.programs import compile_programs
from sage_jax.settings import RunSettings
from sage_jax.training.batches import abstract_batch
from sage_jax.training.engines import embedded_sizes
from sage_jax.training.hlo import Costs, read_costs
from sage_jax.training.optimizer import make_optimizer, rl_options
from sage_jax.training.policy import frozen_policy, model_config, policy_forward, with_adapters
from sage_jax.training.session import loss_options
from sage_jax.training.state import abstract_on_mesh, abstract_state, state_layout
from sage_jax.training.step import make_update_step
from sage_jax.training.topology import Chip, Topology, open_topology

_MICROS = 2  # micro-batches of the compiled update: enough for its loop, and memory does not depend on them


@dataclasses.dataclass(frozen=True)
class Program:
    """One compiled program; bytes and costs are of one device.

    Attributes:
      name: what it does.
      seconds: it took to compile.
      held: bytes of its arguments that stay on the device between runs.
      working: bytes it needs besides while it runs.
      costs: multiplications, memory traffic and collectives of one run; None where it could not be compiled because
        it does not fit.
      tokens: that one run takes or makes on all devices of its mesh.
    """

    name: str
    seconds: float
    held: int
    working: int
    costs: Costs | None
    tokens: int


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What compiling told."""

    topology: Topology
    mesh: dict[str, int]
    model: ModelConfig
    rows: int
    length: int
    programs: tuple[Program, ...]
    notes: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return count_parameters(self.model)

    @property
    def needed(self) -> int:
        """Bytes a device needs: what all programs hold, and the most that one of them works with."""
        held = {program.name.split()[0]: program.held for program in self.programs}
        return sum(held.values()) + max(program.working for program in self.programs)

    @property
    def fits(self) -> bool:
        """Whether a device holds it."""
        return self.needed <= self.topology.chip.memory and all(program.costs for program in self.programs)


def roofline(costs: Costs, chip: Chip) -> dict[str, float]:
    """Returns the seconds that multiplications, memory and network would take, each by itself at the chip's best."""
    return {
        "compute": costs.flops / chip.flops,
        "memory": costs.traffic / chip.bandwidth,
        "network": sum(collective.sent for collective in costs.collectives) / chip.link,
    }


def compile_run(
    settings: RunSettings, topology: str, mesh: str = "", *, compiled: Callable[[Program], Any] = lambda program: None
) -> CompileReport:
    """Compiles the update, and prefill and decode of every embedded engine.

    Args:
      settings: of the run.
      topology: "v5p:4x4x4", "cpu:8"; see `open_topology`.
      mesh: mesh axes; empty takes the run's own.
      compiled: told of every program as it is ready.

    Raises:
      ConfigError: an unknown topology; a mesh that does not fit its devices or the model.
    """
    sizes = parse_mesh(mesh or settings.policy.mesh)
    model = model_config(settings)
    chips = open_topology(topology)
    made = make_mesh(**{"data": 1, **sizes}, devices=chips.devices)
    notes = _check_mesh(model, made, settings.engine.row_length)
    with jax.set_mesh(made):
        shards = token_shards()
        rows, length = settings.engine.rows_per_micro * shards.rows, settings.engine.row_length
        jobs = [_update_job(settings, model, made, rows, length)]
    if settings.engine.engine == "embedded":
        jobs += _engine_jobs("engine", settings, model, engine_mesh(made))
    if settings.rl.method == "skillr1" and settings.task.task_llm == "policy":
        jobs += _engine_jobs("frozen", settings, model_config(frozen_policy(settings)), engine_mesh(made))
    programs = []
    for job in jobs:
        programs.append(_compile(job, chips.chip))
        compiled(programs[-1])
    return CompileReport(chips, dict(made.shape), model, rows, length, tuple(programs), tuple(notes))


class _Job(NamedTuple):
    """A program to compile: a jitted function, its abstract arguments, and the mesh it runs under."""

    name: str
    jitted: Any
    arguments: tuple[Any, ...]
    mesh: Mesh
    tokens: int
    unknown_rounds: tuple[int, ...] = (1,)  # of loops over groups of rows, and inside them over contexts


def _check_mesh(model: ModelConfig, mesh: Mesh, row_length: int) -> list[str]:
    """Returns remarks on what the mesh leaves whole; raises ConfigError where it would leave devices without work."""
    tensor, sequence = mesh.shape["tensor"], mesh.shape["sequence"]
    for name, size in (("num_heads", model.num_heads), ("intermediate_size", model.intermediate_size)):
        if size % tensor:
            raise ConfigError(
                f"mesh tensor:{tensor} does not divide model.{name}={size}, so its devices would repeat each other's "
                f"work; sizes that divide it: {_divisors(size, mesh.size)}"
            )
    if row_length % sequence:
        raise ConfigError(f"mesh sequence:{sequence} does not divide row_length={row_length}; make it a multiple")
    notes = []
    if model.num_kv_heads % tensor:
        notes.append(f"tensor:{tensor} does not divide num_kv_heads={model.num_kv_heads}: key heads are kept whole")
    if model.vocab_size % tensor:
        notes.append(f"tensor:{tensor} does not divide vocab_size={model.vocab_size}: the vocabulary is kept whole")
    if model.hidden_size % mesh.shape["fsdp"]:
        notes.append(
            f"fsdp:{mesh.shape['fsdp']} does not divide hidden_size={model.hidden_size}: parameters stay whole"
        )
    return notes


def _divisors(size: int, most: int) -> str:
    return ", ".join(str(part) for part in range(1, most + 1) if size % part == 0)


def _update_job(settings: RunSettings, model: ModelConfig, mesh: Mesh, rows: int, length: int) -> _Job:
    """Returns the update of the training loop with every place of its rows trained on: the most it can be given."""
    model = with_adapters(settings, model)
    params, frozen = abstract_on_mesh(model, mesh), None
    if model.lora is not None:
        params, frozen = split(params)
    optimizer = make_optimizer(rl_options(settings))
    options, layout = loss_options(settings), state_layout(params, optimizer)
    update = make_update_step(
        policy_forward(settings, model), head_weights, optimizer, options, frozen=frozen, layout=layout
    )
    repeated = settings.rl.minibatches * settings.rl.epochs > 1
    shared = settings.engine.share_prefixes
    micro = abstract_batch(_MICROS, rows, length, rows * length, mesh=mesh, old_logprobs=repeated, ends=shared)
    arguments = abstract_state(params, optimizer), micro, params if options.kl_coef else None, frozen
    return _Job("learner: update", update.jitted, arguments, mesh, _MICROS * rows * length)


def _engine_jobs(name: str, settings: RunSettings, model: ModelConfig, mesh: Mesh) -> list[_Job]:
    """Returns prefill and decode of one engine."""
    model, config = embedded_sizes(settings.engine, model)
    weights, cache, prefill, decode = abstract_engine(model, config, mesh)
    programs = compile_programs(model, config)
    blocks, sampled = config.cache_length // config.block, config.rows * config.decode_steps
    prompts, running = (config.prefill_groups, blocks), (config.rows // config.decode_rows, blocks)
    return [
        _Job(f"{name}: prefill", programs.prefill, (weights, cache, prefill), mesh, prefill.ids.size, prompts),
        _Job(f"{name}: decode", programs.decode, (weights, cache, decode), mesh, sampled, running),
    ]


def _compile(job: _Job, chip: Chip) -> Program:
    """Compiles one program; one that the compiler refuses for want of memory is reported, not raised."""
    started = time.monotonic()
    try:
        with jax.set_mesh(job.mesh):
            compiled = job.jitted.lower(*job.arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        least = max(_wanted(str(error)), int(chip.memory) + 1)
        return Program(job.name, time.monotonic() - started, 0, least, None, job.tokens)
    memory = compiled.memory_analysis()
    working = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Program(
        name=job.name,
        seconds=time.monotonic() - started,
        held=memory.argument_size_in_bytes,
        working=working + memory.generated_code_size_in_bytes,
        costs=read_costs(compiled.as_text(), unknown_rounds=job.unknown_rounds),
        tokens=job.tokens,
    )


def _wanted(message: str) -> int:
    """Returns the bytes that the compiler says it would need, 0 when it does not say."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    found = re.findall(r"(?:Used|required[^(]*\(|requires?) ?\(?([\d.]+)([KMGT])", message)
    return max((int(float(size) * units[unit]) for size, unit in found), default=0)
