"""The errors a user can meet, named after the boundary they come from."""

from __future__ import annotations


class SageError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(SageError, ValueError):
    """A configuration value is wrong. The message names key, value and what would fit."""


class DataError(SageError):
    """A data file is missing or broken. The message names the file."""


class EnvError(SageError):
    """An environment failed through no fault of the agent."""


class SandboxError(SageError):
    """No sandbox can be had, or one failed by itself. What a program did inside is a `RunStatus`, never this error."""


class EngineError(SageError):
    """Generation failed or answered something that cannot be right."""


class AbortedError(EngineError):
    """The engine was told to end a turn before it was over, by the trainer or by another user of a server."""


class ServerUnavailableError(EngineError):
    """A server could not be reached, did not answer in time, or answered 429 or 5xx until the retries were used up.

    `retry_after` is what the server asked to wait, in seconds, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.retry_after = retry_after


class ServerRefusedError(EngineError):
    """A server refused a request (4xx): asking again would not help."""


class ServerProtocolError(EngineError):
    """A server's answer breaks the contract: not JSON, wrong lengths, ids outside the vocabulary, NaN log-probs."""


class StaleWeightsError(EngineError):
    """A server goes on answering with other weights than the ones it was last given."""


class BudgetError(EngineError):
    """A task LLM's budget of calls, tokens or money is used up."""


class SkillError(SageError):
    """A skill bank file or edit is malformed."""


class RewardError(SageError):
    """A reward cannot be computed from what was given (no probe tasks, a probe that never ran)."""


class CheckpointError(SageError):
    """A checkpoint is missing, damaged, or does not fit this run."""


class NumericsError(SageError):
    """A loss, gradient or parameter is not finite. The message names step and culprit."""
