"""Settings, typed arguments, overrides and the messages a wrong value gets."""

import dataclasses
import pathlib
import subprocess
import sys

import ml_collections
import pytest

from sage_jax.config import (
    RunConfig,
    Settings,
    check_command_line,
    configure,
    defaults,
    fingerprint,
    flat_fields,
    flatten,
    load_config,
    parse_arg,
    parse_text,
    setting,
    suggest,
    suggest_key,
    to_dataclass,
)
from sage_jax.errors import ConfigError
from sage_jax.settings import RunSettings

CONFIG_FILE = """
import dataclasses
from sage_jax.config import RunConfig, configure, parse_arg, setting

@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy(RunConfig):
    rate: float = setting(0.5, "a rate", above=0)
    limit: int | None = setting(None, "a limit", low=1)
    sizes: tuple[int, ...] = setting((1, 2), "sizes", low=1)
    fast: bool = setting(False, "be fast")

def get_config(arg=None):
    scale, values = parse_arg(arg, scales=("local", "smoke"), settings=Toy)
    return configure(Toy, {"rate": 0.1 if scale == "smoke" else 0.5, **values})
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer(Settings):
    learning_rate: float = setting(1e-3, "peak learning rate", above=0)
    schedule: str = setting("constant", "shape of the schedule", choices=("constant", "cosine"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(RunConfig):
    optimizer: Optimizer = setting(Optimizer(), "the optimizer")
    dropout: float = setting(0.0, "dropped share", low=0, high=1)
    limit: int | None = setting(None, "most rounds", low=1, free=True)
    layers: tuple[int, ...] = setting((4, 4), "widths", low=1)
    greedy: bool = setting(False, "take the likeliest token", free=True)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(CONFIG_FILE)
    return str(path)


def test_defaults_and_values_reach_the_groups():
    config = configure(Run, {"learning_rate": 1, "layers": [8]})
    run = to_dataclass(config, Run)
    assert run.optimizer == Optimizer(learning_rate=1.0)
    assert isinstance(run.optimizer.learning_rate, float)
    assert run.layers == (8,)
    assert flatten(run) == config.to_dict()
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.seed = 3


def test_config_is_locked():
    config = configure(Run)
    assert isinstance(config, ml_collections.ConfigDict)
    assert config.is_locked
    with pytest.raises(AttributeError):
        config.learning_rat = 3.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0.0}, "config key 'learning_rate' cannot be 0.0: a number > 0 would fit"),
        ({"learning_rate": float("nan")}, "config key 'learning_rate' cannot be nan"),
        ({"learning_rate": "fast"}, "config key 'learning_rate' cannot be 'fast': a number > 0 would fit"),
        ({"learning_rate": True}, "config key 'learning_rate' cannot be True"),
        ({"schedule": "cosin"}, "one of 'constant', 'cosine' would fit .* Did you mean 'cosine'?"),
        ({"dropout": 1.5}, "config key 'dropout' cannot be 1.5: a number >= 0 and <= 1 would fit"),
        ({"limit": 0}, "config key 'limit' cannot be 0: an integer >= 1 or None would fit"),
        ({"limit": 2.0}, "config key 'limit' cannot be 2.0: an integer >= 1 or None would fit"),
        ({"seed": None}, "config key 'seed' cannot be None: an integer >= 0 would fit"),
        ({"layers": (4, 0)}, r"config key 'layers' cannot be \(4, 0\): a tuple >= 1 would fit"),
        ({"layers": ("4",)}, "config key 'layers' cannot be"),
        ({"greedy": 1}, "config key 'greedy' cannot be 1: true or false would fit"),
        ({"greedi": True}, "unknown config key 'greedi'. Did you mean 'greedy'?"),
        ({"optimizer": 3}, "unknown config key 'optimizer'"),
    ],
)
@pytest.mark.parametrize("build", [configure, lambda cls, values: to_dataclass(values, cls)])
def test_wrong_values_are_refused_with_key_value_and_what_fits(build, values, message):
    with pytest.raises(ConfigError, match=message):
        build(Run, values)


def test_objects_made_by_hand_are_checked_too():
    with pytest.raises(ConfigError, match="learning_rate"):
        Optimizer(learning_rate=-1.0)


def test_choices_are_listed_once_and_the_empty_one_is_seen():
    with pytest.raises(ConfigError) as caught:
        configure(RunSettings, {"engine_dtype": "int8"})
    assert "cannot be 'int8': one of '', 'float32', 'bfloat16' would fit" in str(caught.value)
    assert str(caught.value).count("bfloat16'") == 1
    assert suggest("int8", ("", "float32", "bfloat16")) == " Known: '', 'bfloat16', 'float32'."


@pytest.mark.parametrize(
    ("usual", "own"),
    [
        ("batch_size", "tasks_per_round"),
        ("beta", "kl_coef"),
        ("epsilon", "clip_low"),
        ("learning_rate", "lr"),
        ("lora_r", "lora_rank"),
        ("max_completion_length", "act_tokens"),
        ("num_generations", "group_size"),
        ("output_dir", "run_dir"),
        ("warmup_steps", "lr_warmup"),
    ],
)
def test_other_trainers_names_lead_to_ours(usual, own):
    with pytest.raises(ConfigError, match=f"unknown config key '{usual}'. Did you mean '{own}'?"):
        configure(RunSettings, {usual: 1})
    assert own not in suggest_key(usual, ["other"])  # a class that has no such key is not said to have it


def test_an_unknown_key_without_a_near_one_is_told_where_all_keys_stand():
    with pytest.raises(ConfigError) as caught:
        configure(RunSettings, {"zzzz": 1})
    message = str(caught.value)
    assert "..." not in message
    assert message.endswith("sage_jax/setting_groups.py, settings.py and benchmarks/.")
    package = pathlib.Path(__file__).parents[1] / "sage_jax"
    assert all((package / name).exists() for name in ("setting_groups.py", "settings.py", "benchmarks"))


def test_meaning_stands_in_the_message():
    with pytest.raises(ConfigError, match=r"\(dropped share\)"):
        Run(dropout=2.0)


def test_groups_may_not_share_a_key():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Clash(RunConfig):
        optimizer: Optimizer = setting(Optimizer(), "the optimizer")
        learning_rate: float = setting(0.1, "another one")

    with pytest.raises(ConfigError, match="'learning_rate' is declared twice in Clash"):
        flat_fields(Clash)


def test_fields_need_a_meaning():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Bare(Settings):
        rate: float = 0.1

    with pytest.raises(ConfigError, match="'rate' of Bare must be declared with setting"):
        flat_fields(Bare)


def test_fingerprint_leaves_out_what_may_change_on_resume():
    keys = fingerprint(Run(limit=7))
    assert "limit" not in keys
    assert "run_dir" not in keys
    assert keys["learning_rate"] == 1e-3
    assert fingerprint(Run(limit=7)) == fingerprint(Run(greedy=True))
    assert fingerprint(Run(dropout=0.5)) != fingerprint(Run())


def test_defaults_are_of_every_key():
    assert defaults(Run).keys() == flatten(Run(limit=7)).keys()
    assert defaults(Run)["learning_rate"] == 1e-3


def test_arguments_are_typed():
    scale, values = parse_arg(
        "smoke,seed=3, learning_rate=1,limit=none,layers=8+16,greedy=true,repeats=2",
        scales=("local", "smoke"),
        settings=Run,
        repeats=int,
    )
    assert scale == "smoke"
    assert values == {
        "seed": 3, "learning_rate": 1.0, "limit": None, "layers": (8, 16), "greedy": True, "repeats": 2
    }  # fmt: skip
    assert isinstance(values["learning_rate"], float)


@pytest.mark.parametrize("arg", [None, "", "seed=0"])
def test_first_scale_is_the_default(arg):
    assert parse_arg(arg, scales=("local", "smoke"), settings=Run)[0] == "local"


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("smok", "'smok' is no scale of this config. Did you mean 'smoke'?"),
        ("seed=3,smoke", "'smoke' is no scale"),
        ("smoke,sed=3", "unknown key 'sed'. Did you mean 'seed'?"),
        ("smoke,seed=x", "config key 'seed' cannot be 'x': an integer would fit"),
        ("smoke,seed=1.5", "config key 'seed' cannot be '1.5'"),
        ("smoke,greedy=maybe", "config key 'greedy' cannot be 'maybe': true or false would fit"),
        ("smoke,seed=none", "config key 'seed' cannot be 'none'"),
    ],
)
def test_wrong_arguments_are_refused(arg, message):
    with pytest.raises(ConfigError, match=message):
        parse_arg(arg, scales=("local", "smoke"), settings=Run)


def test_text_of_an_optional_tuple():
    assert parse_text("key", "1.5+2", tuple[float, ...] | None) == (1.5, 2.0)
    assert parse_text("key", "none", tuple[float, ...] | None) is None
    assert parse_text("key", "", tuple[float, ...]) == ()


def test_file_is_loaded_with_argument_and_overrides(config_file):
    assert load_config(config_file).rate == 0.5
    config = load_config(f"{config_file}:smoke,seed=2", {"sizes": "3+4", "limit": "9", "fast": "yes"})
    values = {"rate": 0.1, "seed": 2, "sizes": (3, 4), "limit": 9, "fast": True}
    assert {key: config[key] for key in values} == values


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({"rat": "1"}, "unknown config key 'rat'. Did you mean 'rate'?"), ({"rate": "x"}, "'rate' cannot be 'x'")],
)
def test_wrong_overrides_are_refused(config_file, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(config_file, overrides)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'nowhere\.py' does not exist"):
        load_config("nowhere.py:smoke")
    path = tmp_path / "empty.py"
    path.write_text("")
    with pytest.raises(ConfigError, match="defines no get_config"):
        load_config(str(path))


def test_command_line_keys_are_checked_before_flags_are_parsed(config_file):
    right = ["main", f"--config={config_file}:smoke", "--config.rate=3", "--noconfig.fast", "--config.sizes", "(3,)"]
    check_command_line(right, default="nowhere.py")
    for wrong, message in [
        ([*right, "--config.rat=3"], "'rat'. Did you mean 'rate'?"),
        ([*right, "--noconfig.fas"], "'fas'. Did you mean 'fast'?"),
        (["main", "--config", f"{config_file}:smok"], "Did you mean 'smoke'?"),
        (["main"], "nowhere.py"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_command_line(wrong, default="nowhere.py")


MAIN = """
import sys
from absl import app
from ml_collections import config_flags
from sage_jax.config import check_command_line

CONFIG = config_flags.DEFINE_config_file("config", "nowhere.py")

def parse(argv):
    check_command_line(argv, default="nowhere.py")
    return app.parse_flags_with_usage(argv)

app.run(lambda _: print(CONFIG.value.to_dict()), flags_parser=parse)
"""


def test_flags_override_keys_of_every_type(config_file, tmp_path):
    main = tmp_path / "main.py"
    main.write_text(MAIN)
    words = ["--config.rate=3", "--config.limit=4", "--config.sizes=(5, 6)", "--config.fast"]
    done = subprocess.run(
        [sys.executable, str(main), f"--config={config_file}:smoke,seed=8", *words],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(pathlib.Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    for expected in ("'rate': 3.0", "'limit': 4", "'sizes': (5, 6)", "'fast': True", "'seed': 8"):
        assert expected in done.stdout
