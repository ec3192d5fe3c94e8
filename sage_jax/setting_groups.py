"""The groups of keys of a run's configuration, each key with its meaning and limits; settings.py puts them together.

Keys marked `free` may differ when a run is continued.
"""

from __future__ import annotations

import dataclasses

from sage_jax import config
from sage_jax.benchmarks import BENCHMARKS
from sage_jax.config import setting
from sage_jax.data.tasks import SOURCES
from sage_jax.rewards.sage import KINDS as REWARDS
from sage_jax.skills import RETRIEVERS
from sage_jax.skills.program_retrieval import METHODS as PROGRAM_RETRIEVALS
from sage_jax.skills.programs import CREDITS

OPTIMIZERS = ("adamw", "adafactor", "muon")
SCHEDULES = ("constant", "linear", "cosine")
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
ATTENTION = ("auto", "xla", "recompute", "tiled", "cudnn", "splash")
METHODS = ("grpo", "sage", "skillmaster", "skillr1")
OUTCOMES = ("success", "score")
RUNNING_TURNS = ("finish", "correct", "drop")
MODES = ("sibling", "literal")  # as in losses.generations, which loads no settings
KEEPS = ("first", "best")  # as in methods.skill_r1
FORMATS = ("file", "body")  # as in agents.editor
RECEIVERS = ("skilled", "all")  # as in losses.paired
SKILL_FORMS = ("programs", "texts")  # as in methods.libraries
DTYPES = ("", "float32", "bfloat16")  # as in models.config; empty is another key's
IMPORTANCE_LEVELS = ("ratio", "token", "sequence")
CHAINS = ("scenario", "family", "similarity")  # as in methods.chains
TASK_LLMS = ("follower", "endpoint", "policy")
TOOL_BENCHMARKS = ("gaia", "webwalker")  # a task is a question with tools; elsewhere it is an episode of actions
MODES_OF_CALLS = ("tools", "react")  # as in agents.tool_agent


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings(config.Settings):
    """The policy."""

    model: str = setting("assets/base", "Hugging Face folder: config.json, safetensors, tokenizer", free=True)
    model_preset: str = setting("", "published model whose sizes --mode=check uses when `model` is absent")
    compute_dtype: str = setting("float32", "dtype of activations", choices=("float32", "bfloat16"))
    remat: str = setting("none", "what the backward pass recomputes", choices=("none", "dots", "full"))
    unroll: bool = setting(True, "Python loop over layers in training: faster on a CPU, slower to compile")
    attention: str = setting("auto", "kernel of the update; auto fits the platform", choices=ATTENTION, free=True)
    mesh: str = setting("", "mesh axes, e.g. 'fsdp:8+tensor:4'; empty is one device")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraSettings(config.Settings):
    """Low-rank adapters: with a rank they alone are trained, checkpointed and kept by the optimizer."""

    lora_rank: int = setting(0, "rank of the adapters; 0 trains all parameters", low=0)
    lora_alpha: float = setting(16.0, "scale of the adapters, in units of the rank", above=0)
    lora_targets: tuple[str, ...] = setting(LORA_TARGETS, "projections with an adapter", choices=LORA_TARGETS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings(config.Settings):
    """Tasks and environments, whatever the benchmark; each benchmark adds a group of its own keys."""

    benchmark: str = setting("alfworld", "environment", choices=tuple(BENCHMARKS))
    source: str = setting("auto", "official data, a generated twin, or official when it is there", choices=SOURCES)
    cache: str = setting("", "folder for generated data; empty is $SAGE_JAX_CACHE or ~/.cache/sage_jax", free=True)
    env_workers: int = setting(2, "environment processes", low=1, free=True)
    env_backend: str = setting(
        "process",
        "environment workers: processes here, or actors of a Ray cluster",
        choices=("process", "ray"),
        free=True,
    )
    env_timeout_s: float = setting(60.0, "longest time of one environment call, in seconds", above=0, free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentSettings(config.Settings):
    """How the agent plays."""

    context: str = setting("chat", "one growing context, or a fresh prompt a step", choices=("chat", "steps"))
    max_steps: int = setting(30, "environment steps of an episode", low=1)
    act_tokens: int = setting(40, "most tokens of an act turn", low=1)
    review_tokens: int = setting(128, "most tokens of a review turn", low=1)
    history: int = setting(12, "earlier steps shown in a 'steps' prompt", low=0)
    temperature: float = setting(1.0, "sampling temperature in training", above=0)
    top_p: float = setting(1.0, "nucleus sampling, 1 is off", above=0, high=1)
    top_k: int = setting(0, "top-k sampling, 0 is off", low=0)
    choices: bool = setting(False, "sample only admissible actions (reported apart)")
    concurrency: int = setting(64, "episodes played at one time", low=1, free=True)
    episode_timeout_s: float = setting(600.0, "longest time of an episode, in seconds", above=0, free=True)
    straggler_factor: float = setting(
        0.0,
        "3/4 of a round over, episodes that take this many times the median are dropped; 0 waits",
        low=0,
        free=True,
    )
    rollout_backend: str = setting(
        "local",
        "episodes are played in this process, or by actors of a Ray cluster (with engine=http)",
        choices=("local", "ray"),
        free=True,
    )
    rollout_workers: int = setting(2, "these actors, each with env_workers environment processes", low=1, free=True)

    def __post_init__(self) -> None:
        """Checks each field."""
        super().__post_init__()
        if 0 < self.straggler_factor < 1:
            raise config.ConfigError(
                f"straggler_factor={self.straggler_factor}: half of all episodes take longer than that; use 0 to wait "
                "for all, or a factor of the median of 1 or more, such as 3"
            )

    @property
    def truncates(self) -> bool:
        """Whether tokens are drawn from less than the whole distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.choices


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillSettings(config.Settings):
    """The bank and what an edit is worth."""

    bank: str = setting("", "skill file (SkillRL JSON) to start from; empty starts with an empty bank", free=True)
    retrieval: str = setting("template", "how skills are chosen", choices=tuple(RETRIEVERS))
    retrieval_top_k: int = setting(13, "general skills shown at most", low=0)
    retrieval_category: int = setting(0, "skills of the task's category shown at most; 0 shows all", low=0)
    retrieval_mistakes: int = setting(5, "common mistakes shown at most", low=0)
    mutate: str = setting("train", "whether training edits reach the bank", choices=("never", "train"))
    accept: str = setting("utility>0", "which edits enter the bank", choices=("always", "utility>0", "best"))
    utility: bool = setting(True, "reward an edit by probe episodes; off leaves the shaping of the call's form")
    probes: int = setting(4, "K, probe tasks of an edit", low=1)
    probe_topic: bool = setting(False, "probe first on tasks of any family about the same thing")
    sign_weight: float = setting(0.3, "c, weight of the count of better minus worse probes", low=0)
    clip_utility: bool = setting(False, "take max(0, U), as the released code does")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RlSettings(config.Settings):
    """Rounds of reinforcement learning."""

    method: str = setting("skillmaster", "how a round is planned and rewarded", choices=METHODS)
    rounds: int = setting(40, "rounds: rollouts, then an update", low=0, free=True)
    tasks_per_round: int = setting(8, "task groups of a round", low=1)
    group_size: int = setting(8, "n, rollouts of a task", low=1)
    outcome: str = setting("success", "what an episode is paid for: solved or not, or its score", choices=OUTCOMES)
    reward_scale: float = setting(10.0, "reward of a solved task, or of score 1", above=0)
    act_shaping: bool = setting(True, "price the form of act turns (SkillMaster's scripts)")
    advantage: str = setting("zscore", "group advantage", choices=("mean", "zscore", "leave_one_out"))
    advantage_eps: float = setting(1e-6, "added to a z-score's deviation; 1 damps near-equal groups", above=0)
    group_stats: str = setting("steps", "samples of the act statistics", choices=("steps", "episodes"))
    joint: bool = setting(False, "normalise act and review turns together (ablation of DualAdv)")
    gamma: float = setting(0.2, "scale of the review turns' advantages", low=0)
    epochs: int = setting(1, "passes over the same rollouts", low=1)
    minibatches: int = setting(1, "updates of one pass", low=1)
    ahead: bool = setting(False, "play the next round while learning from this one, one update behind")
    running_turns: str = setting(
        "finish",
        "turns of a round ahead when its learner has new weights: play on with the old, go on with the new, or end",
        choices=RUNNING_TURNS,
        free=True,
    )
    aggregation: str = setting("token_mean", "of the loss", choices=("token_mean", "sequence_mean", "constant_length"))
    constant_length: int = setting(0, "tokens, for aggregation constant_length", low=0)
    clip_low: float = setting(0.2, "the ratio is clipped below at 1 - clip_low", above=0, high=1)
    clip_high: float = setting(0.2, "the ratio is clipped above at 1 + clip_high", above=0)
    dual_clip: float = setting(3.0, "bound of the loss of negative advantages; 0 is off", low=0)
    kl_coef: float = setting(0.01, "weight of the divergence from the SFT start", low=0)
    kl_kind: str = setting("k3", "estimator of it", choices=("k1", "k2", "k3"))
    entropy_coef: float = setting(0.001, "entropy bonus", low=0)
    importance_cap: float = setting(0.0, "truncated importance weight against the engine; 0 is off", low=0)
    importance_level: str = setting(
        "ratio", "one importance weight a token, or a sequence; ratio: as ratio_level", choices=IMPORTANCE_LEVELS
    )
    importance_kept: bool = setting(False, "weigh tokens by the mass that top_p, top_k and choices kept of their draw")
    ratio_level: str = setting("token", "one probability ratio a token, or a sequence", choices=("token", "sequence"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CreditSettings(config.Settings):
    """Finer credit than an episode's outcome: step-level groups (GiGPO) and paired rollouts (D2Skill)."""

    step_weight: float = setting(
        0.0, "omega, weight of advantages inside groups of equal observations; 0 is off", low=0
    )
    step_discount: float = setting(0.95, "discount of a step's later rewards", low=0, high=1)
    paired_share: float = setting(0.0, "share of a group's rollouts that is shown no skills", low=0, high=0.9)
    paired_coef: float = setting(0.0, "reward of a rollout's success over that of those without skills", low=0)
    paired_to: str = setting("skilled", "who gets it: rollouts that were shown skills, or all", choices=RECEIVERS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(config.Settings):
    """The optimizer of RL and, but for learning rate and schedule, of the cold start."""

    lr: float = setting(1e-6, "peak learning rate of RL", above=0)
    lr_schedule: str = setting("constant", "after the warm-up", choices=SCHEDULES)
    lr_warmup: int = setting(0, "updates of linear warm-up", low=0)
    optimizer: str = setting("adamw", "optimizer of RL and SFT", choices=OPTIMIZERS)
    weight_decay: float = setting(0.01, "decoupled weight decay", low=0)
    max_grad_norm: float = setting(1.0, "global-norm clip; 0 is off", low=0)
    moment_dtype: str = setting("float32", "dtype of the first moment", choices=("float32", "bfloat16"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SageSettings(config.Settings):
    """SAGE: chains of tasks with a library of the rollout's own; `tasks_per_round` counts chains."""

    baseline: bool = setting(False, "first train GRPO without a library, for the table", free=True)
    chain_length: int = setting(2, "N, tasks of a training chain", low=1)
    chain_by: str = setting("scenario", "what the tasks of a chain have in common", choices=CHAINS)
    chain_reward: str = setting("skill", "reward of a task: with the bonus, outcome, chain mean", choices=REWARDS)
    skill_bonus: float = setting(1.0, "paid to both sides of a skill that was made and used", low=0)
    no_code_reward: float = setting(-1.0, "reward of a task that a turn without code ended")
    partial_reward: bool = setting(False, "the outcome is the share of tests passed; a bonus needs all of them")
    skill_form: str = setting("programs", "what a rollout learns: functions, or texts by reviews", choices=SKILL_FORMS)
    skill_credit: str = setting("trace", "use of a program: called and returned, or named", choices=CREDITS)
    program_retrieval: str = setting("scenario", "programs shown in evaluations", choices=tuple(PROGRAM_RETRIEVALS))
    retrieval_ngram: int = setting(3, "words of an n-gram, for ngram", low=1)
    retrieval_overlap: float = setting(0.3, "least overlap of two queries, for ngram", low=0, high=1)
    retrieval_similarity: float = setting(0.5, "least cosine of two queries, for query_embedding", low=-1, high=1)
    retrieval_queries: int = setting(2, "earlier queries whose programs are shown, for ngram, query_embedding", low=0)
    retrieval_programs: int = setting(6, "programs shown, for skill_embedding", low=0)
    retrieval_model: str = setting("", "sentence-transformers model that embeds; empty hashes words", free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillR1Settings(config.Settings):
    """Skill-R1: generations of skills, written by the policy for a frozen task LLM."""

    generations: int = setting(3, "G, generations of a skill", low=1)
    siblings: int = setting(4, "M, skills written after one history; 1 with generation_mode=literal", low=1)
    skill_rollouts: int = setting(4, "K, rollouts of the task LLM under one skill", low=1)
    generation_mode: str = setting("sibling", "advantages: siblings compared, or the paper's formula", choices=MODES)
    inter_coef: float = setting(1.0, "lambda, weight of the comparison with the last generation", low=0)
    keep_sibling: str = setting("first", "skill that the next generation is written after", choices=KEEPS)
    skill_format: str = setting("file", "what the policy writes: a SKILL.md, or its body alone", choices=FORMATS)
    skill_tokens: int = setting(1024, "most tokens of a skill", low=1)
    history_tokens: int = setting(3000, "most tokens of the history in a prompt", low=16)
    seed_skills: str = setting("", "folder of seed skills (SKILL.md); empty takes the built-in one", free=True)
    instances: int = setting(8, "tasks evolved at one time", low=1, free=True)
    eval_rollouts: int = setting(2, "rollouts of a skill in evaluations", low=1, free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskLlmSettings(config.Settings):
    """The frozen task LLM of Skill-R1."""

    task_llm: str = setting("follower", "a program, an endpoint, or a frozen policy in this process", choices=TASK_LLMS)
    task_policy: str = setting("", "model folder of task_llm=policy; empty is the policy's own, before training")
    task_slip: float = setting(0.05, "follower: chance to overlook a step in a turn", low=0, high=1)
    task_url: str = setting("", "base address of an OpenAI-compatible endpoint, .../v1", free=True)
    task_model: str = setting("", "name of the model there")
    task_key_env: str = setting("", "environment variable that holds its key; empty sends none", free=True)
    task_mode: str = setting("react", "how tools are called", choices=MODES_OF_CALLS)
    task_reply_tokens: int = setting(1024, "most tokens of one answer", low=1)
    task_temperature: float = setting(1.0, "of the task LLM", low=0)
    task_episode_tokens: int = setting(0, "tokens of a rollout; past it it is truncated; 0 is no limit", low=0)
    task_calls: int = setting(0, "budget of the run in questions; 0 is no limit", low=0, free=True)
    task_tokens: int = setting(0, "budget of the run in tokens; 0 is no limit", low=0, free=True)
    task_money: float = setting(0.0, "budget of the run in money; 0 is no limit", low=0, free=True)
    task_price_in: float = setting(0.0, "money for a million prompt tokens", low=0, free=True)
    task_price_out: float = setting(0.0, "money for a million completion tokens", low=0, free=True)
    task_concurrency: int = setting(16, "questions under way at one time", low=1, free=True)
    task_retries: int = setting(6, "further attempts at a question", low=0, free=True)
    task_judge: bool = setting(False, "let the task LLM judge answers that do not match word for word")
    task_cache: str = setting("", "folder of answers kept by content; empty keeps none", free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings(config.Settings):
    """The cold start on expert episodes."""

    sft_data: str = setting("", "JSONL file or array_record folder of conversations; empty plays the expert")
    sft_episodes: int = setting(120, "expert episodes; 0 skips the cold start", low=0)
    sft_epochs: int = setting(2, "passes over them", low=1)
    sft_tokens: int = setting(4096, "packed tokens of one update", low=256)
    sft_lr: float = setting(1e-5, "peak learning rate, cosine with 10 % warm-up", above=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalSettings(config.Settings):
    """Evaluation."""

    eval_episodes: int = setting(60, "games of a split, evenly over families; 0 takes all", low=0, free=True)
    eval_every: int = setting(0, "rounds between evaluations; 0: before and after only", low=0, free=True)
    eval_temperature: float = setting(0.4, "0 is greedy", low=0, free=True)
    eval_seed: int = setting(1, "seed of the evaluation's sampling", low=0, free=True)
    eval_splits: tuple[str, ...] = setting(("valid_seen", "valid_unseen"), "splits to evaluate", free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSettings(config.Settings):
    """Generation and the shapes of the update."""

    engine: str = setting("embedded", "sample in this process, or on servers", choices=("embedded", "http"), free=True)
    engine_urls: tuple[str, ...] = setting((), "addresses of the servers, joined by '+', for engine=http", free=True)
    engine_router: str = setting("", "address of a router that passes turns on to them; empty is none", free=True)
    engine_api_key_env: str = setting("", "environment variable that holds the servers' key; empty is none", free=True)
    engine_weight_transfer: str = setting(
        "disk", "how servers get weights: from run_dir, or sent as tensors", choices=("disk", "tensor"), free=True
    )
    engine_control_timeout_s: float = setting(
        300.0, "longest time of one control call to a server, such as loading weights, in seconds", above=0, free=True
    )
    engine_dtype: str = setting(
        "", "dtype in which the embedded engine computes and keeps; empty: compute_dtype", choices=DTYPES
    )
    engine_kv_dtype: str = setting(
        "", "dtype in which it keeps keys and values alone; empty: that of the engine", choices=("", "bfloat16")
    )
    slots: int = setting(64, "sequences the embedded engine holds", low=1, free=True)
    max_length: int = setting(1024, "longest context, in tokens", low=64)
    row_length: int = setting(1024, "length of a packed training row, in tokens", low=64)
    rows_per_micro: int = setting(4, "rows of a micro-batch; on a mesh for each of its data x fsdp pieces", low=1)
    min_micro: int = setting(1, "micro-batches at least; empty ones are skipped, but fewer shapes are compiled", low=1)
    capacity_multiple: int = setting(1024, "trained tokens of a micro-batch are padded to a multiple of this", low=1)
    share_prefixes: bool = setting(False, "compute what sequences of an update share once; for context='steps'")
