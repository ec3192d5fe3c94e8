"""What every config file does: pick a scale, lay the method's values over the benchmark's, and the command's over both.

Not a config itself.
"""

from collections.abc import Mapping
from typing import Any

from sage_jax import config
from sage_jax.settings import RunSettings

SCALES = ("local", "smoke", "smollm2", "paper")


def make_config(arg: str | None, name: str, shared: Mapping[str, dict[str, Any]], own: Mapping[str, dict[str, Any]]):
    """Returns the config of the scale that `arg` names, with its typed overrides: "smoke,seed=3".

    Args:
      arg: what follows the colon of --config.
      name: of the config; runs go to runs/<name>, other scales than local to runs/<name>_<scale>.
      shared: values of the benchmark at each scale.
      own: values of the method at each scale, above the shared ones.
    """
    scale, values = config.parse_arg(arg, scales=SCALES, settings=RunSettings)
    name = name if scale == "local" else f"{name}_{scale}"
    named = dict(name=name, run_dir=f"runs/{name}", scale=scale)
    return config.configure(RunSettings, shared[scale] | named | own[scale] | values)
