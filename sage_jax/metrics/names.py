"""Every metric a run may write: its name, unit and meaning. docs/metrics.md is generated from this table.

    python -m sage_jax.metrics > docs/metrics.md

A name with `<placeholders>` stands for all names of that form.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable

from sage_jax.errors import ConfigError
from sage_jax.types import Status


@dataclasses.dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    unit: str
    meaning: str


REVIEW_OUTCOMES = {
    "added": "whose proposed skill entered the bank",
    "updated": "that changed a skill",
    "kept": "that kept the bank as it was",
    "duplicate": "whose proposed skill was there already",
    "not_found": "that named a skill the bank does not have",
    "parse_error": "without exactly one readable tool call",
    "invalid_arguments": "with a tool call whose arguments do not fit",
    "unknown_tool": "that called a tool which does not exist",
}
PHASES = {
    "rollout": "playing episodes, reviews included and probes not",
    "env": "waiting for environments (inside rollout and reward, summed over episodes)",
    "reward": "rewards and probe episodes",
    "pack": "turning turns into arrays",
    "update": "the jitted updates",
    "weights": "handing new weights to the engine",
    "checkpoint": "saving after the round before",
    "eval": "evaluation",
}

METRICS: tuple[Metric, ...] = (
    Metric("reward/mean", "reward", "mean outcome reward of the round's rollouts that have one"),
    Metric("reward/std", "reward", "standard deviation of the same"),
    Metric("reward/success", "share", "rollouts that solved their task"),
    Metric("reward/score", "1", "mean score of the environment over the same rollouts, in [0, 1]"),
    Metric("reward/invalid_actions", "share", "act turns whose action the environment did not offer"),
    Metric("episode/steps", "steps", "mean environment steps of a rollout"),
    Metric("episode/truncated", "share", "rollouts that ran out of steps or context"),
    Metric("rollout/lag", "updates", "rounds of updates between the weights that played and those that learn"),
    Metric("rollout/left_out", "share", "mass that top_p, top_k and choices left out, mean over sampled tokens"),
    Metric("rollout/spanning_turns", "turns", "turns in whose middle the engine got new weights"),
    Metric("rollout/spanning_tokens", "tokens", "tokens of these turns that were sampled before the last new weights"),
    Metric("tokens/generated", "tokens", "tokens sampled by the rollouts, probes not included"),
    Metric("tokens/trained", "tokens", "sampled tokens that took part in the update"),
    Metric("groups/total", "groups", "groups that were normalised: one a task and stream"),
    Metric("groups/no_spread", "groups", "groups left out because all their rewards are equal"),
    Metric("groups/invalid", "groups", "groups left out because too few rollouts have a reward"),
    Metric("advantage/act_std", "1", "standard deviation of the act turns' advantages"),
    Metric("advantage/review_std", "1", "standard deviation of the review turns' advantages"),
    Metric("advantage/step_std", "1", "standard deviation of what step-level groups add to act turns (GiGPO)"),
    Metric("groups/step_share", "share", "act turns whose observation another turn of their group met, too"),
    Metric("paired/gap", "share", "success with skills minus success without, mean over groups that have both"),
    Metric("paired/groups", "groups", "groups with rollouts of both kinds"),
    Metric("advantage/skill_std", "1", "standard deviation of the advantages of generated skills"),
    Metric("chain/library_size", "skills", "mean size of a rollout's library at the end of its chain (SAGE)"),
    Metric("chain/solved", "share", "chain rollouts that solved all their tasks"),
    Metric("chain/use_rate", "share", "tasks behind the first of their chain that used an earlier task's skill"),
    Metric("chain/success_used", "share", "of those, the ones that were solved"),
    Metric("chain/paid_made", "share", "tasks paid for having made a skill that was used"),
    Metric("chain/paid_used", "share", "tasks paid for having used one"),
    Metric("chain/no_code", "share", "tasks that a turn without code ended"),
    Metric("chain/dropped", "programs", "programs that failed on loading, over all tasks of the round"),
    Metric("skill/written", "skills", "skills that were generated in the round (Skill-R1)"),
    Metric("skill/reward", "reward", "mean reward of all generated skills, kept or not"),
    Metric("skill/unreadable", "share", "generated texts that are no skill"),
    Metric("skill/tokens", "tokens", "mean length of a generated skill"),
    Metric("generation/<g>/reward", "reward", "mean reward of the task LLM under the kept skill of generation g"),
    Metric("generation/<g>/solved", "share", "instances solved by any rollout up to generation g"),
    Metric("task_llm/tokens", "tokens", "prompt and completion tokens of the frozen task LLM"),
    Metric("task_llm/cost", "money", "what its answers cost, in the unit of the configured prices"),
    Metric("loss/total", "nats", "the loss that was minimised"),
    Metric("loss/policy", "nats", "policy part of the loss"),
    Metric("loss/kl", "nats", "mean divergence from the reference policy"),
    Metric("loss/entropy", "nats", "mean entropy of the policy at trained tokens"),
    Metric("loss/ratio", "1", "mean probability ratio of new to old policy"),
    Metric("loss/ratio_max", "1", "largest probability ratio"),
    Metric("loss/clip_low", "share", "trained tokens clipped from below"),
    Metric("loss/clip_high", "share", "trained tokens clipped from above"),
    Metric("loss/clip_dual", "share", "trained tokens held by the dual clip"),
    Metric("loss/engine_gap", "nats", "mean absolute difference of the engine's and the learner's log-probs"),
    Metric("loss/engine_gap_max", "nats", "largest of these differences"),
    Metric("loss/engine_kl", "nats", "KL of the engine's distribution from the learner's, estimated at trained tokens"),
    Metric("loss/importance_weight", "1", "mean weight that corrects for this difference"),
    Metric("update/steps", "updates", "optimizer steps so far"),
    Metric("update/grad_norm", "1", "global gradient norm before clipping"),
    Metric("update/step_norm", "1", "global norm of the last parameter change"),
    Metric("update/fill", "share", "positions of the packed batch that hold a token"),
    Metric("time/tokens_per_second", "tokens/s", "tokens of the packed batch, padding not counted, over update time"),
    Metric("time/tflops", "TFLOP/s", "arithmetic that the model needs for the update, over update time"),
    Metric("time/mfu", "share", "the same over the devices' peak; absent where the peak is not known"),
    Metric("update/turns", "turns", "turns that took part in the update"),
    Metric("update/sequences", "sequences", "contexts that they stand in: one a turn with context=steps"),
    Metric("lr", "1", "learning rate of the last update"),
    Metric("engine/requests", "requests", "turns asked of the engine in the round, reviews and probes included"),
    Metric("engine/prompt_tokens", "tokens", "tokens of their contexts"),
    Metric("engine/cached_tokens", "tokens", "of those, the ones whose keys and values were there already"),
    Metric("engine/copied_tokens", "tokens", "of those, the ones that another slot had (embedded)"),
    Metric("engine/prefilled_tokens", "tokens", "prompt tokens that were computed (embedded)"),
    Metric("engine/generated_tokens", "tokens", "tokens that were sampled"),
    Metric("engine/evictions", "sessions", "sessions that lost their slot to another; above 0: raise slots (embedded)"),
    Metric("engine/retries", "requests", "further attempts at a turn (servers)"),
    Metric("engine/stale_answers", "requests", "answers of other weights than the round's, asked again (servers)"),
    Metric("engine/aborted", "requests", "turns that a server broke off (servers)"),
    Metric("time/generated_per_second", "tokens/s", "tokens that were sampled over the time of play"),
    *(Metric(f"time/{phase}", "s", f"wall time of {meaning}") for phase, meaning in PHASES.items()),
    Metric("time/round", "s", "wall time of the whole round"),
    Metric("review/turns", "turns", "review turns of the round"),
    Metric("review/valid", "share", "review turns with a valid call of one of the three tools"),
    Metric("review/failed", "episodes", "episodes whose review the infrastructure lost; absent without any"),
    Metric("review/reward", "reward", "mean reward of review turns"),
    *(Metric(f"review/{outcome}", "share", f"review turns {text}") for outcome, text in REVIEW_OUTCOMES.items()),
    Metric("utility/mean", "score", "mean counterfactual utility of the measured edits"),
    Metric("utility/positive_share", "share", "measured edits whose utility is above zero"),
    Metric("utility/edits", "edits", "edits whose utility was measured"),
    Metric("utility/probe_requested", "episodes", "probe episodes that the method asked for"),
    Metric("utility/probe_run", "episodes", "probe episodes that were played"),
    Metric("utility/probe_saved", "episodes", "probe episodes that the cache answered"),
    Metric("bank/size", "skills", "skills in the bank"),
    Metric("bank/version", "version", "number of edits the bank has seen"),
    *(Metric(f"status/{status.value}", "rollouts", f"rollouts that ended as {status.value}") for status in Status),
    Metric("sft/loss", "nats/token", "supervised loss at trained tokens"),
    Metric("sft/accuracy", "share", "trained tokens that the model ranks first"),
    *(
        Metric(f"eval/<split>/<family>/<with|without>_skills/{name}", unit, meaning)
        for name, unit, meaning in (
            ("success", "share", "episodes that solved their task"),
            ("score", "1", "mean score of the environment, in [0, 1]"),
            ("wilson_low", "share", "lower end of the 95 % Wilson interval of success"),
            ("wilson_high", "share", "upper end of the 95 % Wilson interval of success"),
            ("steps", "steps", "mean environment steps of an episode"),
            ("tokens", "tokens", "mean generated tokens of an episode"),
            ("n", "episodes", "episodes with an outcome"),
            ("failed", "episodes", "episodes without an outcome (infrastructure)"),
            ("scenario_success", "share", "scenarios whose tasks were all solved (SGC)"),
            ("scenarios", "scenarios", "scenarios all of whose tasks have an outcome"),
            ("use_rate", "share", "episodes that used a skill, of those that were shown one"),
            ("used_success", "share", "episodes that solved their task, of those that used a skill"),
            ("library", "skills", "mean size of a library at the end of its chain"),
        )
    ),
)


def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"(<[^>]+>)", name)
    forms = (f"({part[1:-1]})" if "|" in part else r"[A-Za-z0-9_.\-]+" for part in parts[1::2])
    literal = [re.escape(part) for part in parts[0::2]]
    return re.compile("".join(sum(zip(literal, [*forms, ""], strict=True), ())))


_EXACT = frozenset(metric.name for metric in METRICS if "<" not in metric.name)
_PATTERNS = tuple(_pattern(metric.name) for metric in METRICS if "<" in metric.name)


def check_names(names: Iterable[str]) -> None:
    """Checks that every name is in the table.

    Raises:
      ConfigError: a name is not; with the closest known one.
    """
    for name in names:
        if name in _EXACT or any(pattern.fullmatch(name) for pattern in _PATTERNS):
            continue
        close = difflib.get_close_matches(name, [metric.name for metric in METRICS], n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"metric {name!r} is not in sage_jax/metrics/names.py.{hint} A new metric is one line there")


READING = """\
import matplotlib.pyplot as plt
from sage_jax.metrics import read_metrics, read_rows

run = "runs/skillmaster_alfworld"
rounds = [line for line in read_metrics(run) if "reward/success" in line]  # dicts; cold start and evaluations left out
plt.plot([line["step"] for line in rounds], [line["reward/success"] for line in rounds])
plt.savefig("success.png")
after = {(row.split, row.family, row.retrieval): row.success for row in read_rows(f"{run}/eval/after.json")}
print(after["valid_seen", "all", False])  # False: without skills
"""


def markdown() -> str:
    """Returns the text of docs/metrics.md."""
    rows = (f"| `{metric.name.replace('|', chr(92) + '|')}` | {metric.unit} | {metric.meaning} |" for metric in METRICS)
    return "\n".join(
        [
            "# Metrics",
            "",
            "Every name in `metrics.jsonl` and TensorBoard. Written by `python -m sage_jax.metrics`; a test",
            "keeps this page and `sage_jax/metrics/names.py` equal, and writing a name that is not here is an error.",
            "A value that is not finite is written as null.",
            "",
            "| name | unit | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
            "## Read them",
            "",
            "The lines of a run and the rows of an evaluation as Python values, in a script or a notebook:",
            "",
            *(f"    {line}".rstrip() for line in READING.splitlines()),
            "",
        ]
    )
