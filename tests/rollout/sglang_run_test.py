"""One round of the main program on a real SGLang server, and its log-probs beside the trainer's.

Both need a float32 server that SAGE_JAX_SGLANG_URL names, and SAGE_JAX_SGLANG_MODEL, the folder of its model with a
chat template; `make test-sglang` starts one.
"""

import json
import os
import pathlib

import httpx
import pytest

from sage_jax.config import configure, to_dataclass
from sage_jax.models import hf
from sage_jax.settings import RunSettings
from sage_jax.training.loop import train

URL, MODEL = os.environ.get("SAGE_JAX_SGLANG_URL"), os.environ.get("SAGE_JAX_SGLANG_MODEL")
pytestmark = [
    pytest.mark.skipif(
        not (URL and MODEL),
        reason="needs a real server: set SAGE_JAX_SGLANG_URL and SAGE_JAX_SGLANG_MODEL, or run `make test-sglang`",
    ),
    pytest.mark.timeout(3600),
]
# Few episodes, ended early by a short context: the model may have 135M parameters, and server and trainer share the
# cores. The cold start is just enough for acts in the agent's form: without a spread of rewards there is no update.
VALUES = dict(  # noqa: C408  (reads like the command line)
    scale="sglang",
    unroll=False,
    remat="full",
    source="generated",
    games_train=1,
    games_valid=1,
    max_receptacles=6,
    expert_steps=12,
    env_workers=1,
    max_steps=12,
    act_tokens=40,
    review_tokens=16,
    utility=False,
    rounds=1,
    tasks_per_round=2,
    group_size=3,
    advantage_eps=1e-6,
    lr=1e-4,
    kl_coef=0.0,
    sft_episodes=6,
    sft_epochs=1,
    sft_tokens=768,
    sft_lr=5e-4,
    eval_episodes=1,
    eval_splits=("valid_seen",),
    max_length=320,
    row_length=768,
    rows_per_micro=1,
    capacity_multiple=256,
    engine="http",
)


def test_a_round_samples_on_sglang_and_gives_it_new_weights(tmp_path, tiny_cache):
    values = VALUES | {
        "model": MODEL,
        "engine_urls": (URL,),
        "run_dir": str(tmp_path / "run"),
        "cache": str(tiny_cache),
    }
    folder = train(to_dataclass(configure(RunSettings, values), RunSettings))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (learned,) = [line for line in lines if "loss/engine_gap_max" in line]
    print({name: learned[name] for name in sorted(learned) if name.startswith(("loss/engine", "time/", "update/"))})
    assert learned["update/steps"] == 1
    assert 0 < learned["loss/engine_gap_max"] < 1e-4  # server and trainer, both float32, on the same weights
    # The weights of the last evaluation, after the round, are what the server has: version and parameters.
    info = httpx.get(f"{URL}/model_info", trust_env=False).json()
    newest = folder / "weights" / "version-001000002"
    assert info["weight_version"].endswith("-1000002")
    assert pathlib.Path(info["model_path"]) == newest.resolve()
    (_, before), (_, after) = hf.load(MODEL), hf.load(newest)
    assert abs(after["final_norm"]["scale"] - before["final_norm"]["scale"]).max() > 0
