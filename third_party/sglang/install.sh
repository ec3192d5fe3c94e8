#!/usr/bin/env bash
# Installs SGLang 0.5.23 for the CPU into an environment of its own (3.4 GB, some minutes). Usage: install.sh [FOLDER]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${1:-${SAGE_JAX_SGLANG_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sage_jax/sglang}}
if [[ -e "$environment/installed" ]] && cmp -s "$here/requirements.txt" "$environment/installed"; then
  echo "already installed in $environment"
  exit
fi
"${PYTHON:-python3.11}" -m venv "$environment"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
cp "$here/requirements.txt" "$environment/installed"
echo "installed in $environment"
