"""What can be done with a configuration besides training: evaluate, check, export."""

from __future__ import annotations

import pathlib

import jax
import rich.console
import rich.table

from sage_jax import config
from sage_jax.checkpoints import Checkpointer
from sage_jax.errors import CheckpointError, ConfigError
from sage_jax.metrics.evaluation import summarise, write_rows
from sage_jax.models import hf, lora
from sage_jax.models.memory import estimate
from sage_jax.models.presets import preset
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.training.evaluate import evaluate, evaluate_skills
from sage_jax.training.session import load_policy, mesh_sizes, open_session, with_adapters


def evaluate_run(settings: RunSettings, tag: str) -> pathlib.Path:
    """Evaluates the newest checkpoint of the run folder, or the model folder, and writes eval/<tag>.json.

    The bank is the checkpoint's, else the skill file named by `bank`. Returns the file written.
    """
    folder = pathlib.Path(settings.run_dir)
    with open_session(settings, folder, training=False) as session:
        restored = _newest(settings)
        bank, version = session.start_bank(), 1
        if restored is not None:
            bank, version = SkillBank.restore(restored.document["bank"]), restored.step + 1
            session.engine.update_weights(session.weights(restored.arrays["state"]["params"]), version)
        tasks = {split: session.tasks[split] for split in session.eval_splits}
        path = folder / "eval" / f"{tag}.json"
        if session.skill_player:
            outcomes = session.runner.run(evaluate_skills(session.skill_player, settings, tasks, path))
        else:
            outcomes, _ = session.runner.run(evaluate(session.player, settings, tasks, bank))
    rows = summarise(outcomes)
    write_rows(path, rows)
    path.with_suffix(".stamp").unlink(missing_ok=True)  # a training run with this tag evaluates anew
    return path


def export(settings: RunSettings) -> pathlib.Path:
    """Writes the newest checkpoint's parameters as a Hugging Face folder; returns it.

    Of a run with adapters it writes them too, as a PEFT folder `export/adapter`; the model has them merged in.

    Raises:
      CheckpointError: there is no checkpoint.
    """
    restored = _newest(settings)
    if restored is None:
        raise CheckpointError(f"{settings.run_dir} holds no checkpoint to export: train first, or name its run_dir")
    base, frozen = load_policy(settings)
    out, params = pathlib.Path(settings.run_dir) / "export", restored.arrays["state"]["params"]
    model = with_adapters(settings, base)
    if model.lora is not None:
        lora.save_adapter(out / "adapter", model, params, base=settings.policy.model)
        params = lora.merge(model, lora.join(params, frozen))
    hf.save(out, base, jax.device_get(params), dtype="float32", source=settings.policy.model)
    print(f"wrote {out} (round {restored.step})")
    return out


def _newest(settings: RunSettings):
    folder = pathlib.Path(settings.run_dir) / "checkpoints"
    if not folder.is_dir():
        return None
    with Checkpointer(folder, keep=settings.keep, fingerprint=config.fingerprint(settings)) as checkpointer:
        return None if checkpointer.latest() is None else checkpointer.restore()


def check(settings: RunSettings) -> int:
    """Prints parameters, batch shapes and memory of one device; returns the bytes. Needs no weights.

    Raises:
      ConfigError: neither the model folder nor `model_preset` tells the sizes.
    """
    folder, name = pathlib.Path(settings.policy.model), settings.policy.model_preset
    if (folder / "config.json").is_file():
        model, source = hf.read_config(folder, dtype=settings.policy.compute_dtype), str(folder)
    elif name:
        model, source = preset(name, dtype=settings.policy.compute_dtype), f"preset {name}"
    else:
        raise ConfigError(f"model={settings.policy.model!r} is no folder; set model_preset to a published model")
    rl, shapes, mesh = settings.rl, settings.engine, mesh_sizes(settings.policy.mesh)
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
        "model": f"{source}, {memory.parameters:,} parameters",
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
