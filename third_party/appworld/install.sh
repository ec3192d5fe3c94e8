#!/usr/bin/env bash
# Installs the AppWorld engine with an environment of its own, and builds our world with it.
#
#     third_party/appworld/install.sh [FOLDER]      default: ~/.cache/sage_jax/appworld, or $SAGE_JAX_APPWORLD
#
# PYTHON names the project's interpreter (default .venv/bin/python), which makes the world's plain data.
# The engine needs pydantic 1 and so cannot share an environment with the project. What is unpacked here from the
# engine's package, and what is built from it, stays on this machine: its licence allows to pass it on encrypted only.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
repo="$(cd "$here/../.." && pwd)"
folder="${1:-${SAGE_JAX_APPWORLD:-${SAGE_JAX_CACHE:-$HOME/.cache/sage_jax}/appworld}}"
python="${PYTHON:-$repo/.venv/bin/python}"
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"
umask 022

if [ ! -x "$folder/venv/bin/appworld" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the AppWorld engine needs Python 3.11")'
  "$(cd "$repo" && "$python" -c 'import os, sys; print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))')" \
    -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
fi
if [ ! -e "$folder/unpacked" ]; then
  APPWORLD_ROOT="$folder" APPWORLD_CACHE="$folder/cache" "$folder/venv/bin/appworld" install
  touch "$folder/unpacked"
fi
rm -rf "$folder/twin.part"
(cd "$repo" && "$python" -m sage_jax.envs.appworld.twin "$folder/world.json")
"$folder/venv/bin/python" -B "$repo/sage_jax/envs/appworld/engine/build_world.py" "$folder/world.json" "$folder/twin.part"
rm -rf "$folder/twin"
mv "$folder/twin.part" "$folder/twin"
echo "AppWorld is in $folder"
