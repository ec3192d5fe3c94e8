"""Pure functions from rewards to advantages and from log-probabilities to losses."""

from sage_jax.losses.advantages import group_advantages as group_advantages
from sage_jax.losses.generations import GenerationAdvantages as GenerationAdvantages
from sage_jax.losses.generations import generation_advantages as generation_advantages
from sage_jax.losses.logprobs import TokenScores as TokenScores
from sage_jax.losses.logprobs import token_logprobs as token_logprobs
from sage_jax.losses.paired import paired_credit as paired_credit
from sage_jax.losses.policy import clipped_surrogate as clipped_surrogate
from sage_jax.losses.policy import kl_estimate as kl_estimate
from sage_jax.losses.policy import policy_loss as policy_loss
from sage_jax.losses.policy import token_weights as token_weights
from sage_jax.losses.sft import sft_loss as sft_loss
from sage_jax.losses.steps import discounted_returns as discounted_returns
from sage_jax.losses.steps import step_advantages as step_advantages
from sage_jax.losses.streams import stream_advantages as stream_advantages
