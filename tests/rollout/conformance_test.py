"""What every engine promises, on each of them: in this process, behind our server, behind a real SGLang server.

The last one runs where SAGE_JAX_SGLANG_URL names a float32 server and SAGE_JAX_SGLANG_MODEL the folder of its model;
`make test-sglang` starts one. It may end a turn at its model's own end of text, and on a CPU it ignores seeds.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.errors import EngineError
from sage_jax.losses import token_logprobs
from sage_jax.models import ModelConfig, forward, head_weights, hf
from sage_jax.rollout import Engine, GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.rollout.http_client import HttpOptions
from sage_jax.rollout.programs import EngineConfig
from sage_jax.rollout.sglang import SglangEngine
from sage_jax.rollout.weights import WeightFolders
from sage_jax.testing.server_process import ServerProcess, server_arguments
from tests.rollout.conftest import MODEL, draw_params

# Blocks and chunks far smaller than the contexts, so that the cases cross their edges.
SIZES = {"max_length": 200, "prefill_rows": 4, "prefill_chunk": 8, "decode_steps": 4, "block": 32, "max_stop_ids": 16}
SLOTS, SCORED = 17, 208
SGLANG_URL, SGLANG_MODEL = os.environ.get("SAGE_JAX_SGLANG_URL"), os.environ.get("SAGE_JAX_SGLANG_MODEL")
NO_SGLANG = "needs a real server: set SAGE_JAX_SGLANG_URL and SAGE_JAX_SGLANG_MODEL, or run `make test-sglang`"


@dataclasses.dataclass
class Subject:
    """An engine under test and the model it should have."""

    kind: str
    engine: Any
    model: ModelConfig
    params: Any
    another: Any  # () -> a further engine on the same servers
    ends: frozenset[int] = frozenset()  # ids at which the server's own model ends a turn
    versions: Any = dataclasses.field(default_factory=lambda: itertools.count(1))

    def push(self, params=None):
        version = next(self.versions)
        self.engine.update_weights(self.params if params is None else params, version)
        return version

    def run(self, *requests):
        async def gather():
            return await asyncio.gather(*(self.engine.generate(request) for request in requests))

        return asyncio.run(gather())

    def logits(self, ids):
        """Logits [T, V] of a whole sequence by the training forward pass, in float32."""
        padded, segments = np.zeros(SCORED, np.int32), np.zeros(SCORED, np.int32)
        padded[: len(ids)], segments[: len(ids)] = ids, 1
        return np.asarray(_forward_logits(self.model, self.params, padded, segments))[: len(ids)]

    def next_logits(self, request, result):
        """Logits [T, V] from which each id of a result was drawn."""
        return self.logits(request.ids + result.ids)[len(request.ids) - 1 : -1]

    def trainer_logprobs(self, request, result):
        """Log-probabilities of a result's ids as an update takes them, in float32."""
        ids = request.ids + result.ids
        padded, segments = np.zeros(SCORED, np.int32), np.zeros(SCORED, np.int32)
        padded[: len(ids)], segments[: len(ids)] = ids, 1
        temperature = request.sampling.temperature or 1.0
        scores = _trainer_logprobs(self.model, temperature, self.params, padded, segments)
        return np.asarray(scores)[len(request.ids) - 1 : len(ids) - 1]

    def prompt(self, number, length):
        return tuple(np.random.default_rng(number).integers(5, self.model.vocab_size, length).tolist())

    def turn(self, number, *, length=20, session=None, ids=None, **sampling):
        sampling = {"max_new_tokens": 10, "seed": number} | sampling
        return GenerateRequest(
            f"request-{number}", session or f"session-{number}", ids or self.prompt(number, length),
            SamplingParams(**sampling),
        )  # fmt: skip

    def ended_early(self, result):
        """Whether the server's model ended the turn by itself, which none of ours does."""
        return result.finish_reason == "stop" and result.ids[-1] in self.ends


@jax.jit
def _scaled(params):
    return jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, params)


@jax.jit(static_argnums=0)
def _forward_logits(model, params, ids, segments):
    return _hidden(model, params, ids, segments) @ head_weights(params).T


@jax.jit(static_argnums=(0, 1))
def _trainer_logprobs(model, temperature, params, ids, segments):
    hidden, following = _hidden(model, params, ids, segments), jnp.roll(ids, -1)
    return token_logprobs(hidden, head_weights(params), following, temperature=temperature).logprobs


def _hidden(model, params, ids, segments):
    return forward(model, params, ids[None], jnp.arange(SCORED)[None], segments[None])[0]


def client(urls, model, folders, **options):
    return SglangEngine(
        HttpOptions(urls, attempts=2), vocab_size=model.vocab_size, max_length=SIZES["max_length"],
        write_weights=folders, **options,
    )  # fmt: skip


def embedded(params):
    return EmbeddedEngine(MODEL, params, EngineConfig(num_slots=SLOTS, **SIZES))


@pytest.fixture(scope="module", params=["embedded", "http", "sglang"])
def subject(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("conformance")
    with contextlib.ExitStack() as stack:
        if request.param == "sglang":
            if not (SGLANG_URL and SGLANG_MODEL):
                pytest.skip(NO_SGLANG)
            model, params = hf.load(SGLANG_MODEL)
            folders = WeightFolders(root / "weights", model, source=SGLANG_MODEL)
            ends = json.loads((pathlib.Path(SGLANG_MODEL) / "config.json").read_text()).get("eos_token_id", [])
            ends = frozenset(ends if isinstance(ends, list) else [ends])
            made = Subject(
                "sglang", None, model, params, lambda **options: client((SGLANG_URL,), model, folders, **options), ends
            )
        elif request.param == "http":
            params = draw_params(0)
            hf.save(root / "model", MODEL, params, dtype="float32")
            arguments = ("--model", str(root / "model"), *server_arguments(slots=SLOTS, **SIZES))
            server = stack.enter_context(ServerProcess("sage_jax.rollout.server", *arguments))
            folders = WeightFolders(root / "weights", MODEL, source=root / "model")
            made = Subject("http", None, MODEL, params, lambda: client((server.url,), MODEL, folders))
        else:
            params = draw_params(0)
            made = Subject("embedded", None, MODEL, params, lambda: embedded(params))
        made.engine = stack.enter_context(contextlib.closing(made.another()))
        yield made


@pytest.fixture
def fresh(subject):
    """The subject with its own weights under a version of their own and nothing cached."""
    subject.push()
    return subject


# What a turn is.


SAMPLING = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.0},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"top_k": 5, "top_p": 0.8},
]


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_logprobs_are_those_of_the_trainer(fresh, sampling):
    requests = [fresh.turn(n, length=5 + 37 * n, max_new_tokens=19, **sampling) for n in range(4)]
    for request, result in zip(requests, fresh.run(*requests), strict=True):
        np.testing.assert_allclose(result.logprobs, fresh.trainer_logprobs(request, result), rtol=0, atol=1e-4)
        assert len(result.ids) == 19 or fresh.ended_early(result)


def test_greedy_takes_the_argmax(fresh):
    request = fresh.turn(1, length=40, max_new_tokens=21, temperature=0.0)
    (result,) = fresh.run(request)
    assert result.ids == tuple(np.argmax(fresh.next_logits(request, result), axis=-1).tolist())


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_the_narrowest_sampling_is_greedy(fresh, sampling):
    narrow, greedy = fresh.turn(1, **sampling), fresh.turn(1, session="other", temperature=0.0)
    first, second = fresh.run(narrow, greedy)
    assert first.ids == second.ids


@pytest.mark.parametrize("top_k", [2, 5])
def test_top_k_keeps_k(fresh, top_k):
    request = fresh.turn(3, max_new_tokens=30, top_k=top_k, temperature=1.5)
    (result,) = fresh.run(request)
    logits = fresh.next_logits(request, result)
    least = np.sort(logits, axis=-1)[:, -top_k]
    assert np.all(logits[np.arange(len(result.ids)), np.array(result.ids)] >= least - 1e-3)


@pytest.mark.parametrize("top_p", [0.3, 0.7])
def test_top_p_keeps_the_nucleus(fresh, top_p):
    request = fresh.turn(4, max_new_tokens=30, top_p=top_p)
    (result,) = fresh.run(request)
    probs = np.asarray(jax.nn.softmax(fresh.next_logits(request, result)), np.float64)
    for row, token in zip(probs, result.ids, strict=True):
        assert row[row > row[token] * (1 + 1e-4)].sum() < top_p + 1e-3  # mass above it had not yet reached top_p


@pytest.mark.parametrize("budget", [1, 2, 7, 19])
def test_a_turn_has_at_most_its_budget(fresh, budget):
    (result,) = fresh.run(fresh.turn(5, max_new_tokens=budget))
    assert fresh.ended_early(result) or (len(result.ids), result.finish_reason) == (budget, "length")


@pytest.mark.parametrize("length", [1, 2, 9, 33, 150])
def test_prompts_of_any_length(fresh, length):
    request = fresh.turn(6, length=length, temperature=0.0, max_new_tokens=3)
    (result,) = fresh.run(request)
    assert result.prompt_tokens == length
    assert result.ids[0] == int(np.argmax(fresh.logits(request.ids)[-1]))


@pytest.mark.parametrize("place", [0, 3])
def test_a_stop_id_ends_the_turn_and_is_part_of_it(fresh, place):
    (free,) = fresh.run(fresh.turn(7, temperature=0.0))
    stop = free.ids[place]
    (result,) = fresh.run(fresh.turn(7, temperature=0.0, stop_token_ids=(stop,)))
    assert result.finish_reason == "stop"
    assert result.ids == free.ids[: free.ids.index(stop) + 1]
    assert len(result.logprobs) == len(result.ids)


def test_the_first_of_several_stop_ids_counts(fresh):
    (free,) = fresh.run(fresh.turn(8, temperature=0.0))
    stops = (free.ids[6], free.ids[2])
    (result,) = fresh.run(fresh.turn(8, temperature=0.0, stop_token_ids=stops))
    assert result.ids == free.ids[: min(free.ids.index(stop) for stop in stops) + 1]


def test_a_stop_id_on_the_last_token_is_a_stop(fresh):
    (free,) = fresh.run(fresh.turn(9, temperature=0.0, max_new_tokens=4))
    end = free.ids.index(free.ids[3]) + 1
    (result,) = fresh.run(fresh.turn(9, temperature=0.0, max_new_tokens=end, stop_token_ids=(free.ids[3],)))
    assert (len(result.ids), result.finish_reason) == (end, "stop")


def test_a_stop_id_that_does_not_come_changes_nothing(fresh):
    (free,) = fresh.run(fresh.turn(10, temperature=0.0))
    other = next(token for token in range(5, 50) if token not in free.ids)
    (result,) = fresh.run(fresh.turn(10, temperature=0.0, stop_token_ids=(other,)))
    assert (result.ids, result.finish_reason) == (free.ids, free.finish_reason)


def test_values_have_the_types_that_are_promised(fresh):
    (result,) = fresh.run(fresh.turn(11))
    assert all(type(token) is int for token in result.ids)
    assert all(type(value) is float and -1e4 < value <= 0 for value in result.logprobs)
    assert result.sampled_logprobs is None or len(result.sampled_logprobs) == len(result.ids)


# Seeds and neighbours.


def test_a_seed_decides_the_turn(fresh):
    if fresh.kind == "sglang":
        pytest.skip("SGLang ignores seeds without --enable-deterministic-inference, which a CPU does not have")
    first, again = fresh.run(fresh.turn(12, session="a")), fresh.run(fresh.turn(12, session="b"))
    assert (first[0].ids, first[0].logprobs) == (again[0].ids, again[0].logprobs)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_turns_are_those_of_an_engine_in_this_process(fresh, sampling):
    if fresh.kind == "sglang":
        pytest.skip("another implementation draws other tokens")
    requests = [fresh.turn(n, length=3 + 17 * n, max_new_tokens=9, **sampling) for n in range(4)]
    with contextlib.closing(embedded(fresh.params)) as engine:
        expected = dataclasses.replace(fresh, engine=engine).run(*requests)
    for there, here in zip(fresh.run(*requests), expected, strict=True):
        assert (there.ids, there.logprobs, there.finish_reason) == (here.ids, here.logprobs, here.finish_reason)


def test_seeds_differ(fresh):
    ids = fresh.prompt(13, 20)
    results = fresh.run(*(fresh.turn(n, ids=ids, temperature=1.5, max_new_tokens=16) for n in range(8)))
    assert len({result.ids for result in results}) >= 7


@pytest.mark.parametrize("others", [3, 15])
def test_neighbours_do_not_change_a_greedy_turn(fresh, others):
    request = fresh.turn(14, length=30, temperature=0.0)
    (alone,) = fresh.run(request)
    neighbours = [fresh.turn(100 + n, length=3 + 9 * n, max_new_tokens=5 + n) for n in range(others)]
    together = fresh.run(*neighbours, dataclasses.replace(request, session="again"))[-1]
    assert together.ids == alone.ids
    np.testing.assert_allclose(together.logprobs, alone.logprobs, atol=1e-4)


def test_more_requests_than_slots_are_all_answered(fresh):
    requests = [fresh.turn(200 + n, length=3 + n, max_new_tokens=4) for n in range(40)]
    results = fresh.run(*requests)
    assert [result.prompt_tokens for result in results] == [3 + n for n in range(40)]


# Sessions.


def test_a_second_turn_continues_the_first(fresh):
    first = fresh.turn(20, length=40, temperature=0.0, session="episode")
    (turn,) = fresh.run(first)
    context = first.ids + turn.ids + fresh.prompt(21, 12)
    second = fresh.turn(21, ids=context, temperature=0.0, session="episode")
    (continued,) = fresh.run(second)
    assert continued.prompt_tokens == len(context)
    assert continued.ids == tuple(np.argmax(fresh.next_logits(second, continued), axis=-1).tolist())


def test_history_is_not_computed_again(fresh):
    context, prefilled = fresh.prompt(22, 40), 0
    for number in range(4):
        (turn,) = fresh.run(fresh.turn(22 + number, ids=context, session="long episode"))
        assert turn.cached_tokens >= prefilled
        prefilled = len(context) - 1  # all of the prompt but its last token
        context += turn.ids + fresh.prompt(30 + number, 12)


def test_sessions_do_not_mix(fresh):
    contexts = {f"s{n}": fresh.prompt(40 + n, 20 + n) for n in range(6)}
    for _ in range(3):
        requests = [fresh.turn(40, ids=ids, temperature=0.0, session=name, max_new_tokens=4)
                    for name, ids in contexts.items()]  # fmt: skip
        for request, result in zip(requests, fresh.run(*requests), strict=True):
            assert result.ids == tuple(np.argmax(fresh.next_logits(request, result), axis=-1).tolist())
            contexts[request.session] += result.ids + fresh.prompt(50, 5)


def test_a_context_may_be_replaced(fresh):
    fresh.run(fresh.turn(51, session="changing"))
    request = fresh.turn(52, session="changing", temperature=0.0)
    (result,) = fresh.run(request)
    assert result.ids[0] == int(np.argmax(fresh.logits(request.ids)[-1]))


def test_ending_sessions_known_or_not_is_fine(fresh):
    async def use():
        request = fresh.turn(53, temperature=0.0)
        first = await fresh.engine.generate(request)
        await fresh.engine.end_session(request.session)
        await fresh.engine.end_session("never seen")
        return first, await fresh.engine.generate(request)

    first, second = asyncio.run(use())
    assert first.ids == second.ids


@pytest.mark.parametrize("length", [200, 300])
def test_a_context_without_room_ends_with_length(fresh, length):
    (result,) = fresh.run(fresh.turn(54, length=length))
    assert (result.ids, result.finish_reason, result.prompt_tokens) == ((), "length", length)


def test_a_nearly_full_context_gets_what_fits(fresh):
    (result,) = fresh.run(fresh.turn(55, length=197))
    assert fresh.ended_early(result) or (len(result.ids), result.finish_reason) == (3, "length")


# What is refused.


@pytest.mark.parametrize("excess", [0, 1000])
def test_ids_outside_the_vocabulary_are_refused(fresh, excess):
    with pytest.raises(EngineError, match="ids has id"):
        fresh.run(fresh.turn(60, ids=(5, fresh.model.vocab_size + excess)))


def test_negative_ids_are_refused(fresh):
    with pytest.raises(EngineError, match="ids has id -1"):
        fresh.run(fresh.turn(61, ids=(5, -1)))


def test_stop_ids_outside_the_vocabulary_are_refused(fresh):
    with pytest.raises(EngineError, match="stop_token_ids has id"):
        fresh.run(fresh.turn(62, stop_token_ids=(fresh.model.vocab_size,)))


def test_an_empty_context_is_refused(fresh):
    with pytest.raises(EngineError, match="empty"):
        fresh.run(GenerateRequest("request", "session", (), SamplingParams(4)))


def test_two_turns_of_one_session_are_refused(fresh):
    async def both():
        turns = [fresh.turn(n, session="same", max_new_tokens=50) for n in (63, 64)]
        return await asyncio.gather(*map(fresh.engine.generate, turns), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first.ids
    assert isinstance(second, EngineError)
    assert "already has a turn" in str(second)


def test_a_cancelled_turn_leaves_its_session_usable(fresh):
    async def cancel_and_ask_again():
        task = asyncio.create_task(fresh.engine.generate(fresh.turn(65, session="cancelled", max_new_tokens=150)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await fresh.engine.generate(fresh.turn(66, session="cancelled", temperature=0.0))

    result = asyncio.run(cancel_and_ask_again())
    assert result.ids[0] == int(np.argmax(fresh.logits(fresh.prompt(66, 20))[-1]))


# Weights.


def test_a_turn_tells_its_version(subject):
    version = subject.push()
    (result,) = subject.run(subject.turn(70))
    assert result.weight_version == version
    assert [(span.version, span.start, span.end) for span in result.weight_versions] == [(version, 0, len(result.ids))]


def test_new_weights_are_used(fresh):
    request = fresh.turn(71, temperature=0.0)
    other = jax.tree.map(lambda leaf: leaf * 0.5 if leaf.ndim > 2 else leaf, fresh.params)
    version = fresh.push(other)
    (result,) = fresh.run(request)
    assert result.weight_version == version
    expected = dataclasses.replace(fresh, params=other).next_logits(request, result)
    assert result.ids == tuple(np.argmax(expected, axis=-1).tolist())
    np.testing.assert_allclose(
        result.logprobs, jax.nn.log_softmax(expected)[np.arange(len(result.ids)), np.array(result.ids)], atol=1e-4
    )


def test_new_weights_may_be_sent_as_tensors(fresh):
    if fresh.kind != "sglang":
        pytest.skip("only SGLang takes tensors")
    request = fresh.turn(71, temperature=0.0)
    other = jax.tree.map(lambda leaf: leaf * 0.5 if leaf.ndim > 2 else leaf, fresh.params)
    fresh.push(other)
    (read,) = fresh.run(request)
    fresh.push()
    with contextlib.closing(fresh.another(weight_transfer="tensor")) as engine:
        sender = dataclasses.replace(fresh, engine=engine, params=other)
        version = sender.push()
        (sent,) = sender.run(request)
        assert sent.weight_version == version
    assert sent.ids == read.ids
    np.testing.assert_allclose(sent.logprobs, read.logprobs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sent.logprobs, sender.trainer_logprobs(request, sent), rtol=0, atol=1e-4)


def test_an_update_forgets_what_was_computed_before(fresh):
    request = fresh.turn(72, length=60, session="kept")
    fresh.run(request)
    fresh.push()
    (result,) = fresh.run(request)
    assert result.cached_tokens == 0


def test_the_same_weights_again_give_the_same_turn(fresh):
    request = fresh.turn(73, temperature=0.0)
    (first,) = fresh.run(request)
    fresh.push()
    (second,) = fresh.run(request)
    assert first.ids == second.ids


def test_a_version_is_given_once(subject):
    version = subject.push()
    with pytest.raises(EngineError, match="already in use"):
        subject.engine.update_weights(subject.params, version)


def test_weights_of_another_shape_are_refused_and_the_old_ones_stay(fresh):
    wrong = {**fresh.params, "embed": fresh.params["embed"][:-1]}
    with pytest.raises(EngineError, match="do not fit"):
        fresh.push(wrong)
    request = fresh.turn(74, temperature=0.0)
    (result,) = fresh.run(request)
    assert result.ids == tuple(np.argmax(fresh.next_logits(request, result), axis=-1).tolist())


def test_an_update_is_refused_while_a_turn_runs(fresh):
    async def update_in_between():
        task = asyncio.create_task(fresh.engine.generate(fresh.turn(75, max_new_tokens=100)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="cannot update"):
            fresh.push()
        return await task

    assert asyncio.run(update_in_between()).ids


def test_an_update_may_follow_a_cancelled_turn(fresh):
    async def cancel_and_update():
        tasks = [asyncio.create_task(fresh.engine.generate(fresh.turn(76 + n, max_new_tokens=150))) for n in range(4)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return fresh.push()

    version = asyncio.run(cancel_and_update())
    (result,) = fresh.run(fresh.turn(76))
    assert result.weight_version == version


# The rest of the protocol.


def test_it_is_an_engine_in_health(fresh):
    assert isinstance(fresh.engine, Engine)
    fresh.engine.health()


def test_stats_count(fresh):
    before = fresh.engine.stats()
    (result,) = fresh.run(fresh.turn(80))
    after = fresh.engine.stats()
    grown = {name: after[name] - before[name] for name in ("requests", "prompt_tokens", "generated_tokens")}
    assert grown == {"requests": 1, "prompt_tokens": 20, "generated_tokens": len(result.ids)}


def test_a_closed_engine_says_so(subject):
    engine = subject.another()
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate(subject.turn(81)))


def test_closing_reaches_turns_in_progress(subject):
    engine = subject.another()

    async def close_in_between():
        task = asyncio.create_task(engine.generate(subject.turn(82, max_new_tokens=150)))
        await asyncio.sleep(0)
        engine.close()
        return await asyncio.gather(task, return_exceptions=True)

    (answer,) = asyncio.run(close_in_between())
    assert isinstance(answer, EngineError)
