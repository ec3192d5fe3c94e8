"""SFT sets on disk, and the way from one to updates: JSONL or array_record, read at random through grain.

A set is a list of conversations, each a list of (role, text, trained) messages (`data.sft.Message`).

    write_jsonl(path, conversations)                  one conversation a line
    build_array_record(conversations, folder)         a tensorflow-datasets set; TensorFlow is not needed
    source = open_set(path)                           either of them: len(source), source[i]
    batches = iter(sft_batches(source, to_sequence, batch=16, seed=0, epochs=2))
    batches.get_state(), batches.set_state(state)     where it stands, as bytes
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np

from sage_jax.data.packing import Sequence as TokenSequence
from sage_jax.data.sft import Message
from sage_jax.errors import ConfigError, DataError

_NAME = "conversations"


def write_jsonl(path: Path, conversations: Iterable[Sequence[Message]]) -> None:
    """Writes one conversation a line: {"messages": [[role, text, trained], ...]}."""
    with path.open("w") as file:
        for messages in conversations:
            file.write(json.dumps({"messages": [list(message) for message in messages]}) + "\n")


class JsonlSet:
    """A JSONL file read at random: an index of line starts is held, the text stays on disk."""

    def __init__(self, path: Path):
        """Indexes the file.

        Raises:
          DataError: the file is missing or holds no line.
        """
        self._path, self._starts, place = path, [], 0
        if not path.is_file():
            raise DataError(f"{path} is missing: an SFT set is a JSONL file or a folder of array_record files")
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    self._starts.append(place)
                place += len(line)
        if not self._starts:
            raise DataError(f"{path} holds no conversation")

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> list[Message]:
        """Returns a conversation. Raises DataError naming file and line when it is none."""
        with self._path.open("rb") as file:
            file.seek(self._starts[index])
            line = file.readline()
        try:
            return [(str(role), str(text), bool(trained)) for role, text, trained in json.loads(line)["messages"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self._path}, conversation {index + 1}: no list of [role, text, trained]: {error}"
            ) from error


class ArrayRecordSet:
    """A prepared tensorflow-datasets set of conversations."""

    def __init__(self, folder: Path):
        """Opens the set. Raises DataError when the folder holds none."""
        import tensorflow_datasets as tfds  # a second, and only where such a set is used

        try:
            self._source = tfds.builder_from_directory(folder).as_data_source("train")
        except tfds.core.dataset_info.DatasetInfoFileError as error:
            raise DataError(f"{folder} holds no prepared array_record set: {error}") from error

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> list[Message]:
        """Returns a conversation."""
        messages = self._source[index]["messages"]
        columns = (messages["role"], messages["text"], messages["trained"])
        return [(role.decode(), text.decode(), bool(trained)) for role, text, trained in zip(*columns, strict=True)]


def build_array_record(conversations: Iterable[Sequence[Message]], folder: Path) -> Path:
    """Writes a tensorflow-datasets set (split "train", array_record) below `folder`; returns its own folder."""
    import tensorflow_datasets as tfds

    class Conversations(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        name = _NAME

        def _info(self):
            message = {"role": tfds.features.Text(), "text": tfds.features.Text(), "trained": np.bool_}
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict({"messages": tfds.features.Sequence(message)}),
                disable_shuffling=True,  # the set keeps the order given; `sft_batches` shuffles
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, messages in enumerate(conversations):
                roles, texts, trained = zip(*messages, strict=True)
                yield number, {"messages": {"role": list(roles), "text": list(texts), "trained": list(trained)}}

    builder = Conversations(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_dir)


def open_set(path: str | Path) -> JsonlSet | ArrayRecordSet:
    """Opens a JSONL file or a folder of array_record files. Raises DataError when it is neither."""
    path = Path(path)
    return ArrayRecordSet(path) if path.is_dir() else JsonlSet(path)


def sft_batches(
    source: Any, to_sequence: Callable[[list[Message]], TokenSequence], *, batch: int, seed: int, epochs: int = 1
) -> grain.IterDataset:
    """Returns lists of `batch` token sequences, in an order drawn anew for each pass; a short last batch is kept.

    Its iterator tells where it stands (`get_state`) and goes on from there (`set_state`).

    Args:
      source: an opened set.
      to_sequence: from messages to tokens, see `sft.conversation_sequence`.
      batch: conversations of an update.
      seed: of the order.
      epochs: passes.

    Raises:
      ConfigError: batch or epochs is not positive.
    """
    for name, value in {"batch": batch, "epochs": epochs}.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    dataset = grain.MapDataset.source(source).seed(seed).shuffle().repeat(epochs).map(to_sequence)
    return dataset.batch(batch, batch_fn=list).to_iter_dataset()
