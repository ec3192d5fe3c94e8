"""What can be done with a configuration besides training: evaluate, check, export."""

from __future__ import annotations

import pathlib

import rich.console
import rich.table

from sage_jax import config
from sage_jax.checkpoints import Checkpointer, Restored
from sage_jax.errors import CheckpointError
from sage_jax.metrics.evaluation import summarise, write_rows
from sage_jax.models import hf, lora
from sage_jax.models.config import ModelConfig
from sage_jax.models.memory import estimate
from sage_jax.models.sharding import parse_mesh
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.training.evaluate import check_outcomes, evaluate, evaluate_skills
from sage_jax.training.optimizer import make_optimizer, rl_options
from sage_jax.training.policy import load_policy, model_config, policy_mesh, with_adapters
from sage_jax.training.session import open_session
from sage_jax.training.state import abstract_on_mesh, abstract_state


def evaluate_run(settings: RunSettings, tag: str) -> pathlib.Path:
    """Evaluates the newest checkpoint of the run folder, or the model folder, and writes eval/<tag>.json.

    The bank is the checkpoint's, else the skill file named by `bank`. Returns the file written.

    Raises:
      EngineError: every episode failed; nothing is written.
    """
    folder = pathlib.Path(settings.run_dir)
    with open_session(settings, folder, training=False) as session:
        restored = newest_checkpoint(settings, session.model)
        bank = session.start_bank()
        if restored is not None:
            bank = SkillBank.restore(restored.document["bank"])
            session.engine.update_weights(session.weights(restored.arrays["state"].params), restored.step + 1)
        tasks = {split: session.tasks[split] for split in session.eval_splits}
        path = folder / "eval" / f"{tag}.json"
        if session.skill_player:
            outcomes = session.runner.run(evaluate_skills(session.skill_player, settings, tasks, path))
        else:
            outcomes, _ = session.runner.run(evaluate(session.player, settings, tasks, bank))
    check_outcomes(outcomes, f"evaluation {tag!r}")
    rows = summarise(outcomes)
    write_rows(path, rows)
    path.with_suffix(".stamp").unlink(missing_ok=True)  # a training run with this tag evaluates anew
    return path


def export(settings: RunSettings) -> pathlib.Path:
    """Writes the newest checkpoint's parameters as a Hugging Face folder, in the dtype of the model folder; returns it.

    Of a run with adapters it writes them too, as a PEFT folder `export/adapter`; the model has them merged in.

    Raises:
      CheckpointError: there is no checkpoint.
    """
    source, out = pathlib.Path(settings.policy.model), pathlib.Path(settings.run_dir) / "export"
    with policy_mesh(settings):
        base = model_config(settings)
        restored = newest_checkpoint(settings, base)
        if restored is None:
            raise CheckpointError(f"{settings.run_dir} holds no checkpoint to export: train first, or name its run_dir")
        model, params = with_adapters(settings, base), restored.arrays["state"].params
        if model.lora is not None:
            lora.save_adapter(out / "adapter", model, params, base=settings.policy.model)
            params = lora.merge(model, lora.join(params, load_policy(settings)[1]))
        dtype = hf.stored_dtype(source) if source.is_dir() else settings.policy.compute_dtype
        hf.save(out, base, params, dtype=dtype, source=source if source.is_dir() else None)
    print(f"wrote {out} (round {restored.step})")
    return out


def open_checkpoints(settings: RunSettings) -> Checkpointer:
    """Opens the run's checkpoints; one that was saved before a setting existed has that setting's default."""
    return Checkpointer(
        pathlib.Path(settings.run_dir) / "checkpoints",
        keep=settings.keep,
        fingerprint=config.fingerprint(settings),
        defaults=config.defaults(type(settings)),
    )


def newest_checkpoint(settings: RunSettings, model: ModelConfig) -> Restored | None:
    """Restores the newest checkpoint, if there is one, onto the mesh that is set or else onto one device."""
    if not (pathlib.Path(settings.run_dir) / "checkpoints").is_dir():
        return None
    with open_checkpoints(settings) as checkpointer:
        if checkpointer.latest() is None:
            return None
        params = abstract_on_mesh(with_adapters(settings, model))
        if settings.lora.lora_rank:
            params, _ = lora.split(params)
        arrays = {"state": abstract_state(params, make_optimizer(rl_options(settings)))}
        arrays |= {"reference": params} if settings.rl.kl_coef else {}
        arrays |= {"behind": params} if settings.rl.ahead else {}
        return checkpointer.restore(arrays)


def check(settings: RunSettings) -> int:
    """Prints parameters, batch shapes and memory of one device; returns the bytes. Needs no weights.

    Raises:
      ConfigError: neither the model folder nor `model_preset` tells the sizes.
    """
    model = model_config(settings)
    rl, shapes, mesh = settings.rl, settings.engine, parse_mesh(settings.policy.mesh)
    memory = estimate(
        model,
        rows=shapes.rows_per_micro * mesh.get("data", 1) * mesh.get("fsdp", 1),
        length=shapes.row_length,
        mesh=mesh,
        remat=settings.policy.remat,
        reference=rl.kl_coef > 0,
    )
    episodes = rl.tasks_per_round * rl.group_size
    rows = {
        "model": f"{memory.parameters:,} parameters",
        "round": f"{rl.tasks_per_round} tasks x {rl.group_size} rollouts = {episodes} episodes",
        "probes": f"at most {2 * settings.skills.probes * episodes} episodes a round"
        if rl.method == "skillmaster" and settings.skills.utility
        else "none",
        "episode": f"{settings.agent.max_steps} steps, context {settings.agent.context}, {shapes.max_length} tokens",
        "update": f"rows of {shapes.row_length} tokens, {shapes.rows_per_micro} rows a micro-batch and device",
        "mesh": settings.policy.mesh or "one device",
    }
    parts = ("weights", "reference", "gradients", "optimizer", "activations", "head")
    rows |= {f"memory: {part}": f"{getattr(memory, part) / 2**30:.2f} GiB a device" for part in parts}
    total = sum(getattr(memory, part) for part in parts)
    rows["memory: learner"] = f"{total / 2**30:.2f} GiB a device"
    table = rich.table.Table("key", "value", title=f"{settings.name} ({settings.scale})", box=rich.box.SIMPLE_HEAD)
    for key, value in rows.items():
        table.add_row(key, value)
    rich.console.Console(width=110).print(table)
    return total
