"""What a skill edit is worth: the same probe tasks played with the old bank and with the edited one.

SkillMaster (arXiv 2605.08693). For probes k = 1..K of the task's family:

    score = success + (success ? (T_max - steps) / T_max : 0)
    delta_k = score_k(B') - score_k(B)
    U = mean_k delta_k + c * (#(delta_k > 0) - #(delta_k < 0)) / K

Nothing here plays an episode. The caller asks `plan_probes` which episodes a step needs, plays them, puts their scores
into the `ProbeCache` and asks `assemble` for the utilities. Both arms go through the cache, which is how the B arm is
shared by all edits of a step and identical edits share B'.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from sage_jax.errors import ConfigError, RewardError
from sage_jax.seeding import derive_seed, numpy_rng
from sage_jax.types import RewardResult, Status, Task

NO_EDIT = RewardResult(0.0, Status.OK, {})  # utility of a kept, refused or duplicate edit
TRAIN_SPLIT = "train"


@dataclasses.dataclass(frozen=True)
class UtilityConfig:
    """How deltas become a utility. Defaults are the paper's.

    Attributes:
      probes: K, probe tasks an edit.
      sign_weight: c, weight of the sign count.
      clip: take max(0, U) as the released code does.
    """

    probes: int = 4
    sign_weight: float = 0.3
    clip: bool = False

    def __post_init__(self) -> None:
        if self.probes < 1:
            raise ConfigError(f"utility probes is {self.probes}, expected 1 or more")
        if self.sign_weight < 0:
            raise ConfigError(f"utility sign_weight is {self.sign_weight}, expected 0 or more")


def select_probes(
    task: Task, train_tasks: Sequence[Task], *, k: int, seed: int, by_topic: bool = False
) -> tuple[Task, ...]:
    """Returns the probe tasks of `task`: of its benchmark and family, from the train split, never `task` itself.

    The choice depends on (seed, task id) and on the set of candidates, so all rollouts of a task share their probes.
    A family with fewer than `k` other train tasks gives what it has. `by_topic` takes tasks of any family with
    the same payload "topic" before them: an edit about one kind of object shows what it does where that object is
    looked for.

    Raises:
      RewardError: there is no candidate at all.
    """
    topic = task.payload.get("topic") if by_topic else None
    alike = {t.id: t for t in train_tasks if topic and t.payload.get("topic") == topic and _may_probe(t, task)}
    family = {t.id: t for t in train_tasks if t.family == task.family and _may_probe(t, task) and t.id not in alike}
    if not family and not alike:
        raise RewardError(
            f"task {task.id!r}: no probe task: family {task.family!r} has no other task in split {TRAIN_SPLIT!r} of "
            f"{task.benchmark!r}; train on more games of it or switch the utility off"
        )
    rng = numpy_rng(seed, "probe_tasks", task.id)
    chosen = [tasks[name] for tasks in (alike, family) for name in rng.permutation(sorted(tasks))]
    return tuple(chosen[:k])


def _may_probe(other: Task, task: Task) -> bool:
    return other.benchmark == task.benchmark and other.split == TRAIN_SPLIT and other.id != task.id


def probe_score(*, success: bool, steps: int, max_steps: int, status: Status = Status.OK) -> RewardResult:
    """Returns success + the unused share of the steps if successful, in [0, 2); no value after a failure of ours."""
    if not status.has_reward:
        return RewardResult(None, status)
    if max_steps < 1 or not 0 <= steps <= max_steps:
        raise RewardError(f"probe took {steps} steps of at most {max_steps}: expected 0 <= steps <= max_steps")
    parts = {"success": 1.0, "speed": (max_steps - steps) / max_steps} if success else {"success": 0.0}
    return RewardResult(sum(parts.values()), status, parts)


def utility(
    edited: Sequence[RewardResult], base: Sequence[RewardResult], config: UtilityConfig = UtilityConfig()
) -> RewardResult:
    """Returns U of one edit.

    Args:
      edited: [K] scores under B', in the order of the probes.
      base: [K] scores under B.
      config: c and clip. A probe that lacks a score in either arm leaves mean and count (K is then smaller).

    Returns:
      U with its parts, or no value and the first failure's status when no probe is left.

    Raises:
      RewardError: there are no probes.
    """
    if not edited:
        raise RewardError("a utility needs at least one probe: select_probes gives them")
    pairs = list(zip(edited, base, strict=True))
    deltas = [e.value - b.value for e, b in pairs if e.value is not None and b.value is not None]
    if not deltas:
        failed = next(r.status for pair in pairs for r in pair if r.value is None)
        return RewardResult(None, failed)
    signs = sum(d > 0 for d in deltas) - sum(d < 0 for d in deltas)
    parts = {"mean_delta": sum(deltas) / len(deltas), "sign_bonus": config.sign_weight * signs / len(deltas)}
    value = sum(parts.values())
    if config.clip and value < 0:
        parts["clip"] = -value
        value = 0.0
    return RewardResult(value, Status.OK, parts)


@dataclasses.dataclass(frozen=True)
class ProbeKey:
    """Everything that the score of a probe episode depends on."""

    task_id: str
    bank: str  # fingerprint
    policy_version: int
    seed: int


@dataclasses.dataclass(frozen=True)
class ProbeRequest:
    """One edit whose utility is wanted.

    Attributes:
      name: the caller's handle of the edit, unique in a plan.
      edited: fingerprint of B'.
      probes: from `select_probes`.
    """

    name: str
    edited: str
    probes: tuple[Task, ...]


@dataclasses.dataclass(frozen=True)
class ProbeEpisode:
    """An episode to play: `task` with the skills of the bank `key.bank`, sampled with `key.seed`."""

    key: ProbeKey
    task: Task


@dataclasses.dataclass(frozen=True)
class ProbePlan:
    """The episodes a step needs.

    Attributes:
      requests: as given.
      arms: for each request, its ([K] keys under B', [K] keys under B).
      episodes: what has to be played, each once.
      requested: episodes that playing both arms of every edit would take.
    """

    requests: tuple[ProbeRequest, ...]
    arms: tuple[tuple[tuple[ProbeKey, ...], tuple[ProbeKey, ...]], ...]
    episodes: tuple[ProbeEpisode, ...]
    requested: int

    @property
    def run(self) -> int:
        """Number of episodes to play."""
        return len(self.episodes)

    @property
    def saved(self) -> int:
        """Number of episodes that sharing and the cache save."""
        return self.requested - self.run


class ProbeCache:
    """Scores of probe episodes that were played, with counters.

    Attributes:
      hits: keys that plans found here or already planned.
      misses: keys that plans had to add.
    """

    def __init__(self) -> None:
        self._scores: dict[ProbeKey, RewardResult] = {}
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._scores)

    def put(self, key: ProbeKey, score: RewardResult) -> None:
        """Stores the score of a played episode. One without a value counts for this step and is played again later."""
        self._scores[key] = score

    def get(self, key: ProbeKey) -> RewardResult:
        """Returns a score. Raises: RewardError when the episode was never played."""
        if key not in self._scores:
            raise RewardError(f"probe {key} has no score: play every episode of the plan before assembling")
        return self._scores[key]

    def has_value(self, key: ProbeKey) -> bool:
        """Whether the episode need not be played."""
        return key in self._scores and self._scores[key].value is not None

    def drop_before(self, policy_version: int) -> None:
        """Forgets the scores of older policies."""
        self._scores = {k: v for k, v in self._scores.items() if k.policy_version >= policy_version}


def plan_probes(
    requests: Sequence[ProbeRequest],
    *,
    base: str,
    policy_version: int,
    step: int,
    seed: int,
    cache: ProbeCache,
) -> ProbePlan:
    """Returns the episodes that give every requested utility, each listed once and none that `cache` has.

    Args:
      requests: the step's edits. One whose B' reads like B needs no episode.
      base: fingerprint of B.
      policy_version: of the weights that play.
      step: training step.
      seed: of the run. An episode's seed is drawn from (seed, step, probe task), not from the arm: both arms get common
        random numbers, which takes their shared luck out of the delta.
      cache: of earlier plans; its counters are updated.
    """
    names = Counter(r.name for r in requests)
    if len(names) < len(requests):
        raise RewardError(f"probe requests share the name {names.most_common(1)[0][0]!r}: each edit needs its own")
    planned: dict[ProbeKey, Task] = {}
    arms = []
    for request in requests:
        pair = []
        for bank in (request.edited, base):
            keys = []
            for task in request.probes:
                key = ProbeKey(task.id, bank, policy_version, derive_seed(seed, "probe_episode", step, task.id))
                keys.append(key)
                if request.edited == base:
                    continue
                if key in planned or cache.has_value(key):
                    cache.hits += 1
                else:
                    cache.misses += 1
                    planned[key] = task
            pair.append(tuple(keys))
        arms.append((pair[0], pair[1]))
    episodes = tuple(ProbeEpisode(key, task) for key, task in planned.items())
    return ProbePlan(tuple(requests), tuple(arms), episodes, 2 * sum(len(r.probes) for r in requests))


def assemble(plan: ProbePlan, cache: ProbeCache, config: UtilityConfig = UtilityConfig()) -> Mapping[str, RewardResult]:
    """Returns name -> utility for every request of a plan whose episodes were played.

    Raises:
      RewardError: a planned episode has no entry in the cache.
    """
    utilities = {}
    for request, (edited, base) in zip(plan.requests, plan.arms, strict=True):
        if edited == base:
            utilities[request.name] = NO_EDIT
        else:
            utilities[request.name] = utility([cache.get(k) for k in edited], [cache.get(k) for k in base], config)
    return utilities
