"""Configuration: a flat, locked ConfigDict outside, frozen validated dataclasses inside.

A config file builds its ConfigDict with `configure(cls, values)` from a `Settings` dataclass, whose fields carry their
own default, meaning and limits (`setting`). Flags override single keys; `to_dataclass` then makes the frozen object
that the library reads. The library never sees a ConfigDict, and a wrong key or value never gets past this file.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class RunConfig(config.RunConfig):
        learning_rate: float = setting(1e-6, "peak learning rate", above=0)   # adding a field is this one line

A field whose type is another `Settings` class is a group: its fields appear in the same flat name space.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import pathlib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import ml_collections
from ml_collections import config_dict

from sage_jax.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound="Settings")
# What other trainers call a key -> its name here.
_USUAL_NAMES = {
    "batch_size": "tasks_per_round",
    "beta": "kl_coef",
    "epsilon": "clip_low",
    "learning_rate": "lr",
    "lora_r": "lora_rank",
    "max_completion_length": "act_tokens",
    "num_generations": "group_size",
    "output_dir": "run_dir",
    "warmup_steps": "lr_warmup",
}
_ALL_KEYS = "All keys with their meaning stand in sage_jax/setting_groups.py, settings.py and benchmarks/."


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[Any] | None = None,
    free: bool = False,
) -> Any:
    """Declares one field of a `Settings` class.

    Args:
      default: value used when the config names none.
      doc: meaning and unit, one line.
      low: smallest value allowed.
      high: largest value allowed.
      above: the value must be greater than this.
      choices: the only values allowed.
      free: True when a run may be continued with another value (logging, how long to run, ...). The value of every
        other field belongs to the fingerprint that a checkpoint is checked against.
    """
    limits = {"low": low, "high": high, "above": above, "choices": tuple(choices) if choices is not None else None}
    return dataclasses.field(default=default, metadata={"doc": doc, "free": free, **limits})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of every settings class: checks each field's type and limits whenever an object is made."""

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
          ConfigError: a value has the wrong type or lies outside its limits.
        """
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _checked(field, hints[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """What every run has, whatever it trains. Concrete runs extend it."""

    name: str = setting("run", "name of the run, shown in its report", free=True)
    run_dir: str = setting("runs/run", "folder that receives everything the run writes", free=True)
    seed: int = setting(0, "seed that every named random stream is derived from", low=0)


def suggest(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the closest known word, or all known words when none is close."""
    known = sorted(known)
    return closest(word, known) or f" Known: {', '.join(map(repr, known))}."


def suggest_key(key: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for a key that is near or has another name here, or else where all keys stand."""
    known = sorted(known)
    usual = _USUAL_NAMES.get(key)
    near = f" Did you mean {usual!r}?" if usual in known else closest(key, known)
    return near or f" {_ALL_KEYS}"


def closest(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the closest known word, or nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def parse_arg(
    arg: str | None, *, scales: Sequence[str], settings: type[Settings], **extra: type
) -> tuple[str, dict[str, Any]]:
    """Parses what follows the colon in `--config=configs/x.py:smoke,seed=3`.

    Args:
      arg: comma-separated; at most one bare word, the scale, then `key=value` pairs. Empty means the first scale.
      scales: the scales this config file offers, default first.
      settings: the class whose fields are the known keys and give the values their types.
      **extra: further keys of this config file alone, with their type (int, float, bool, str).

    Returns:
      The scale and the typed values, `extra` ones included.

    Raises:
      ConfigError: unknown scale or key, or a value that does not have the key's type.
    """
    hints: dict[str, Any] = {key: hint for key, (_, hint) in flat_fields(settings).items()} | extra
    scale, values = scales[0], {}
    for position, item in enumerate(filter(None, (part.strip() for part in (arg or "").split(",")))):
        key, equals, text = item.partition("=")
        if not equals:
            if position or item not in scales:
                raise ConfigError(
                    f"config argument {item!r} is no scale of this config.{closest(item, scales)} "
                    f"The form is <scale>,<key>=<value>,... with a scale of {', '.join(scales)}"
                )
            scale = item
            continue
        if key not in hints:
            raise ConfigError(f"config argument names unknown key {key!r}.{suggest_key(key, hints)}")
        values[key] = parse_text(key, text, hints[key])
    return scale, values


def configure(settings: type[Settings], values: Mapping[str, Any] | None = None) -> ml_collections.ConfigDict:
    """Returns a flat, locked ConfigDict with the defaults of `settings` overridden by `values`.

    Raises:
      ConfigError: a key is unknown (with a suggestion), or a value does not fit its field.
    """
    fields = flat_fields(settings)
    values = dict(values or {})
    for key in values:
        if key not in fields:
            raise ConfigError(f"unknown config key {key!r}.{suggest_key(key, fields)}")
    config = ml_collections.ConfigDict()
    for key, (field, hint) in fields.items():
        value = _checked(field, hint, values.get(key, field.default))
        config[key] = config_dict.placeholder(_plain_type(hint)) if value is None else value
    return config.lock()


def to_dataclass(config: Mapping[str, Any] | ml_collections.ConfigDict, cls: type[SettingsT]) -> SettingsT:
    """Makes the frozen, validated object that the library reads.

    Args:
      config: flat mapping of key to value; keys left out take their default.
      cls: a `Settings` class; fields of a `Settings` type take their own fields from the same flat mapping.

    Raises:
      ConfigError: unknown key, wrong type or value outside its limits; names key, value and what would fit.
    """
    values = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else dict(config)
    known = flat_fields(cls)
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown config key {key!r}.{suggest_key(key, known)}")
    return _build(values, cls)


def flat_fields(cls: type[Settings]) -> dict[str, tuple[dataclasses.Field, Any]]:
    """Returns {key: (field, type)} of a settings class with its groups laid flat.

    Raises:
      ConfigError: two groups declare the same key, or a field was not declared with `setting`.
    """
    found: dict[str, tuple[dataclasses.Field, Any]] = {}
    for field, hint in _declared(cls):
        entries = flat_fields(hint) if _is_group(hint) else {field.name: (field, hint)}
        for key, entry in entries.items():
            if key in found:
                raise ConfigError(f"config key {key!r} is declared twice in {cls.__name__}: rename one of them")
            if "doc" not in entry[0].metadata:
                raise ConfigError(f"field {key!r} of {cls.__name__} must be declared with setting(default, doc)")
            found[key] = entry
    return found


def flatten(settings: Settings) -> dict[str, Any]:
    """Returns {key: value} of a settings object, groups laid flat, in order of declaration; JSON-serialisable."""
    flat: dict[str, Any] = {}
    for field, hint in _declared(type(settings)):
        value = getattr(settings, field.name)
        flat.update(flatten(value) if _is_group(hint) else {field.name: value})
    return flat


def fingerprint(settings: Settings) -> dict[str, Any]:
    """Returns the values a checkpoint must agree with: every key that is not declared `free`."""
    fields = flat_fields(type(settings))
    return {key: value for key, value in flatten(settings).items() if not fields[key][0].metadata["free"]}


def defaults(settings: type[Settings]) -> dict[str, Any]:
    """Returns {key: default}: what a run had for keys that are newer than its checkpoint, as they change nothing."""
    return {key: field.default for key, (field, _) in flat_fields(settings).items()}


def load_config(spec: str, overrides: Mapping[str, str] | None = None) -> ml_collections.ConfigDict:
    """Loads `path/to/config.py[:arg]` and applies textual overrides, for notebooks, tests and launchers.

    Raises:
      ConfigError: the file is missing or has no `get_config`, or an override has an unknown key or a wrong value.
    """
    path, _, arg = spec.partition(":")
    if not pathlib.Path(path).is_file():
        raise ConfigError(f"config file {path!r} does not exist; give a path such as configs/skillmaster_alfworld.py")
    module_spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"config file {path!r} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"config file {path!r} defines no get_config(arg)")
    config = module.get_config(arg) if arg else module.get_config()
    for key, text in (overrides or {}).items():
        check_key(key, config)
        try:
            kept, hint = config[key], config.get_type(key)
            # A ConfigDict knows that a value is a tuple but not of what: take that from the value in place.
            if hint is tuple and kept:
                hint = types.GenericAlias(tuple, (type(kept[0]), ...))
            config[key] = parse_text(key, text, hint)
        except TypeError as error:
            raise ConfigError(f"config key {key!r} cannot be {text!r}: {error}") from error
    return config


def check_command_line(argv: Sequence[str], default: str, flag: str = "config") -> None:
    """Checks the config flag and the keys of its overrides (`--config.key=value`, `--noconfig.key`).

    To be called before absl parses the flags, whose own message hides the suggestion in a traceback.

    Raises:
      ConfigError: the file or its argument is wrong, or an override names an unknown key.
    """
    spec, keys = default, []
    for position, arg in enumerate(argv):
        name, equals, value = arg.lstrip("-").partition("=")
        if not arg.startswith("-"):
            continue
        if name == flag:
            spec = value if equals else "".join(argv[position + 1 : position + 2])
        for prefix in (f"{flag}.", f"no{flag}."):
            if name.startswith(prefix):
                keys.append(name.removeprefix(prefix))
    config = load_config(spec)
    for key in keys:
        check_key(key, config)


def check_key(key: str, config: Mapping[str, Any] | ml_collections.ConfigDict) -> None:
    """Raises ConfigError with a suggestion when the config has no such key."""
    if key not in config:
        raise ConfigError(f"unknown config key {key!r}.{suggest_key(key, list(config))}")


def parse_text(key: str, text: str, hint: Any) -> Any:
    """Turns a command-line text into a value of type `hint`; tuples are joined by '+', "none" is None where allowed.

    Raises:
      ConfigError: the text is no such value.
    """
    if _is_optional(hint) and text.lower() == "none":
        return None
    plain = _plain_type(hint)
    try:
        if plain is bool:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        if plain is tuple:
            element = (typing.get_args(_without_none(hint)) or (str,))[0]
            return tuple(parse_text(key, part, element) for part in text.split("+") if part)
        return plain(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"config key {key!r} cannot be {text!r}: {_type_name(hint)} would fit") from error


def _build(values: Mapping[str, Any], cls: type[SettingsT]) -> SettingsT:
    arguments: dict[str, Any] = {}
    for field, hint in _declared(cls):
        if _is_group(hint):
            arguments[field.name] = _build(values, hint)
        elif field.name in values:
            arguments[field.name] = values[field.name]
    return cls(**arguments)


def _declared(cls: type[Settings]) -> Iterator[tuple[dataclasses.Field, Any]]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield field, hints[field.name]


def _checked(field: dataclasses.Field, hint: Any, value: Any) -> Any:
    """Returns the value as the type the field declares (int -> float, list -> tuple), or raises ConfigError."""
    if _is_group(hint):
        return value
    value = _coerced(value, hint)
    limits = field.metadata
    fits = _has_type(value, hint)
    if fits and value is not None:
        for part in value if isinstance(value, tuple) else (value,):
            fits = fits and _within(part, limits)
    if not fits:
        fit = " or ".join(filter(None, [_limits_text(hint, limits), "None" if _is_optional(hint) else ""]))
        near = closest(value, limits["choices"]) if isinstance(value, str) and limits.get("choices") else ""
        raise ConfigError(
            f"config key {field.name!r} cannot be {value!r}: {fit} would fit ({limits.get('doc', '')}).{near}"
        )
    return value


def _within(value: Any, limits: Mapping[str, Any]) -> bool:
    low, high, above, choices = (limits.get(name) for name in ("low", "high", "above", "choices"))
    if choices is not None:
        return value in choices
    if isinstance(value, float) and value != value:
        return False
    return (low is None or value >= low) and (high is None or value <= high) and (above is None or value > above)


def _limits_text(hint: Any, limits: Mapping[str, Any]) -> str:
    if limits.get("choices") is not None:
        return "one of " + ", ".join(map(repr, limits["choices"]))
    bounds = [
        f"{sign} {limits[name]}"
        for name, sign in (("above", ">"), ("low", ">="), ("high", "<="))
        if limits.get(name) is not None
    ]
    return " ".join([_type_name(hint), " and ".join(bounds)]).strip()


def _coerced(value: Any, hint: Any) -> Any:
    plain = _plain_type(hint)
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if plain is tuple and isinstance(value, list | tuple):
        element = (typing.get_args(_without_none(hint)) or (str,))[0]
        return tuple(_coerced(part, element) for part in value)
    return value


def _has_type(value: Any, hint: Any) -> bool:
    if value is None:
        return _is_optional(hint)
    plain = _plain_type(hint)
    if plain is tuple:
        element = (typing.get_args(_without_none(hint)) or (str,))[0]
        return isinstance(value, tuple) and all(_has_type(part, element) for part in value)
    return isinstance(value, plain) and (plain is bool or not isinstance(value, bool))


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Settings)


def _is_optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint) and typing.get_origin(hint) in (typing.Union, types.UnionType)


def _without_none(hint: Any) -> Any:
    return next(part for part in typing.get_args(hint) if part is not type(None)) if _is_optional(hint) else hint


def _plain_type(hint: Any) -> type:
    hint = _without_none(hint)
    return typing.get_origin(hint) or hint


def _type_name(hint: Any) -> str:
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text", tuple: "a tuple"}
    return names.get(_plain_type(hint), str(hint))
