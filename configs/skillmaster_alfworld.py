"""SkillMaster (arXiv 2605.08693) on ALFWorld: act, review with one skill edit, pay the edit by its probes.

    python -m experiments.main --config=configs/skillmaster_alfworld.py           # local: minutes on 2 CPU cores
    python -m experiments.main --config=configs/skillmaster_alfworld.py:smoke     # every stage once, about a minute
    python -m experiments.main --config=configs/skillmaster_alfworld.py:paper --mode=check

paper reproduces the ALFWorld column of the paper's main table: 98.7 % success over all families (GRPO: 77.6 %) with
Qwen2.5-7B-Instruct, 8 tasks x 8 rollouts a step, 300 steps; it needs an SFT start and accelerators.
local is a twin: generated games (rooms of at most 12 receptacles, 20 steps) and a model of 0.9M parameters.
"""

from sage_jax import config
from sage_jax.settings import RunSettings

SCALES = ("local", "smoke", "paper")

LOCAL = dict(
    name="skillmaster_alfworld",
    run_dir="runs/skillmaster_alfworld",
    method="skillmaster",
    max_steps=20,
    rounds=40,
    tasks_per_round=6,
    group_size=8,
    probes=2,
    kl_coef=0.0,
    lr=3e-4,
    lr_warmup=2,
    sft_lr=3e-4,
    sft_episodes=96,
    sft_epochs=2,
)
SMOKE = LOCAL | dict(
    name="smoke",
    run_dir="runs/smoke",
    scale="smoke",
    games_train=3,
    games_valid=1,
    rounds=2,
    tasks_per_round=2,
    group_size=4,
    probes=1,
    sft_episodes=6,
    sft_epochs=1,
    eval_episodes=6,
    slots=16,
    kl_coef=0.01,
)
PAPER = dict(
    name="skillmaster_alfworld_paper",
    run_dir="runs/skillmaster_alfworld_paper",
    scale="paper",
    method="skillmaster",
    model="models/Qwen2.5-7B-Instruct",
    model_preset="qwen2.5-7b-instruct",
    source="official",
    context="steps",
    max_steps=50,
    act_tokens=512,
    review_tokens=512,
    history=12,
    retrieval_top_k=13,
    mutate="never",  # as released: training edits are dry runs
    rounds=300,
    tasks_per_round=8,
    group_size=8,
    probes=4,
    sign_weight=0.3,
    gamma=0.2,
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
    mesh="fsdp:8",
    slots=64,
    max_length=8704,
    row_length=8704,
    rows_per_micro=1,
)


def get_config(arg: str = ""):
    """Returns the config of a scale, with typed overrides: "smoke,seed=3"."""
    scale, values = config.parse_arg(arg, scales=SCALES, settings=RunSettings)
    return config.configure(RunSettings, {"local": LOCAL, "smoke": SMOKE, "paper": PAPER}[scale] | values)
