"""Float64 NumPy references of the loss family, written as loops straight from the formulas.

They share no code with `sage_jax.losses` and exist to be compared with it: slow, plain, one token at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def group_advantages(rewards, groups, valid, *, kind: str, eps: float = 1e-6) -> np.ndarray:
    """Returns the advantages [N] of `losses.group_advantages`; NaN for invalid samples."""
    result = [math.nan] * len(rewards)
    for i in range(len(rewards)):
        if not valid[i]:
            continue
        members = [j for j in range(len(rewards)) if valid[j] and groups[j] == groups[i]]
        values = [float(rewards[j]) for j in members]
        others = [float(rewards[j]) for j in members if j != i]
        if kind == "mean":
            result[i] = rewards[i] - sum(values) / len(values)
        elif kind == "leave_one_out":
            result[i] = rewards[i] - sum(others) / len(others) if others else 0.0
        else:
            mean, std = _mean_and_std(values) if len(values) > 1 else (0.0, 1.0)
            result[i] = (rewards[i] - mean) / (std + eps)
    return np.array(result)


def stream_advantages(
    rewards, groups, streams, episodes, valid, *, scales, joint: bool, group_stats: str, eps: float = 1e-6
) -> np.ndarray:
    """Returns the z-scored advantages [N] of `losses.stream_advantages`; NaN for invalid turns."""
    result = [math.nan] * len(rewards)
    for i in range(len(rewards)):
        if not valid[i]:
            continue
        members = [
            j
            for j in range(len(rewards))
            if valid[j] and groups[j] == groups[i] and (joint or streams[j] == streams[i])
        ]
        by_unit: dict[object, list[float]] = {}
        for j in members:
            unit = j if group_stats == "steps" else (streams[j], episodes[j])
            by_unit.setdefault(unit, []).append(float(rewards[j]))
        if len(by_unit) == 1:
            mean, std = 0.0, 1.0
        else:
            mean = sum(sum(values) / len(values) for values in by_unit.values()) / len(by_unit)
            squares = [sum((value - mean) ** 2 for value in values) / len(values) for values in by_unit.values()]
            std = math.sqrt(sum(squares) / (len(by_unit) - 1))
        result[i] = scales.get(streams[i], 1.0) * (rewards[i] - mean) / (std + eps)
    return np.array(result)


def step_advantages(
    rewards, groups, episodes, anchors, valid, *, discount: float, kind: str, eps: float = 1e-6
) -> np.ndarray:
    """Returns the advantages [N] of `losses.step_advantages`; NaN for turns without a return."""
    count = len(rewards)
    returns: list[float] = []
    for t in range(count):
        later = [k for k in range(t, count) if episodes[k] == episodes[t]]
        total = sum(discount**place * float(rewards[k]) for place, k in enumerate(later) if valid[k])
        returns.append(total if all(valid[k] for k in later) else math.nan)
    result = [math.nan] * count
    for t in range(count):
        if math.isnan(returns[t]):
            continue
        members = [
            k
            for k in range(count)
            if groups[k] == groups[t] and anchors[k] == anchors[t] and not math.isnan(returns[k])
        ]
        alike = group_advantages(
            [returns[k] for k in members], [0] * len(members), [True] * len(members), kind=kind, eps=eps
        )
        result[t] = float(alike[members.index(t)]) if len(members) > 1 else 0.0
    return np.array(result)


def paired_credit(outcomes, groups, skilled, valid, *, coef: float, to: str) -> np.ndarray:
    """Returns the credit [N] of `losses.paired_credit`."""
    result = [0.0] * len(outcomes)
    for i in range(len(outcomes)):
        members = [j for j in range(len(outcomes)) if valid[j] and groups[j] == groups[i]]
        plain = [float(outcomes[j]) for j in members if not skilled[j]]
        if not valid[i] or not plain or len(plain) == len(members) or (to == "skilled" and not skilled[i]):
            continue
        result[i] = coef * (outcomes[i] - sum(plain) / len(plain))
    return np.array(result)


def generation_advantages(rewards, valid, kept, *, mode: str, inter_coef: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns total and positive [B, G, M] of `losses.generation_advantages`; NaN for skills without a rollout."""
    instances, generations, siblings, rollouts = np.shape(rewards)

    def mean(b, g, m):
        known = [float(rewards[b][g][m][k]) for k in range(rollouts) if valid[b][g][m][k]]
        return sum(known) / len(known) if known else None

    totals = np.full((instances, generations, siblings), math.nan)
    positives = totals.copy()
    for b, g, m in np.ndindex(totals.shape):
        own = mean(b, g, m)
        if own is None:
            continue
        parent = mean(b, g - 1, kept[b][g - 1]) if g else None
        inter = 0.0 if parent is None else own - parent
        if mode == "literal":
            parts = [rewards[b][g][m][k] - own + inter_coef * inter for k in range(rollouts) if valid[b][g][m][k]]
        else:
            others = [value for value in (mean(b, g, j) for j in range(siblings)) if value is not None]
            parts = [own - sum(others) / len(others) + inter_coef * inter]
        totals[b, g, m] = sum(parts)
        positives[b, g, m] = sum(part for part in parts if part > 0)
    return totals, positives


def token_scores(hidden, head, targets, *, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Returns log-probabilities and entropies [T] from hidden states [T, D], head [V, D] and targets [T]."""
    logprobs, entropies = [], []
    for state, target in zip(np.asarray(hidden, np.float64), targets, strict=True):
        logits = [float(state @ row) / temperature for row in np.asarray(head, np.float64)]
        largest = max(logits)
        normaliser = largest + math.log(sum(math.exp(logit - largest) for logit in logits))
        logprobs.append(logits[target] - normaliser)
        entropies.append(-sum(math.exp(logit - normaliser) * (logit - normaliser) for logit in logits))
    return np.array(logprobs), np.array(entropies)


def token_weights(mask, sequence_ids, *, aggregation: str, length: int | None = None) -> np.ndarray:
    """Returns the weight [T] of each token in the batch's loss."""
    trained = [i for i in range(len(mask)) if mask[i]]
    sequences = {int(sequence_ids[i]) for i in trained}
    result = np.zeros(len(mask))
    for i in trained:
        own = sum(1 for j in trained if sequence_ids[j] == sequence_ids[i])
        if aggregation == "token_mean":
            result[i] = 1 / len(trained)
        elif aggregation == "sequence_mean":
            result[i] = 1 / own / len(sequences)
        else:
            assert length is not None
            result[i] = 1 / length / len(sequences)
    return result


def kl_estimate(logprob: float, ref_logprob: float, kind: str) -> float:
    """Returns one token's KL estimate."""
    if kind == "k1":
        return logprob - ref_logprob
    if kind == "k2":
        return (logprob - ref_logprob) ** 2 / 2
    return math.exp(ref_logprob - logprob) - 1.0 - (ref_logprob - logprob)


def engine_gap(old_logprobs, engine_logprobs, mask) -> tuple[float, float, float]:
    """Returns mean |gap|, largest |gap| and the KL estimate of `losses.policy_loss` over the trained tokens."""
    gaps = [float(old_logprobs[t]) - float(engine_logprobs[t]) for t in range(len(mask)) if mask[t]]
    if not gaps:
        return 0.0, 0.0, 0.0
    absolute = [abs(gap) for gap in gaps]
    return (
        sum(absolute) / len(gaps),
        max(absolute),
        sum(math.exp(gap) - 1.0 - gap for gap in gaps) / len(gaps),
    )


def kept_mass(logits: Sequence[float], *, top_p: float, top_k: int) -> tuple[set[int], float]:
    """Returns the tokens that top-k and top-p keep, each judged on the whole distribution, and their mass."""
    total = sum(math.exp(logit) for logit in logits)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    tokens, before = set(), 0.0
    for rank, token in enumerate(order):
        if before < top_p and (top_k == 0 or rank < top_k):
            tokens.add(token)
        before += math.exp(logits[token]) / total
    return tokens, sum(math.exp(logits[token]) for token in tokens) / total


def clipped_surrogate(
    logprob: float, old_logprob: float, advantage: float, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> float:
    """Returns one token's loss, as the negative of the objective that PPO maximises."""
    ratio = math.exp(logprob - old_logprob)
    objective = min(ratio * advantage, min(max(ratio, 1 - clip_low), 1 + clip_high) * advantage)
    if dual_clip is not None and advantage < 0:
        objective = max(objective, dual_clip * advantage)
    return -objective


def policy_loss(
    logprobs: Sequence[float],
    advantages: Sequence[float],
    weights: Sequence[float],
    *,
    old_logprobs: Sequence[float],
    ref_logprobs: Sequence[float],
    engine_logprobs: Sequence[float],
    entropy: Sequence[float],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    kl_coef: float,
    kl_kind: str,
    entropy_coef: float,
    importance_cap: float | None,
    sequence_ids: Sequence[int] | None = None,
    importance_ids: Sequence[int] | None = None,
    kept: Sequence[float] | None = None,
) -> float:
    """Returns the loss of `losses.policy_loss`; tokens of weight 0 are not looked at.

    With `sequence_ids` ratios, with `importance_ids` importance weights are those of whole sequences. `kept` is the
    mass from which each token was drawn.
    """

    def own(ids, t):
        return [j for j in range(len(weights)) if weights[j] != 0 and ids[j] == ids[t]] if ids is not None else [t]

    total = 0.0
    for t, weight in enumerate(weights):
        if weight == 0:
            continue
        logprob, old = (sum(float(x[j]) for j in own(sequence_ids, t)) for x in (logprobs, old_logprobs))
        surrogate = clipped_surrogate(
            logprob, old, advantages[t], clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
        )
        if importance_cap is not None:
            gap = sum(float(old_logprobs[j]) - float(engine_logprobs[j]) for j in own(importance_ids, t))
            surrogate *= min(math.exp(gap), importance_cap)
        if kept is not None:
            surrogate *= math.prod(kept[j] for j in own(importance_ids, t))
        kl = kl_estimate(logprobs[t], ref_logprobs[t], kl_kind)
        total += weight * (surrogate + kl_coef * kl - entropy_coef * entropy[t])
    return total


def sft_loss(logprobs: Sequence[float], weights: Sequence[float]) -> float:
    """Returns the weighted cross entropy."""
    return -sum(weight * logprobs[t] for t, weight in enumerate(weights) if weight)


def _mean_and_std(values: list[float]) -> tuple[float, float]:
    """Returns mean and standard deviation with ddof 1."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
