"""What the ALFWorld configs share at each scale; a config file adds its method. Not a config itself."""

from typing import Any

from configs import common
from configs.common import SCALES

LOCAL: dict[str, Any] = dict(
    habit=0.9,
    games_valid=20,
    eval_episodes=120,
    max_steps=10,  # short of what searching at random needs: knowing where things are decides
    rounds=20,
    tasks_per_round=12,
    group_size=8,
    advantage_eps=1.0,  # at 1e-6 a group without a win blows the prices of act_shaping up: docs/results.md
    kl_coef=0.0,
    lr=3e-4,
    lr_schedule="cosine",
    lr_warmup=3,
    sft_lr=3e-4,
    sft_episodes=96,
    sft_epochs=3,
    review_guess=0.6,  # reviews of the cold start guess: what makes an edit good is left to learn
    min_micro=24,
    capacity_multiple=4096,
)
SMOKE: dict[str, Any] = LOCAL | dict(
    games_train=3,
    games_valid=1,
    rounds=2,
    tasks_per_round=2,
    group_size=4,
    sft_episodes=6,
    eval_episodes=6,
    min_micro=1,
    slots=16,
    kl_coef=0.01,
)
# SmolLM2-135M-Instruct (third_party/smollm2/get.sh) on the tasks of local: a night on a CPU.
SMOLLM2: dict[str, Any] = LOCAL | dict(
    model="models/SmolLM2-135M-Instruct",
    model_preset="smollm2-135m-instruct",
    rounds=24,
    tasks_per_round=4,
    group_size=6,
    lr=1e-5,
    sft_lr=1e-4,
    sft_episodes=48,
    sft_epochs=1,
    eval_episodes=24,
    min_micro=1,
    capacity_multiple=1024,
    remat="full",
    slots=24,
    max_length=2048,
    row_length=2048,
    rows_per_micro=1,
)
PAPER: dict[str, Any] = dict(
    model="models/Qwen2.5-7B-Instruct",
    model_preset="qwen2.5-7b-instruct",
    source="official",
    context="steps",
    max_steps=50,
    act_tokens=512,
    history=12,
    rounds=300,
    tasks_per_round=8,
    group_size=8,
    kl_coef=0.01,
    entropy_coef=0.001,
    lr=1e-6,
    dual_clip=3.0,
    minibatches=25,  # 128 step samples an update; a round has about 64 episodes x 50 steps
    sft_episodes=2000,
    sft_epochs=2,
    sft_tokens=81920,  # batch 16 at length 5120
    sft_lr=1e-5,
    eval_episodes=128,
    eval_every=5,
    eval_temperature=0.4,
    save_every=5,
    compute_dtype="bfloat16",
    remat="full",
    unroll=False,
    mesh="fsdp:8+tensor:4",  # 32 chips of v5e: docs/scale.md
    slots=64,
    max_length=8704,
    row_length=8704,
    rows_per_micro=1,
)


def make_config(arg: str | None, name: str, own: dict[str, dict[str, Any]]):
    """Returns the config of a scale, see configs/common.py."""
    return common.make_config(arg, name, dict(zip(SCALES, (LOCAL, SMOKE, SMOLLM2, PAPER), strict=True)), own)
