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


class EngineError(SageError):
    """Generation failed or answered something that cannot be right."""


class SkillError(SageError):
    """A skill bank file or edit is malformed."""


class RewardError(SageError):
    """A reward cannot be computed from what was given (no probe tasks, a probe that never ran)."""


class CheckpointError(SageError):
    """A checkpoint is missing, damaged, or does not fit this run."""


class NumericsError(SageError):
    """A loss, gradient or parameter is not finite. The message names step and culprit."""
