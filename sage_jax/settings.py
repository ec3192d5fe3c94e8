"""A run's configuration: all groups of keys (setting_groups.py), and what of them does not go together.

Keys are grouped by the part that reads them and lie flat in the config; configs/*.py set values, nothing else does.
"""

from __future__ import annotations

import dataclasses
import urllib.parse

from sage_jax import config
from sage_jax.benchmarks import BENCHMARKS, GROUPS, Benchmark
from sage_jax.benchmarks.alfworld import AlfworldSettings
from sage_jax.benchmarks.appworld import AppworldSettings
from sage_jax.benchmarks.base import plays_code
from sage_jax.benchmarks.gaia import GaiaSettings
from sage_jax.benchmarks.webshop import WebshopSettings
from sage_jax.benchmarks.webwalker import WebwalkerSettings
from sage_jax.config import setting
from sage_jax.data.tasks import cache_folder
from sage_jax.setting_groups import (
    TOOL_BENCHMARKS,
    AgentSettings,
    CreditSettings,
    EngineSettings,
    EvalSettings,
    LoraSettings,
    ModelSettings,
    OptimizerSettings,
    RlSettings,
    SageSettings,
    SftSettings,
    SkillR1Settings,
    SkillSettings,
    TaskLlmSettings,
    TaskSettings,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(config.RunConfig):
    """One training run."""

    scale: str = setting("local", "named size of the run, for the record")
    save_every: int = setting(1, "rounds between checkpoints", low=1, free=True)
    keep: int = setting(2, "checkpoints kept", low=1, free=True)
    profile_steps: str = setting("", "rounds to trace, e.g. 10:13, into the run folder's profile/", free=True)
    peak_tflops: float = setting(0.0, "of a device, for time/mfu; 0: as published for its kind", low=0, free=True)
    policy: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    lora: LoraSettings = dataclasses.field(default_factory=LoraSettings)
    tasks: TaskSettings = dataclasses.field(default_factory=TaskSettings)
    alfworld: AlfworldSettings = dataclasses.field(default_factory=AlfworldSettings)
    webshop: WebshopSettings = dataclasses.field(default_factory=WebshopSettings)
    appworld: AppworldSettings = dataclasses.field(default_factory=AppworldSettings)
    gaia: GaiaSettings = dataclasses.field(default_factory=GaiaSettings)
    webwalker: WebwalkerSettings = dataclasses.field(default_factory=WebwalkerSettings)
    agent: AgentSettings = dataclasses.field(default_factory=AgentSettings)
    skills: SkillSettings = dataclasses.field(default_factory=SkillSettings)
    rl: RlSettings = dataclasses.field(default_factory=RlSettings)
    credit: CreditSettings = dataclasses.field(default_factory=CreditSettings)
    sage: SageSettings = dataclasses.field(default_factory=SageSettings)
    skillr1: SkillR1Settings = dataclasses.field(default_factory=SkillR1Settings)
    task: TaskLlmSettings = dataclasses.field(default_factory=TaskLlmSettings)
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)
    sft: SftSettings = dataclasses.field(default_factory=SftSettings)
    evaluation: EvalSettings = dataclasses.field(default_factory=EvalSettings)
    engine: EngineSettings = dataclasses.field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        """Checks each field, and those that depend on each other."""
        super().__post_init__()
        if self.engine.row_length < self.engine.max_length and self.agent.context == "chat":
            raise config.ConfigError(
                f"row_length={self.engine.row_length} is shorter than max_length={self.engine.max_length}: "
                "a whole episode must fit one row; raise row_length or lower max_length"
            )
        if (self.engine.engine == "http") != bool(self.engine.engine_urls):
            raise config.ConfigError(
                f"engine={self.engine.engine!r} with engine_urls={self.engine.engine_urls!r}: "
                "engine=http needs the address of every server, and engine=embedded has none"
            )
        if self.engine.engine == "embedded" and (self.engine.engine_router or self.engine.engine_api_key_env):
            raise config.ConfigError(
                f"engine='embedded' with engine_router={self.engine.engine_router!r} and "
                f"engine_api_key_env={self.engine.engine_api_key_env!r}: both are of servers; use engine='http' with "
                "engine_urls, or leave them empty"
            )
        self._check_running_turns()
        if self.rl.ratio_level == "sequence" and self.rl.aggregation != "sequence_mean":
            raise config.ConfigError(
                f"ratio_level='sequence' with aggregation={self.rl.aggregation!r}: a ratio of whole sequences needs "
                "aggregation='sequence_mean'"
            )
        if self.credit.paired_coef and not self.credit.paired_share:
            raise config.ConfigError(
                f"paired_coef={self.credit.paired_coef} with paired_share=0: without rollouts that are shown no skills "
                "there is nothing to compare with; use 0.5"
            )
        if self.sage.baseline and self.rl.method != "sage":
            raise config.ConfigError(f"baseline=True with method={self.rl.method!r}: it is SAGE's; drop one")
        if self.rl.method == "skillr1":
            self._check_skill_r1()
        if self.agent.rollout_backend == "ray":
            self._check_ray()
        if self.engine.engine == "http" and self.agent.choices:
            raise config.ConfigError("choices=True with engine='http': servers cannot sample among choices; drop one")
        for name in ("engine_dtype", "engine_kv_dtype"):
            if self.engine.engine == "http" and (dtype := getattr(self.engine, name)):
                raise config.ConfigError(f"{name}={dtype!r} with engine='http': servers choose their own; drop one")
        if self.engine.engine == "http" and self.rl.importance_kept:
            raise config.ConfigError(
                "importance_kept=True with engine='http': servers do not tell under which truncated distribution they "
                "drew; drop one"
            )
        if plays_code(self.open_benchmark()):
            self._check_code()
        elif self.rl.method == "sage" and self.sage.skill_form == "programs":
            raise config.ConfigError(
                f"skill_form='programs' with benchmark={self.tasks.benchmark!r}: programs need a shell; use appworld, "
                "or skill_form='texts'"
            )
        splits = self.open_benchmark().splits
        for split in self.evaluation.eval_splits:
            if split not in splits:
                raise config.ConfigError(
                    f"eval_splits contains {split!r}: expected some of {', '.join(splits)} "
                    f"with benchmark={self.tasks.benchmark!r}"
                )

    def _check_ray(self) -> None:
        if self.engine.engine != "http":
            raise config.ConfigError(
                f"rollout_backend='ray' with engine={self.engine.engine!r}: actors on other machines cannot reach an "
                "engine in this process; use engine='http'"
            )
        if self.rl.method == "skillr1":
            raise config.ConfigError(
                "rollout_backend='ray' with method='skillr1': its rollouts are calls of a task LLM, which this process "
                "makes; use rollout_backend='local'"
            )
        if self.tasks.env_backend != "process":
            raise config.ConfigError(
                f"rollout_backend='ray' with env_backend={self.tasks.env_backend!r}: actors have environment "
                "processes of their own; use env_backend='process'"
            )

    def _check_running_turns(self) -> None:
        rl, engine = self.rl, self.engine.engine
        if rl.running_turns == "finish":
            return
        problem = ""
        if not rl.ahead:
            problem = "ahead=False: no round is played during an update; set ahead=True, or leave it 'finish'"
        elif not rl.importance_cap:
            problem = "importance_cap=0: tokens of several weights need importance weights; use 2, say, or 'finish'"
        elif engine != "embedded":
            problem = f"engine={engine!r}: servers are given new weights between rounds alone; use 'finish'"
        if problem:
            raise config.ConfigError(f"running_turns={rl.running_turns!r} with {problem}")

    def _check_code(self) -> None:
        if self.agent.context != "chat":
            raise config.ConfigError(
                f"context={self.agent.context!r} with benchmark={self.tasks.benchmark!r}: a shell keeps its names, "
                "and the agent its context; use context='chat'"
            )
        if self.sage.partial_reward and self.appworld.app_judge != "always":
            raise config.ConfigError(
                f"partial_reward=True with app_judge={self.appworld.app_judge!r}: tests are run when a task is "
                "completed; use app_judge='always'"
            )

    def _check_skill_r1(self) -> None:
        own, task = self.skillr1, self.task
        if own.generation_mode == "literal" and own.siblings != 1:
            raise config.ConfigError(
                f"generation_mode='literal' with siblings={own.siblings}: the paper's formula has one skill; use 1"
            )
        if (task.task_llm == "endpoint") != bool(task.task_url and task.task_model):
            raise config.ConfigError(
                f"task_llm={task.task_llm!r} with task_url={task.task_url!r} and task_model={task.task_model!r}: "
                "an endpoint needs both, and the follower neither"
            )
        servers = {_place(url) for url in (*self.engine.engine_urls, self.engine.engine_router) if url}
        if task.task_url and _place(task.task_url) in servers:
            raise config.ConfigError(
                f"task_url={task.task_url!r} with engine_urls={self.engine.engine_urls!r} and "
                f"engine_router={self.engine.engine_router!r}: that server is given the weights that are trained, and "
                "the task LLM must stay as it is; serve it apart"
            )
        if task.task_llm != "policy" and self.tasks.benchmark not in TOOL_BENCHMARKS:
            raise config.ConfigError(
                f"method='skillr1' with benchmark={self.tasks.benchmark!r} and task_llm={task.task_llm!r}: a task "
                "there is an episode of actions, which a frozen policy plays; use task_llm='policy'"
            )
        if task.task_llm == "policy" and self.engine.engine != "embedded":
            raise config.ConfigError(
                f"task_llm='policy' with engine={self.engine.engine!r}: servers hold the weights that are trained; use "
                "engine='embedded', or serve the frozen model and use task_llm='endpoint'"
            )
        if task.task_judge and (task.task_llm != "endpoint" or self.tasks.benchmark != "webwalker"):
            raise config.ConfigError(
                f"task_judge=True with task_llm={task.task_llm!r} and benchmark={self.tasks.benchmark!r}: "
                "an endpoint judges WebWalkerQA's answers; GAIA has rules of its own"
            )
        if task.task_llm == "follower" and self.tasks.source == "official":
            raise config.ConfigError("task_llm='follower' plays generated tasks alone; set source='generated'")
        if self.sft.sft_episodes:
            raise config.ConfigError(
                f"sft_episodes={self.sft.sft_episodes} with method='skillr1': an editor has no expert episodes; use 0"
            )

    def open_benchmark(self) -> Benchmark:
        """Returns the benchmark with this run's options; nothing is loaded yet."""
        tasks = self.tasks
        own = getattr(self, GROUPS.get(tasks.benchmark, tasks.benchmark))
        return BENCHMARKS[tasks.benchmark](
            own, source=tasks.source, cache=cache_folder(tasks.cache), processes=max(tasks.env_workers, 1)
        )


def _place(url: str) -> tuple[str, int | None]:
    """Returns the machine and port of an address, whose path and spelling may differ."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise config.ConfigError(f"{url!r}: {error}; write it like http://127.0.0.1:30000") from error
    host = parts.hostname or ""
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return "127.0.0.1" if host in ("localhost", "::1") else host, port or usual
