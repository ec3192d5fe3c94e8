"""What the AppWorld configs share at each scale; a config file adds its method. Not a config itself."""

from typing import Any

from sage_jax import config
from sage_jax.settings import RunSettings

# SAGE's objective, and GRPO's here: reward minus the group's mean, a sequence's tokens averaged first, no KL.
METHOD: dict[str, Any] = dict(
    outcome="success",
    reward_scale=1.0,
    act_shaping=False,
    advantage="mean",
    group_stats="episodes",
    gamma=1.0,
    aggregation="sequence_mean",
    dual_clip=0.0,
    kl_coef=0.0,
    entropy_coef=0.0,
    retrieval="none",
    mutate="never",
    utility=False,
)
LOCAL: dict[str, Any] = METHOD | dict(
    model="assets/code",
    benchmark="appworld_lite",
    app_guide=False,
    app_output=600,
    lite_train=3,
    lite_test=34,
    max_steps=8,
    act_tokens=512,
    rounds=5,
    group_size=6,
    lr=3e-4,
    lr_schedule="cosine",
    lr_warmup=1,
    sft_episodes=32,
    sft_epochs=1,
    sft_lr=1e-4,
    eval_episodes=0,
    eval_splits=("test_normal",),
    concurrency=32,
    slots=32,
    max_length=1536,
    row_length=1536,
    rows_per_micro=4,
    capacity_multiple=2048,
)
SMOKE: dict[str, Any] = LOCAL | dict(
    lite_train=1,
    lite_test=2,
    rounds=2,
    group_size=2,
    max_steps=5,
    sft_episodes=4,
    eval_episodes=3,
    slots=8,
)
PAPER: dict[str, Any] = METHOD | dict(
    model="models/Qwen2.5-32B-Instruct",
    model_preset="qwen2.5-32b-instruct",
    benchmark="appworld",
    source="official",
    app_servers=16,
    env_workers=16,
    env_timeout_s=180.0,
    max_steps=40,
    act_tokens=1500,
    rounds=75,
    group_size=8,
    lr=1e-6,
    lr_schedule="constant",
    episode_timeout_s=3600.0,
    sft_episodes=0,
    sft_epochs=2,  # Unspecified: the paper has neither passes nor learning rate of its cold start
    sft_tokens=458752,
    sft_lr=1e-5,
    eval_episodes=0,
    eval_every=5,
    eval_temperature=0.0,
    eval_splits=("test_normal", "test_challenge"),
    concurrency=128,
    save_every=5,
    compute_dtype="bfloat16",
    remat="full",
    unroll=False,
    mesh="fsdp:4+tensor:8",  # 32 chips of v5p: docs/scale.md
    slots=64,
    max_length=28048,
    row_length=28672,
    rows_per_micro=1,
)
SCALES = {"local": LOCAL, "smoke": SMOKE, "paper": PAPER}


def make_config(arg: str | None, name: str, own: dict[str, dict[str, Any]]):
    """Returns the config of the scale that `arg` names, with its typed overrides: "smoke,seed=3".

    Args:
      arg: what follows the colon of --config.
      name: of the config; runs go to runs/<name>, other scales than local to runs/<name>_<scale>.
      own: values of the method at each scale.
    """
    scale, values = config.parse_arg(arg, scales=tuple(SCALES), settings=RunSettings)
    name = name if scale == "local" else f"{name}_{scale}"
    named = dict(name=name, run_dir=f"runs/{name}", scale=scale)
    return config.configure(RunSettings, SCALES[scale] | named | own[scale] | values)
