"""`python -m sage_jax.envs.appworld.twin WORLD.json`: writes our world as plain data, for the script that builds it."""

from __future__ import annotations

import json
import pathlib
import sys

from sage_jax.envs.appworld.twin.world import make_world

if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(json.dumps(make_world().as_json()))
