"""Loads the tokenizer of a model folder."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import transformers

from sage_jax.errors import ConfigError

_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_tokenizer(folder: pathlib.Path) -> Any:
    """Loads a model folder's tokenizer.

    A folder that asks for the plain class gets tokenizer.json as it is: AutoTokenizer of transformers 5 reads every
    folder of model type qwen2 as Qwen's byte-level BPE, which turns a word-level vocabulary into single letters.

    Raises:
      ConfigError: the folder holds no tokenizer.
    """
    path, kind = folder / "tokenizer_config.json", transformers.AutoTokenizer
    if path.is_file() and json.loads(path.read_text()).get("tokenizer_class") in _PLAIN_TOKENIZERS:
        kind = transformers.PreTrainedTokenizerFast
    try:
        return kind.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model={str(folder)!r} has no tokenizer that can be loaded: {str(error).splitlines()[0]}"
        ) from error
