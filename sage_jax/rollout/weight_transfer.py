"""How a server gets the weights of a folder: it reads the folder itself, or they are sent as tensors in requests.

Sent tensors need no disk that both sides see. They go by value, as a pickle that SGLang's restricted reader takes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import itertools
import math
import operator
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import safetensors

from sage_jax.errors import ConfigError, EngineError, ServerProtocolError, ServerRefusedError

Call = Callable[..., Awaitable[Any]]  # (url, path, body, *, method) -> parsed answer
Transfer = Callable[[Call, str, Path, str], Awaitable[None]]  # (call, url, folder, name of the version)
PART_BYTES = 128 << 20  # tensors of one request, unless one alone is larger
_TENSORS = "/update_weights_from_tensor"


def transfer_named(name: str) -> Transfer:
    """Returns the way of a name: "disk" or "tensor".

    Raises:
      ConfigError: another name, or "tensor" without torch, which writes the tensors.
    """
    if name not in _TRANSFERS:
        raise ConfigError(f"engine_weight_transfer={name!r}: must be one of {', '.join(_TRANSFERS)}")
    if name == "tensor" and importlib.util.find_spec("torch") is None:
        raise ConfigError("engine_weight_transfer='tensor' needs torch: install the extra, sage-jax[torch]")
    return _TRANSFERS[name]


async def from_disk(call: Call, url: str, folder: Path, name: str) -> None:
    """Has a server read the folder, which it must see at the same path. Raises ServerRefusedError."""
    path = "/update_weights_from_disk"
    require_success(await call(url, path, {"model_path": str(folder), "weight_version": name}), url + path)


async def as_tensors(call: Call, url: str, folder: Path, name: str) -> None:
    """Sends the folder's tensors, as many a request as PART_BYTES takes.

    Raises:
      EngineError: the folder has none; this process does not see what the trainer wrote.
      ServerRefusedError: the server knows no such call, or does not take the tensors.
      ServerProtocolError: it does not tell how many ranks share its model.
    """
    parts = _parts(folder)
    if not parts[0]:  # sent all the same, they would give the version's name to the weights that the server has
        raise EngineError(f"{folder}: no weights to send; actors on other machines need that folder too")
    ranks = await _ranks(call, url)
    await _begin(call, url)
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        payload = await asyncio.to_thread(_serialize, part)
        body = {
            "serialized_named_tensors": [payload] * ranks,
            "flush_cache": last,
            # Weights that are neither the old nor the new ones have a name of their own, so that nobody takes them
            # for either when the next part never comes.
            "weight_version": name if last else f"{name}-partial",
        }
        require_success(await call(url, _TENSORS, body), url + _TENSORS)
    require_success(await call(url, "/end_weight_update", {}), f"{url}/end_weight_update")


async def _begin(call: Call, url: str) -> None:
    """Opens the server's session of updates; one that an earlier update left open is closed first."""
    try:
        found = await call(url, "/begin_weight_update", {})
    except ServerRefusedError:
        with contextlib.suppress(ServerRefusedError):  # none is open: then the second refusal tells why
            await call(url, "/end_weight_update", {})
        found = await call(url, "/begin_weight_update", {})
    require_success(found, f"{url}/begin_weight_update")


async def _ranks(call: Call, url: str) -> int:
    """Returns how many ranks each want a copy of the tensors."""
    info = await call(url, "/server_info", method="GET")
    ranks = info.get("tp_size", 1) if isinstance(info, dict) else None
    if not isinstance(ranks, int) or ranks < 1:
        raise ServerProtocolError(f"{url}/server_info: tp_size is {ranks!r}; a count is expected")
    return ranks


def _parts(folder: Path) -> list[list[tuple[Path, str]]]:
    """Deals the folder's tensors, as file and name, out to requests."""
    parts: list[list[tuple[Path, str]]] = [[]]
    size = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no dict)
                found = tensors.get_slice(name)
                more = math.prod(found.get_shape()) * (2 if found.get_dtype() == "BF16" else 4)
                if parts[-1] and size + more > PART_BYTES:
                    parts.append([])
                    size = 0
                parts[-1].append((file, name))
                size += more
    return parts


def _serialize(part: list[tuple[Path, str]]) -> str:
    """Returns the base64 text of a pickled list of (name, torch tensor)."""
    named = []
    for file, group in itertools.groupby(part, key=operator.itemgetter(0)):
        with safetensors.safe_open(file, framework="pt") as tensors:
            named += [(name, tensors.get_tensor(name)) for _, name in group]
    return base64.b64encode(pickle.dumps(named)).decode()


def require_success(found: Any, where: str) -> None:
    """Raises ServerRefusedError when an answer does not say that a control call did what it should."""
    if not isinstance(found, dict) or found.get("success") is not True:
        raise ServerRefusedError(f"{where}: {str(found)[:500]}")


_TRANSFERS: dict[str, Transfer] = {"disk": from_disk, "tensor": as_tensors}
