"""Rewards of episodes, of the form of turns, and of skill edits; each is a `RewardResult` with a status."""

from sage_jax.rewards.outcome import OutcomeConfig, outcome_reward
from sage_jax.rewards.sage import SageRewardConfig, TaskOutcome, chain_group, chain_rewards
from sage_jax.rewards.shaping import ActShaping, ReviewShaping, act_reward, ends_episode, review_reward
from sage_jax.rewards.utility import (
    NO_EDIT,
    ProbeCache,
    ProbeEpisode,
    ProbeKey,
    ProbePlan,
    ProbeRequest,
    UtilityConfig,
    assemble,
    plan_probes,
    probe_score,
    select_probes,
    utility,
)

__all__ = [
    "NO_EDIT",
    "ActShaping",
    "OutcomeConfig",
    "ProbeCache",
    "ProbeEpisode",
    "ProbeKey",
    "ProbePlan",
    "ProbeRequest",
    "ReviewShaping",
    "SageRewardConfig",
    "TaskOutcome",
    "UtilityConfig",
    "act_reward",
    "assemble",
    "chain_group",
    "chain_rewards",
    "ends_episode",
    "outcome_reward",
    "plan_probes",
    "probe_score",
    "review_reward",
    "select_probes",
    "utility",
]
