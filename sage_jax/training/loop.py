"""Training, top to bottom: cold start, evaluation, rounds of (rollouts, rewards, update, new weights, checkpoint).

A round is a function of (parameters, bank, seed, round number) alone, so a run that was killed anywhere continues
from its last checkpoint to the same parameters, bit for bit. With `ahead`, rounds are played while the learner works
on the one before (ahead.py), and a checkpoint also has the parameters that the round in play is played with.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sage_jax import config
from sage_jax.checkpoints import Checkpointer
from sage_jax.data.packing import MicroBatches, micro_batches, pack, trajectories_to_sequences
from sage_jax.data.prefixes import pack_shared
from sage_jax.data.truncation import left_out
from sage_jax.methods import grpo, sage, skillmaster
from sage_jax.metrics import open_run_folder, write_trajectories
from sage_jax.metrics.evaluation import EpisodeOutcome, EvalRow, metrics_of, read_rows, summarise, write_rows
from sage_jax.metrics.progress import show_progress
from sage_jax.models.sharding import token_shards
from sage_jax.seeding import numpy_rng
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank, save_bank
from sage_jax.training.ahead import IN_MID_TURN, Ahead, span_metrics
from sage_jax.training.batches import place_batch
from sage_jax.training.cold_start import cold_start
from sage_jax.training.engines import engine_metrics
from sage_jax.training.evaluate import check_outcomes, evaluate, evaluate_skills
from sage_jax.training.modes import open_checkpoints
from sage_jax.training.processes import RunWriter, is_first, once, whole_arrays
from sage_jax.training.profile import Trace, parse_steps
from sage_jax.training.session import Session, importance_level, open_session
from sage_jax.training.state import TrainState
from sage_jax.training.step import combine_updates, read_metrics
from sage_jax.training.throughput import mfu, update_flops
from sage_jax.types import Task, Trajectory

MID_ROUND = 2_000_000  # with a round's number, the version of weights that came in the middle of the next round

METHODS: dict[str, Callable] = {
    "grpo": grpo.play_round,
    "sage": sage.play_round,
    "skillmaster": skillmaster.play_round,
}


def train(settings: RunSettings) -> pathlib.Path:
    """Runs, or continues, one training run; returns its folder.

    Raises:
      SageError: anything a user can mend; the message says what.
    """
    parse_steps(settings.profile_steps)  # refused before anything is built
    folder, rounds, every = pathlib.Path(settings.run_dir), settings.rl.rounds, settings.evaluation.eval_every
    checkpointer = open_checkpoints(settings)
    checkpointer.check_fingerprint()
    if is_first():
        open_run_folder(folder, config.flatten(settings))
    with checkpointer, open_session(settings, folder) as session:
        state, reference, bank, cursor, done, behind = start(session, checkpointer)
        saving: dict[str, float] = {}  # known only once the round it belongs to is written
        profiled = settings.profile_steps if is_first() else ""
        with (
            RunWriter(folder, cursor=cursor, step=done) as writer,
            Trace(profiled, folder / "profile") as trace,
            Ahead(session.runner) as ahead,
        ):
            if behind is not None and plays_ahead(settings, done):
                start_ahead(session, ahead, behind, bank, done)
            if done == 0:
                run_evaluation(session, state.params, bank, "before", writer, 0)
            with show_progress("rounds", rounds, done=done) as progress:
                for number in range(done, rounds):
                    # Before the round and not after the last one's checkpoint: so a kill between the two skips nothing.
                    if every and number and number % every == 0:
                        run_evaluation(session, state.params, bank, f"round_{number}", writer, number)
                    trace.step(number)
                    state, bank, shown = play_and_learn(session, state, reference, bank, number, writer, ahead, saving)
                    if number + 1 == rounds or (number + 1) % settings.save_every == 0:
                        begun = time.monotonic()
                        behind = ahead.behind if ahead.behind is not None else spare(settings, state)
                        in_play = ahead.behind is not None
                        save(checkpointer, number + 1, state, reference, bank, writer, behind, in_play=in_play)
                        saving = {"time/checkpoint": time.monotonic() - begun}
                    progress.advance(1, shown)
            if played := max(done, rounds):
                run_evaluation(session, state.params, bank, "after", writer, played)
        if is_first():
            save_bank(bank, folder / "skills.json")
    return folder


class Start(NamedTuple):
    """Where a run begins or goes on: `done` rounds are over, and `behind` plays the next one if it is not None."""

    state: TrainState
    reference: Any
    bank: SkillBank
    cursor: int
    done: int
    behind: Any = None


def start(session: Session, checkpointer: Checkpointer) -> Start:
    """Restores the newest checkpoint that is whole, or does the cold start and saves it as step 0."""
    settings = session.settings
    template = TrainState.create(session.params, session.optimizer)
    if checkpointer.latest() is not None:
        arrays = {"state": template} | ({"reference": session.params} if settings.rl.kl_coef else {})
        arrays |= {"behind": session.params} if settings.rl.ahead else {}
        restored = checkpointer.restore(arrays)
        arrays, document = restored.arrays, restored.document
        bank, behind = SkillBank.restore(document["bank"]), arrays["behind"] if document.get("in_play") else None
        return Start(arrays["state"], arrays.get("reference"), bank, document["metrics_cursor"], restored.step, behind)
    params, metrics = cold_start(session)
    state = _commit(TrainState.create(params, session.optimizer))
    # A copy: updates donate the state's buffers.
    reference = _commit(jax.tree.map(jnp.array, params)) if settings.rl.kl_coef else None
    bank = session.start_bank()
    with RunWriter(session.folder) as writer:
        if metrics:
            writer.write(0, metrics)
        save(checkpointer, 0, state, reference, bank, writer, spare(settings, state))
        return Start(state, reference, bank, writer.cursor(), 0)


def _commit(tree: Any) -> Any:
    """Binds arrays to their devices, as restored ones are: a continued run then finds its update compiled already."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, leaf.sharding), tree)


def save(
    checkpointer: Checkpointer,
    step: int,
    state: TrainState,
    reference: Any,
    bank: SkillBank,
    writer: RunWriter,
    behind: Any = None,
    *,
    in_play: bool = False,
) -> None:
    """Saves everything the next round needs; `in_play` tells whether it is played with `behind`."""
    arrays = {"state": state, "reference": reference, "behind": behind}
    document = {"round": step, "bank": bank.snapshot(), "metrics_cursor": writer.cursor(), "in_play": in_play}
    checkpointer.save(step, {name: tree for name, tree in arrays.items() if tree is not None}, document)


def spare(settings: RunSettings, state: TrainState) -> Any:
    """Returns what stands for the parameters of a round in play where there is none, so that checkpoints are alike."""
    return state.params if settings.rl.ahead else None


def play_and_learn(
    session: Session,
    state: TrainState,
    reference: Any,
    bank: SkillBank,
    number: int,
    writer: RunWriter,
    ahead: Ahead,
    more: Mapping[str, float] | None = None,
) -> tuple[TrainState, SkillBank, dict[str, float]]:
    """Plays round `number`, updates, writes its metrics and trajectories; returns what the progress line shows.

    Args:
      session: the run's parts.
      state: the learner's state, donated.
      reference: parameters of the reference policy, or None.
      bank: as the round's episodes see it.
      number: of the round, from 0.
      writer: where metrics go.
      ahead: has the round in play, if it was begun before, and gets the next one.
      more: metrics to write along.
    """
    settings, clock, waited = session.settings, Clock(), waited_s(session)
    lag = ahead.behind is not None
    if lag:
        result, behind = ahead.take()
        clock.lap("rollout")
    else:
        hand_over(session, state.params, number)
        clock.lap("weights")
        result, behind = once(lambda: play(session, bank, number)), None
        clock.lap("rollout")
        clock.move("rollout", "reward", result.metrics.get("time/reward", 0.0))
    if plays_ahead(settings, number + 1):
        # A copy: the update donates the state's buffers.
        start_ahead(session, ahead, _commit(jax.tree.map(jnp.array, state.params)), result.bank, number + 1)
        clock.lap("weights")
    if settings.rl.running_turns != "finish":
        behind = None  # several weights played: importance weights stand for what the ratio would
    state, learned = learn(session, state, reference, result.trajectories, number, clock, behind=behind)
    if ahead.behind is not None and settings.rl.running_turns != "finish":
        hand_over(session, state.params, number + MID_ROUND, running=IN_MID_TURN[settings.rl.running_turns])
        clock.lap("weights")
    learned |= {"rollout/lag": float(lag), **span_metrics(result.trajectories)}
    if settings.agent.truncates:
        learned |= left_out(result.trajectories)
    lr = float(session.schedule(max(int(state.step) - 1, 0)))
    waited = waited_s(session) - waited
    metrics = {**result.metrics, **learned, **clock.seconds(), **(more or {}), "time/env": waited, "lr": lr}
    writer.write(number + 1, metrics)
    if is_first():
        decode = session.tokenizer.decode
        write_trajectories(session.folder, number + 1, result.trajectories, decode=decode)
        (session.folder / "bank.json").write_text(json.dumps(result.bank.snapshot(), indent=1) + "\n")
    shown = {
        "success": "reward/success",
        "steps": "episode/steps",
        "engine gap": "loss/engine_gap",
        "utility": "utility/mean",
        "skills": "bank/size",
    }
    return state, result.bank, {word: metrics[name] for word, name in shown.items() if name in metrics}


def play(session: Session, bank: SkillBank, number: int) -> Any:
    """Plays round `number` with the weights that the engine has; in the first process only."""
    settings, every = session.settings, session.tasks["train"]
    rounds = session.skill_player.play_round if session.skill_player else METHODS[settings.rl.method]
    tasks = round_tasks(every, settings, number)
    before, begun = session.engine.stats(), time.monotonic()
    result = session.runner.run(rounds(session.player, settings, tasks, every, bank, number))
    used = engine_metrics(before, session.engine.stats(), time.monotonic() - begun)
    return dataclasses.replace(result, metrics={**result.metrics, **used})


def plays_ahead(settings: RunSettings, number: int) -> bool:
    """Tells whether round `number` is played during the update before it: an evaluation in between needs the engine."""
    every = settings.evaluation.eval_every
    return settings.rl.ahead and 0 < number < settings.rl.rounds and not (every and number % every == 0)


def start_ahead(session: Session, ahead: Ahead, params: Any, bank: SkillBank, number: int) -> None:
    """Begins to play round `number` in a thread, with `params`."""
    hand_over(session, params, number)
    ahead.start(lambda: play(session, bank, number), params)


def waited_s(session: Session) -> float:
    """Returns the seconds that episodes have waited for environments; 0 in the processes that play none."""
    return session.pool.waited_s if session.pool is not None else 0.0


def hand_over(session: Session, params: Any, version: int, **options: str) -> None:
    """Gives the engine the weights of round `version` (kept KV of older weights is dropped).

    Args:
      session: has the engine.
      params: the learner's.
      version: never the same twice.
      options: what to do about turns that run, see `EmbeddedEngine.update_weights`; by default there must be none.
    """
    whole = whole_arrays(session.weights(params))
    once(lambda: session.engine.update_weights(whole, version + 1, **options))


def round_tasks(tasks: Sequence[Task], settings: RunSettings, number: int) -> list[Task]:
    """Returns the tasks of a round: passes over all tasks in an order drawn anew for each pass."""
    count, chosen = settings.rl.tasks_per_round, []
    for place in range(number * count, (number + 1) * count):
        epoch, index = divmod(place, len(tasks))
        order = numpy_rng(settings.seed, "task_order", epoch).permutation(len(tasks))
        chosen.append(tasks[order[index]])
    return chosen


def learn(
    session: Session,
    state: TrainState,
    reference: Any,
    trajectories: Sequence[Trajectory],
    number: int,
    clock: Clock,
    *,
    behind: Any = None,
) -> tuple[TrainState, dict[str, float]]:
    """Packs the turns that have an advantage and updates on them; without any, the state is returned as it is.

    `behind` are the parameters that sampled, where those are not the state's: ratios are then taken against them.
    """
    settings = session.settings
    kept = importance_level(settings) if settings.rl.importance_kept else None
    sequences = trajectories_to_sequences(trajectories, streams=session.streams, kept=kept)
    if not sequences:
        clock.lap("pack")
        return state, {"update/steps": float(state.step), "update/sequences": 0.0}
    parts = np.array_split(
        numpy_rng(settings.seed, "minibatches", number).permutation(len(sequences)),
        min(settings.rl.minibatches, len(sequences)),
    )
    batches: list[MicroBatches] = []
    fill, flops, tokens = [], 0.0, 0
    shards = token_shards()
    pack_rows = pack_shared if settings.engine.share_prefixes else pack
    for part in parts:
        packed = pack_rows([sequences[i] for i in sorted(part)], row_length=settings.engine.row_length)
        fill.append(packed.fill)
        flops += update_flops(session.model, packed, reference=reference is not None) * settings.rl.epochs
        tokens += int((packed.segment_ids > 0).sum()) * settings.rl.epochs
        micro = micro_batches(
            packed,
            settings.engine.rows_per_micro * shards.rows,
            capacity_multiple=settings.engine.capacity_multiple,
            min_micro=settings.engine.min_micro,
            shards=shards,
        )
        batches.append(place_batch(micro))
    clock.lap("pack")
    if behind is not None or len(batches) * settings.rl.epochs > 1:
        # Later updates leave the policy that sampled: its log-probabilities are taken before the first.
        sampler = state.params if behind is None else behind
        batches = [micro._replace(old_logprobs=session.logprobs(sampler, micro)) for micro in batches]
    metrics = []
    for micro in batches * settings.rl.epochs:
        state, one = session.update(state, micro, reference)
        metrics.append(one)
    read = [read_metrics(one, state.params, step=number + 1) for one in metrics]
    values = combine_updates(read, epochs=settings.rl.epochs)
    seconds = clock.lap("update")
    share = mfu(flops, seconds, peak_tflops=settings.peak_tflops)
    values |= {} if share is None else {"time/mfu": share}
    values |= {
        "time/tflops": flops / seconds / 1e12,
        "time/tokens_per_second": tokens / seconds,
        "update/steps": float(state.step),
        "update/fill": float(np.mean(fill)),
        "update/sequences": float(len(sequences)),
        "update/turns": float(sum(turn.advantage is not None for one in trajectories for turn in one.turns)),
    }
    return state, values


def run_evaluation(
    session: Session, params: Any, bank: SkillBank, tag: str, writer: RunWriter, step: int
) -> list[EvalRow]:
    """Evaluates, or reads eval/<tag>.json where an earlier start left the same evaluation; writes its metrics.

    One in which episodes failed is written but not stamped as complete: a start that comes to it again plays it again.

    Raises:
      EngineError: every episode failed; nothing is written.
    """
    path, started = session.folder / "eval" / f"{tag}.json", time.monotonic()
    rows = once(lambda: read_rows(path) if is_stamped(path, session.settings, step) else None)
    if rows is None:
        hand_over(session, params, step + 1_000_000)  # evaluation never shares a version with a round
        tasks = {split: session.tasks[split] for split in session.eval_splits}

        def play() -> list[EpisodeOutcome]:
            if session.skill_player:
                return session.runner.run(evaluate_skills(session.skill_player, session.settings, tasks, path))
            return session.runner.run(evaluate(session.player, session.settings, tasks, bank))[0]

        outcomes = once(play)
        complete = check_outcomes(outcomes, f"evaluation {tag!r}")
        rows = summarise(outcomes)
        if is_first():
            beside = path.with_suffix(".stamp")
            beside.unlink(missing_ok=True)  # an older one would vouch for the new file
            write_rows(path, rows)
            if complete:
                beside.write_text(json.dumps(stamp(session.settings, step)))
    # The line of an earlier start was cut off with everything behind the checkpoint.
    writer.write(step, metrics_of(rows) | {"time/eval": time.monotonic() - started})
    return rows


def stamp(settings: RunSettings, step: int) -> dict[str, Any]:
    """Returns what the evaluation of round `step` depends on, as JSON gives it back."""
    values = {"step": step, **config.fingerprint(settings), **config.flatten(settings.evaluation)}
    return json.loads(json.dumps(values))


def is_stamped(path: pathlib.Path, settings: RunSettings, step: int) -> bool:
    """Tells whether the same evaluation was finished before: it left its stamp beside its file."""
    beside = path.with_suffix(".stamp")
    if not path.exists() or not beside.exists():
        return False
    wanted = stamp(settings, step)
    older = {key: value for key, value in config.defaults(type(settings)).items() if key in wanted}
    return json.loads(json.dumps(older)) | json.loads(beside.read_text()) == wanted


class Clock:
    """Splits a round's wall time into phases."""

    def __init__(self) -> None:
        """Starts."""
        self._start = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> float:
        """Books the time since the last lap to `phase`; returns it."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._laps[phase] = self._laps.get(phase, 0.0) + seconds
        return seconds

    def move(self, phase: str, to: str, seconds: float) -> None:
        """Books seconds that were booked to one phase to another, which was inside it."""
        self._laps[phase] -= seconds
        self._laps[to] = self._laps.get(to, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Returns time/<phase> and time/round."""
        return {f"time/{phase}": value for phase, value in self._laps.items()} | {
            "time/round": time.monotonic() - self._start
        }
