import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.config import configure, to_dataclass
from sage_jax.errors import ConfigError, ServerUnavailableError
from sage_jax.models import ModelConfig, forward, head_weights, hf, init_params
from sage_jax.rollout import GenerateRequest, SamplingParams
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.settings import RunSettings
from sage_jax.testing.faulty_server import FaultyServer
from sage_jax.training import engines
from sage_jax.training.engines import engine_metrics, open_engine

MODEL = ModelConfig(
    vocab_size=96, hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8,
    max_position=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def params():
    return init_params(MODEL, jax.random.key(0))


def settings(**values):
    sizes = {"slots": 8, "max_length": 64, "row_length": 64}
    return to_dataclass(configure(RunSettings, {**sizes, **values}), RunSettings)


def test_embedded_is_the_default(params, tmp_path):
    engine = open_engine(settings(), tmp_path, MODEL, params)
    assert isinstance(engine, EmbeddedEngine)
    engine.close()


def test_an_engine_across_processes_is_refused(params, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda *_: 1)  # as if the first device were another process's
    one = jax.make_mesh((1, 1), ("data", "tensor"), devices=jax.devices()[:1])
    monkeypatch.setattr(engines, "engine_mesh", lambda mesh: one)
    monkeypatch.setattr(jax.sharding, "get_mesh", lambda: jax.sharding.AbstractMesh((1, 2), ("data", "tensor")))
    with pytest.raises(ConfigError, match=r"mesh='tensor:2' with engine='embedded'.*engine='http'"):
        open_engine(settings(mesh="tensor:2"), tmp_path, MODEL, params)


@jax.jit
def scores(params, ids):
    """Log-probabilities [T, V] by the learner's forward pass, in float32."""
    hidden = forward(MODEL, params, ids[None], jnp.arange(len(ids))[None], jnp.ones_like(ids)[None])[0]
    return jax.nn.log_softmax(hidden @ head_weights(params).T)


def gap(params, turn, ids):
    """Returns how far the engine's log-probabilities of a turn's tokens are from the learner's."""
    whole = np.asarray(scores(params, jnp.array([*ids, *turn.ids])))
    places = np.arange(len(ids), len(ids) + len(turn.ids)) - 1
    return np.abs(whole[places, np.array(turn.ids)] - np.array(turn.logprobs))


def test_an_engine_of_lower_precision_is_near_the_learner_and_blind_to_its_neighbours(params, tmp_path):
    params = jax.tree.map(lambda leaf: leaf * 8 if leaf.ndim > 1 else leaf, params)  # far from uniform
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(0, MODEL.vocab_size, 16).tolist()) for _ in range(8)]

    def play(engine, numbers):
        async def all_at_once():
            turns = (
                GenerateRequest(f"r{n}", f"s{n}", prompts[n], SamplingParams(max_new_tokens=40, seed=n))
                for n in numbers
            )
            return await asyncio.gather(*map(engine.generate, turns))

        return asyncio.run(all_at_once())

    gaps = {}
    for name, options in (
        ("same", {}),
        ("cache", {"engine_kv_dtype": "bfloat16"}),
        ("whole", {"engine_dtype": "bfloat16"}),
    ):
        engine = open_engine(settings(**options), tmp_path, MODEL, params)
        together = play(engine, range(8))
        engine.update_weights(params, 1)  # in float32, as the learner holds them
        alone = [play(engine, [number])[0] for number in range(2)]
        engine.close()
        for one, other in zip(alone, together, strict=False):
            assert (one.ids, one.logprobs) == (other.ids, other.logprobs)
        gaps[name] = np.concatenate([gap(params, *pair) for pair in zip(together, prompts, strict=True)])
    assert gaps["same"].max() < 1e-4
    assert 1e-4 < gaps["cache"].mean() < gaps["whole"].mean() < 0.05
    assert gaps["whole"].max() < 0.5


def test_what_an_engine_did_in_a_round_by_hand():
    before = {"requests": 3.0, "generated_tokens": 10.0, "evictions": 1, "running": 2, "weight_version": 4}
    after = {"requests": 8.0, "generated_tokens": 50.0, "evictions": 1, "running": 0, "weight_version": 5, "retries": 1}
    want = {"engine/requests": 5, "engine/generated_tokens": 40, "engine/evictions": 0, "time/generated_per_second": 20}
    assert engine_metrics(before, after, 2.0) == want
    assert engine_metrics({"turns": 1.0}, {"turns": 2.0}, 1.0) == {}
    assert engine_metrics(after, {**after, "running": 1}, 1.0) == {}  # nothing was asked of it


def test_servers_have_the_weights_before_the_first_turn(params, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVERS_KEY", "secret")
    hf.save(tmp_path / "model", MODEL, params)
    with FaultyServer() as first, FaultyServer() as second:
        first.key = second.key = "secret"
        chosen = settings(
            engine="http",
            engine_urls=(first.url, second.url),
            engine_api_key_env="SERVERS_KEY",
            model=str(tmp_path / "model"),
        )
        engine = open_engine(chosen, tmp_path, MODEL, params)
        engine.close()
        assert first.version == second.version
        assert first.version.endswith("-0")
    written, _ = hf.load(tmp_path / "weights" / "version-000000000")
    assert written == MODEL


@pytest.mark.parametrize(
    "said", [{"context_length": 63}, {"max_req_input_len": 62}, {"context_length": 99, "max_req_input_len": 62}]
)
def test_servers_of_shorter_contexts_are_refused(params, tmp_path, said):
    with FaultyServer() as server:
        vars(server).update(said)
        with pytest.raises(ConfigError, match="max_length=64: a server takes contexts of 63"):
            open_engine(settings(engine="http", engine_urls=(server.url,)), tmp_path, MODEL, params)
        assert "/update_weights_from_disk" not in server.paths


def test_servers_of_just_as_long_contexts_are_taken(params, tmp_path):
    with FaultyServer() as server:
        server.context_length, server.max_req_input_len = 64, 63
        hf.save(tmp_path / "model", MODEL, params)
        chosen = settings(engine="http", engine_urls=(server.url,), model=str(tmp_path / "model"))
        open_engine(chosen, tmp_path, MODEL, params).close()
        assert server.version.endswith("-0")


def test_a_control_call_has_the_time_that_settings_give_it(params, tmp_path):
    hf.save(tmp_path / "model", MODEL, params)
    with FaultyServer() as server:
        server.update_s = 60
        chosen = settings(
            engine="http",
            engine_urls=(server.url,),
            model=str(tmp_path / "model"),
            engine_control_timeout_s=1.5,
            episode_timeout_s=0.2,
        )
        with pytest.raises(ServerUnavailableError, match="update_weights_from_disk: no complete answer within 1.5 s"):
            open_engine(chosen, tmp_path, MODEL, params)
        assert not server.paused


def test_a_key_that_is_not_there_is_named(params, tmp_path):
    chosen = settings(engine="http", engine_urls=("http://127.0.0.1:1",), engine_api_key_env="NOT_THERE")
    with pytest.raises(ConfigError, match="NOT_THERE"):
        open_engine(chosen, tmp_path, MODEL, params)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine": "http"}, "needs the address"),
        ({"engine_urls": ("http://127.0.0.1:1",)}, "engine='embedded'"),
        ({"engine": "http", "engine_urls": ("http://127.0.0.1:1",), "choices": True}, "choices"),
        ({"engine": "grpc"}, "engine"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        settings(**values)
