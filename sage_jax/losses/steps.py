"""Step-level groups: turns of a task group that answered the same observation are compared with each other (GiGPO).

An episode's own reward tells all of its turns the same; what followed from one state tells them apart. Runs on the
host in NumPy, like `advantages.py`, before packing.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Shaped

from sage_jax.errors import ConfigError
from sage_jax.losses.advantages import AdvantageKind, check_samples, group_advantages


def discounted_returns(
    rewards: Float[np.ndarray, " N"], episodes: Shaped[np.ndarray, " N"], *, discount: float
) -> Float[np.ndarray, " N"]:
    """Returns R_t = sum over k >= t of discount^(k - t) r_k inside each episode, in float64 (GiGPO, eq. 5).

    Args:
      rewards: of each turn alone; the turns of an episode stand in order of time.
      episodes: episode label of each turn.
      discount: in [0, 1].

    Raises:
      ConfigError: the discount is outside of that.
    """
    if not 0.0 <= discount <= 1.0:
        raise ConfigError(f"step_discount={discount}: between 0 and 1")
    returns, ahead = np.zeros(len(rewards)), dict[object, float]()
    for i in reversed(range(len(rewards))):
        label = episodes[i].item()
        returns[i] = ahead[label] = float(rewards[i]) + discount * ahead.get(label, 0.0)
    return returns


def step_advantages(
    rewards: Float[np.ndarray, " N"],
    groups: Shaped[np.ndarray, " N"],
    episodes: Shaped[np.ndarray, " N"],
    anchors: Shaped[np.ndarray, " N"],
    valid: Bool[np.ndarray, " N"] | None = None,
    *,
    discount: float = 0.95,
    kind: AdvantageKind = "zscore",
    eps: float = 1e-6,
) -> tuple[Float[np.ndarray, " N"], dict[str, int | np.ndarray]]:
    """Returns each turn's discounted return against those of the turns of its group with the same anchor.

    GiGPO (arXiv 2505.10978), eq. 6 and 7: A_step(a_t) = (R_t - mean) / F, over the turns whose state was the same;
    F is the deviation (kind "zscore") or 1 ("mean"). A turn whose state no other turn met has none to be compared
    with: 0. An episode that comes back to a state is compared with itself, too.

    Args:
      rewards: of each turn alone, the episode's outcome at its last turn; turns stand in order of time.
      groups: task group of each turn.
      episodes: episode label of each turn, unique over all groups.
      anchors: the state that each turn answered, as a label.
      valid: False for turns without a reward; they and the turns before them in their episode have no return.
      discount: of later rewards.
      kind: formula, see `advantages.group_advantages`.
      eps: added to the standard deviation.

    Returns:
      Advantages float32, NaN for turns without a return, and the aux of `group_advantages`, where a group is a
      (group, anchor) pair.

    Raises:
      ConfigError: `kind` is unknown, or the discount is outside [0, 1].
      DataError: the arrays do not have one shape [N].
      NumericsError: a valid reward is not finite.
    """
    values = np.asarray(rewards, np.float64)
    known = np.ones(values.shape, bool) if valid is None else np.asarray(valid, bool)
    labels = {"groups": np.asarray(groups), "episodes": np.asarray(episodes), "anchors": np.asarray(anchors)}
    check_samples(values, known, **labels)
    lost = discounted_returns(~known, labels["episodes"], discount=1.0) > 0
    returns = discounted_returns(np.where(known, values, 0.0), labels["episodes"], discount=discount)
    group, anchor = (np.unique(labels[name], return_inverse=True)[1] for name in ("groups", "anchors"))
    states = group * (anchor.max(initial=0) + 1) + anchor
    advantages, aux = group_advantages(returns, states, ~lost, kind=kind, eps=eps)
    # A lone z-score is its raw value; a lone step says nothing.
    _, state, count = np.unique(states[~lost], return_inverse=True, return_counts=True)
    alone = np.zeros(values.shape, bool)
    alone[~lost] = count[state] == 1
    aux["has_signal"] &= ~alone
    return np.where(alone, np.float32(0), advantages), aux
