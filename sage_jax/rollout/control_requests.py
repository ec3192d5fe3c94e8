"""Reads the bodies of the calls that steer the server: weights, pauses, aborts and the cache, as SGLang defines them.

A misspelt field is refused by its name: these calls would otherwise succeed and do something else.
"""

from __future__ import annotations

from typing import Any

from sage_jax.rollout.engine import is_int
from sage_jax.rollout.http_requests import BadRequestError, read_flag, read_object

PAUSE_MODES = ("abort", "retract", "in_place")

_ALL = {"rid": (None,), "http_worker_ipc": (None,)}  # SGLang has them in every call
_UPDATE_FLAGS = (
    *("is_async", "torch_empty_cache", "keep_pause", "recapture_cuda_graph"),  # nothing here that they would change
    "flush_cache",  # old keys and values are dropped in any case
)
_UPDATE_NEUTRAL = {**_ALL, "load_format": (None, "auto", "safetensors"), "manifest": (None,)}
_ABORT_NEUTRAL = {
    "http_worker_ipc": (None,),
    **dict.fromkeys(("finished_reason", "abort_message", "weight_versions"), (None,)),
}


def read_update(body: Any) -> tuple[str, str | None, bool]:
    """Reads a body of POST /update_weights_from_disk.

    Returns:
      The model folder, the version's name (None keeps the present one), and whether running requests are aborted.

    Raises:
      BadRequestError: names the field.
    """
    taken = {"model_path", "weight_version", "abort_all_requests", "token_step", *_UPDATE_FLAGS}
    body = read_object(body, taken, _UPDATE_NEUTRAL)
    for name in _UPDATE_FLAGS:
        read_flag(body, name)
    path, version, step = body.get("model_path"), body.get("weight_version"), body.get("token_step", 0)
    if not isinstance(path, str) or not path:
        raise BadRequestError(f"model_path={path!r}: must be a folder that this server sees")
    if version is not None and not isinstance(version, str):
        raise BadRequestError(f"weight_version={version!r}: must be a text")
    if not is_int(step):
        raise BadRequestError(f"token_step={step!r}: must be a whole number")
    return path, version, read_flag(body, "abort_all_requests")


def read_pause(body: Any) -> str:
    """Reads a body of POST /pause_generation: the mode. Raises BadRequestError naming the field."""
    mode = read_object(body, {"mode"}, _ALL).get("mode", "abort")
    if mode not in PAUSE_MODES:
        raise BadRequestError(f"mode={mode!r}: must be one of {', '.join(PAUSE_MODES)}")
    return mode


def read_resume(body: Any) -> None:
    """Reads a body of POST /continue_generation, which says nothing here. Raises BadRequestError naming the field."""
    read_flag(read_object(body, {"torch_empty_cache"}, _ALL), "torch_empty_cache")


def read_abort(body: Any) -> str | None:
    """Reads a body of POST /abort_request: a request's name, None for all. Raises BadRequestError naming the field."""
    body = read_object(body, {"rid", "abort_all"}, _ABORT_NEUTRAL)
    rid, abort_all = body.get("rid"), read_flag(body, "abort_all")
    if not isinstance(rid, str) and (rid is not None or not abort_all):
        raise BadRequestError(f"rid={rid!r}: must be a text, unless abort_all is true")
    return None if abort_all else rid


def read_flush(body: Any) -> None:
    """Reads a body of POST /flush_cache, which says nothing. Raises BadRequestError naming the field."""
    read_object(body, (), {**_ALL, "timeout_s": (None, 0)})
