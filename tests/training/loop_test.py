"""The loop: which tasks a round takes, what an update reads, what a run leaves behind and how it goes on."""

import collections
import copy
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sage_jax.config import to_dataclass
from sage_jax.errors import EngineError, NumericsError
from sage_jax.metrics import MetricsWriter, read_jsonl, read_metrics
from sage_jax.models import preset
from sage_jax.report.tables import cell_text
from sage_jax.settings import RunSettings
from sage_jax.skills import SkillBank
from sage_jax.training import loop
from sage_jax.training.ahead import Ahead
from sage_jax.training.session import Session
from sage_jax.training.state import TrainState
from sage_jax.training.step import LossOptions, make_logprob_fn, make_update_step
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn


def trajectory(advantages, seed=0):
    """Returns a trajectory whose turns were 'sampled' at log-probabilities that no policy here would give."""
    rng = np.random.default_rng(seed)

    def turn(number, advantage):
        prompt, output = rng.integers(11, 300, 6), rng.integers(11, 300, 5)
        ids = tuple(map(int, prompt)), tuple(map(int, output))
        return Turn("act", *ids, (-2.0,) * 5, starts_context=not number, advantage=advantage)

    turns = tuple(turn(number, advantage) for number, advantage in enumerate(advantages))
    return Trajectory(Task("t", "alfworld", "train", "f"), "g", seed, turns, RewardResult(0.0))


BATCH = [trajectory([1.0, -0.5], 1), trajectory([-1.0], 2), trajectory([0.7, None], 3), trajectory([0.2], 4)]


VOCAB, WIDTH = 300, 8


def forward(params, ids, positions, segment_ids):
    """Each token beside the one before it: enough for a loss, and compiled in no time."""
    x = params["embed"][ids]
    return x + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] @ params["mix"]


def make_params():
    rng = np.random.default_rng(0)
    return {
        "embed": jnp.array(rng.normal(size=(VOCAB, WIDTH)), jnp.float32),
        "mix": jnp.array(rng.normal(size=(WIDTH, WIDTH)), jnp.float32),
    }


@functools.lru_cache
def update_functions():
    optimizer = optax.sgd(0.1)
    options = LossOptions(dual_clip=3.0)
    head = lambda params: params["embed"]  # noqa: E731
    return (
        optimizer,
        make_update_step(forward, head, optimizer, options),
        make_logprob_fn(forward, head, options),
    )


def learner(**values) -> Session:
    """Returns a session that can learn and do nothing else."""
    optimizer, update, logprobs = update_functions()
    settings = to_dataclass({"row_length": 64, "max_length": 64, "rows_per_micro": 1, **values}, RunSettings)
    parts = dict.fromkeys(field.name for field in dataclasses.fields(Session))
    parts |= {"settings": settings, "params": make_params(), "optimizer": optimizer, "model": preset("tiny")}
    return Session(**{**parts, "update": update, "logprobs": logprobs})


def recording(session):
    """Returns the session with an update that also keeps (micro-batches, metrics) of each call."""
    calls = []

    def update(state, micro, reference):
        state, metrics = session.update(state, micro, reference)
        calls.append((micro, {name: float(value) for name, value in metrics.items()}))
        return state, metrics

    return dataclasses.replace(session, update=update), calls


def learn(session, state, trajectories, number=0, **options):
    return loop.learn(session, state, None, trajectories, number, loop.Clock(), **options)


def new_state(session):
    return TrainState.create(session.params, session.optimizer)


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


@pytest.mark.parametrize(("count", "per_round"), [(12, 4), (10, 4), (7, 3), (3, 5)])
def test_every_task_comes_once_a_pass(count, per_round):
    tasks = [Task(f"t{i}", "alfworld", "train", "f") for i in range(count)]
    settings = to_dataclass({"tasks_per_round": per_round}, RunSettings)
    rounds = [loop.round_tasks(tasks, settings, number) for number in range(count)]
    assert all(len(chosen) == per_round for chosen in rounds)
    played = [task.id for chosen in rounds for task in chosen]
    assert collections.Counter(played) == {task.id: per_round for task in tasks}
    passes = [played[i : i + count] for i in range(0, len(played), count)]
    assert all(len(set(one)) == count for one in passes)
    assert len({tuple(one) for one in passes}) > 1
    assert loop.round_tasks(tasks, settings, 2) == rounds[2]
    other = to_dataclass({"tasks_per_round": per_round, "seed": 1}, RunSettings)
    assert [loop.round_tasks(tasks, other, number) for number in range(count)] != rounds


def test_without_a_usable_turn_nothing_changes():
    session = learner()
    state = new_state(session)
    after, metrics = learn(session, state, [trajectory([None, None])])
    assert after is state
    assert metrics == {"update/steps": 0.0, "update/sequences": 0.0}


def test_one_update_a_round_is_strictly_on_policy():
    session, calls = recording(learner())
    state, metrics = learn(session, new_state(session), BATCH)
    assert len(calls) == 1
    assert calls[0][0].old_logprobs is None
    assert metrics["loss/ratio"] == metrics["loss/ratio_max"] == 1.0
    assert metrics["update/steps"] == int(state.step) == 1
    assert metrics["update/sequences"] == 4
    assert metrics["update/turns"] == 5
    assert metrics["tokens/trained"] == 25  # five turns of five tokens; the sixth has no advantage
    assert not same(state.params, session.params)


def test_later_updates_keep_the_log_probabilities_of_the_policy_that_sampled():
    session, calls = recording(learner(epochs=2, minibatches=2))
    state, metrics = learn(session, new_state(session), BATCH)
    assert len(calls) == 4
    assert int(state.step) == 4
    for micro, _ in calls:
        before = session.logprobs(session.params, micro._replace(old_logprobs=None))
        np.testing.assert_array_equal(micro.old_logprobs, before)
    # The two programs may sum in another order, hence not exactly 1.
    assert calls[0][1]["loss/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert all(abs(values["loss/ratio_max"] - 1) > 1e-3 for _, values in calls[1:])
    sizes = [int(micro.mask.sum()) for micro, _ in calls]
    assert sizes[:2] == sizes[2:]
    assert sum(sizes[:2]) == 25
    assert metrics["loss/ratio_max"] == max(values["loss/ratio_max"] for _, values in calls)
    ratios = [values["loss/ratio"] for _, values in calls]
    assert metrics["loss/ratio"] == pytest.approx(np.dot(ratios, sizes) / 50)
    assert metrics["tokens/trained"] == 25
    # Two passes say the same about the engine: that of every token against the parameters that sampled.
    before = [np.asarray(session.logprobs(session.params, micro._replace(old_logprobs=None))) for micro, _ in calls[:2]]
    gaps = np.concatenate([(b - m.engine_logprobs)[m.mask > 0] for b, (m, _) in zip(before, calls[:2], strict=True)])
    assert len(gaps) == 25
    assert metrics["loss/engine_gap"] == pytest.approx(np.abs(gaps).mean(), rel=1e-5)
    assert metrics["loss/engine_gap_max"] == pytest.approx(np.abs(gaps).max(), rel=1e-5)
    assert metrics["loss/engine_kl"] == pytest.approx((np.exp(gaps) - 1 - gaps).mean(), rel=1e-4)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_advantages_are_weighed_by_the_mass_that_truncation_kept(level):
    def draw(one, mass):
        turns = [
            dataclasses.replace(turn, sampled_logprobs=(-2.0 - float(np.log(mass)),) * len(turn.output_ids))
            for turn in one.turns
        ]
        return dataclasses.replace(one, turns=tuple(turns))

    batch = [draw(one, mass) for one, mass in zip(BATCH, (0.9, 0.8, 0.7, 0.6), strict=True)]
    session, calls = recording(learner(importance_kept=True, importance_level=level))
    learn(session, new_state(session), batch)
    plain, plain_calls = recording(learner())
    learn(plain, new_state(plain), BATCH)
    (weighed,), (same_but_whole,) = ([micro for micro, _ in made] for made in (calls, plain_calls))
    # Trained tokens of the four sequences: 10, 5, 5, 5.
    powers = (1, 1, 1, 1) if level == "token" else (10, 5, 5, 5)
    factors = np.power((0.9, 0.8, 0.7, 0.6), powers)[weighed.sequence_ids]
    np.testing.assert_allclose(weighed.advantages, same_but_whole.advantages * factors, rtol=1e-5)
    np.testing.assert_array_equal(weighed.engine_logprobs, same_but_whole.engine_logprobs)


def test_ratios_are_taken_against_the_weights_that_played():
    session, calls = recording(learner())
    behind = jax.tree.map(lambda leaf: leaf * 1.01, session.params)
    learn(session, new_state(session), BATCH, behind=behind)
    ((micro, metrics),) = calls
    np.testing.assert_array_equal(micro.old_logprobs, session.logprobs(behind, micro._replace(old_logprobs=None)))
    assert abs(metrics["loss/ratio_max"] - 1) > 1e-3


def test_a_round_cuts_its_minibatches_anew():
    def parts(number):
        session, calls = recording(learner(minibatches=4))
        learn(session, new_state(session), BATCH, number)
        return [int(micro.ids.sum()) for micro, _ in calls]

    assert sorted(parts(0)) == sorted(parts(1))
    assert parts(0) == parts(0) != parts(1)


def test_more_minibatches_than_sequences_are_as_many_as_there_are():
    session, calls = recording(learner(minibatches=9))
    learn(session, new_state(session), BATCH)
    assert len(calls) == 4


def test_a_parameter_that_is_not_finite_stops_the_run_by_name():
    session = learner()
    state = new_state(session)
    broken = dataclasses.replace(state, params={**state.params, "mix": state.params["mix"] * jnp.nan})
    with pytest.raises(NumericsError, match=r"step 4: .*parameters already not finite: \['mix'\]"):
        learn(session, broken, BATCH, number=3)


def test_an_update_that_failed_before_the_last_one_is_noticed():
    session = learner(epochs=2)

    def update(state, micro, reference):
        first = not int(state.step)
        state, metrics = session.update(state, micro, reference)
        return state, metrics | ({"finite": jnp.zeros(())} if first else {})

    with pytest.raises(NumericsError, match="step 1"):
        learn(dataclasses.replace(session, update=update), new_state(session), BATCH)


def test_the_clock_books_each_phase_once():
    clock = loop.Clock()
    for phase in ("rollout", "update", "rollout"):
        clock.lap(phase)
    seconds = clock.seconds()
    assert set(seconds) == {"time/rollout", "time/update", "time/round"}
    assert seconds["time/round"] >= seconds["time/rollout"] + seconds["time/update"] >= 0
    clock.move("rollout", "reward", seconds["time/rollout"] / 2)
    moved = clock.seconds()
    assert moved["time/reward"] == moved["time/rollout"] == pytest.approx(seconds["time/rollout"] / 2)


def lost(plan):
    info = {"success": False, "score": 0.0, "steps": 0, "tokens": 0, "error": "the server is gone"}
    return Trajectory(plan.task, plan.group, plan.seed, (), RewardResult(None, Status.ENGINE_ERROR), info)


class Losing:
    """Plays like another player, but loses the episodes that `loses` names by their number."""

    def __init__(self, player, loses):
        self.player, self.loses = player, loses

    async def play_all(self, plans, **options):
        played = await self.player.play_all(plans, **options)
        pairs = enumerate(zip(plans, played, strict=True))
        return [lost(plan) if self.loses(number) else one for number, (plan, one) in pairs]


def test_a_round_without_an_outcome_is_an_error_and_writes_nothing(tiny_session, tmp_path):
    player = Losing(tiny_session.player, lambda number: True)
    session = dataclasses.replace(tiny_session, folder=tmp_path, player=player)
    state, ahead = new_state(session), Ahead(session.runner)
    message = "round 22: none of its 6 .*the server is gone"
    with MetricsWriter(tmp_path, tensorboard=False) as writer, pytest.raises(EngineError, match=message):
        loop.play_and_learn(session, state, session.params, SkillBank(), 21, writer, ahead)
    assert read_metrics(tmp_path) == []
    assert not (tmp_path / "rounds").exists()


def test_an_evaluation_is_complete_when_no_episode_failed(tiny_session, tmp_path):
    (tmp_path / "eval").mkdir()
    files = {name: tmp_path / "eval" / f"after.{name}" for name in ("json", "stamp")}

    def evaluate(loses, step):
        session = dataclasses.replace(tiny_session, folder=tmp_path, player=Losing(tiny_session.player, loses))
        with MetricsWriter(tmp_path, tensorboard=False) as writer:
            return loop.run_evaluation(session, session.params, SkillBank(), "after", writer, step)

    with pytest.raises(EngineError, match="evaluation 'after': none of its .*the server is gone"):
        evaluate(lambda number: True, 31)
    assert not any(path.exists() for path in files.values())
    rows = evaluate(lambda number: number == 0, 32)
    assert (rows[0].failed, files["json"].exists(), files["stamp"].exists()) == (1, True, False)
    assert "1 failed" in cell_text(rows[0])[1]
    whole = evaluate(lambda number: False, 33)  # played again, since it was not complete
    assert (whole[0].failed, files["stamp"].exists()) == (0, True)
    assert evaluate(lambda number: True, 33) == whole  # complete: read and not played
    stamp = json.loads(files["stamp"].read_text())
    del stamp["engine_dtype"]  # as if it was written before that setting was there
    files["stamp"].write_text(json.dumps(stamp))
    assert evaluate(lambda number: True, 33) == whole


def test_a_round_writes_one_line_and_readable_trajectories(tiny_session, tmp_path):
    seen = []
    own = tiny_session.settings
    cut = dataclasses.replace(own, agent=dataclasses.replace(own.agent, top_p=0.95))
    player = copy.copy(tiny_session.player)
    player.options = dataclasses.replace(player.options, top_p=0.95)
    session = dataclasses.replace(
        tiny_session, folder=tmp_path, schedule=lambda step: seen.append(step) or 0.5, settings=cut, player=player
    )
    state = dataclasses.replace(new_state(session), step=jnp.array(7, jnp.int32))
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        state, bank, shown = loop.play_and_learn(
            session, state, session.params, SkillBank(), 0, writer, Ahead(session.runner)
        )
    (line,) = read_metrics(tmp_path)
    assert line["step"] == 1
    assert line["update/steps"] == int(state.step) == 8
    assert (seen, line["lr"]) == ([7], 0.5)  # the rate of the last update, numbered from 0
    assert line["time/round"] >= line["time/rollout"] + line["time/reward"] + line["time/update"]
    assert min(line[f"time/{phase}"] for phase in ("rollout", "env", "reward", "pack", "update", "weights")) > 0
    assert line["time/tokens_per_second"] > 0
    assert line["engine/generated_tokens"] >= line["tokens/generated"] > 0  # probes are not in the second
    assert line["engine/prefilled_tokens"] > 0
    assert line["engine/prompt_tokens"] > line["engine/cached_tokens"] > 0
    assert line["engine/requests"] >= line["update/turns"] > 0
    assert line["engine/evictions"] == 0
    assert line["time/generated_per_second"] > 0
    assert "time/mfu" not in line  # the peak of a CPU is not known
    assert line["bank/size"] == len(bank) == shown["skills"] > 0
    assert line["utility/probe_run"] > 0
    assert 0 < line["loss/engine_gap"] == shown["engine gap"] < line["loss/engine_gap_max"] < 1e-4
    assert abs(line["loss/engine_kl"]) < 1e-8
    assert 0 < line["rollout/left_out"] < 0.05  # top_p keeps at least 0.95
    records = read_jsonl(tmp_path / "rounds" / "0001.jsonl")
    assert len(records) == 6
    assert records[0]["turns"][-1]["stream"] == "review"
    assert "<tool_call>" in records[0]["turns"][-1]["text"]
    assert SkillBank.restore(json.loads((tmp_path / "bank.json").read_text())) == bank
