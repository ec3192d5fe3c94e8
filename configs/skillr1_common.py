"""What the Skill-R1 configs share at each scale; a config file adds its benchmark. Not a config itself."""

from typing import Any

from sage_jax import config
from sage_jax.settings import RunSettings

METHOD: dict[str, Any] = dict(
    method="skillr1",
    aggregation="sequence_mean",
    ratio_level="sequence",
    dual_clip=0.0,
    entropy_coef=0.0,
    sft_episodes=0,
    eval_splits=("test",),
)
# The small editor and the program that follows skills (rollout/site_follower.py, file_follower.py).
LOCAL: dict[str, Any] = METHOD | dict(
    model="assets/editor",
    source="generated",
    task_llm="follower",
    task_slip=0.02,
    skill_format="body",
    skill_tokens=16,
    history_tokens=24,  # the last skill and whether it worked: all that the small editor was taught to read
    max_steps=25,
    generations=3,
    siblings=4,
    skill_rollouts=2,
    inter_coef=0.5,
    instances=16,
    rounds=40,
    tasks_per_round=16,
    epochs=2,  # small steps, more than one on the same skills: docs/papers/skill_r1.md
    clip_low=0.4,  # of a whole text's ratio: a text of four steps in which each moved by a tenth has moved by 0.46
    clip_high=0.8,
    entropy_coef=0.01,
    kl_coef=0.0,
    lr=6e-4,
    lr_warmup=4,
    eval_episodes=0,
    eval_temperature=1.0,
    env_workers=1,
    slots=64,
    max_length=320,
    row_length=320,
    rows_per_micro=8,
    min_micro=6,  # one shape, compiled once
    capacity_multiple=512,
    share_prefixes=True,  # siblings have one prompt
)
SMOKE: dict[str, Any] = LOCAL | dict(rounds=2, tasks_per_round=2, skill_rollouts=2, generations=2, eval_episodes=6)
# The sizes that the paper names, and a published editor training's for what it leaves open.
PAPER: dict[str, Any] = METHOD | dict(
    model="models/Qwen3-4B",
    model_preset="qwen3-4b",
    source="official",
    task_llm="endpoint",
    task_url="https://api.openai.com/v1",
    task_model="gpt-4o-mini",
    task_key_env="OPENAI_API_KEY",
    task_mode="tools",
    generations=5,
    siblings=4,
    skill_rollouts=4,
    skill_tokens=4096,
    history_tokens=15000,
    temperature=0.95,
    top_k=50,
    max_steps=15,
    rounds=100,
    tasks_per_round=6,
    lr=1e-6,
    lr_schedule="cosine",
    kl_coef=0.01,
    episode_timeout_s=1800.0,
    eval_episodes=0,
    compute_dtype="bfloat16",
    remat="full",
    unroll=False,
    mesh="fsdp:4+tensor:4",  # 16 chips of v5e: docs/scale.md
    slots=64,
    max_length=20480,
    row_length=20480,
    rows_per_micro=1,
)
VALUES = {"local": LOCAL, "smoke": SMOKE, "paper": PAPER}


def make_config(arg: str | None, name: str, scales: tuple[str, ...], own: dict[str, Any]):
    """Returns the config of the scale that `arg` names, with its typed overrides: "smoke,seed=3".

    Args:
      arg: what follows the colon of --config.
      name: of the config; runs go to runs/<name>, other scales than the first to runs/<name>_<scale>.
      scales: those that the config offers, default first.
      own: values of the benchmark.
    """
    scale, values = config.parse_arg(arg, scales=scales, settings=RunSettings)
    name = name if scale == scales[0] else f"{name}_{scale}"
    named = dict(name=name, run_dir=f"runs/{name}", scale=scale)
    return config.configure(RunSettings, VALUES[scale] | named | own | values)
