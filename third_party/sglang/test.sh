#!/usr/bin/env bash
# Runs the engines' suite and one round of the main program on a real SGLang server. Usage: test.sh [pytest arguments]
# The model is SmolLM2-135M-Instruct where third_party/smollm2/get.sh has put it, else a tiny one made here.
# SAGE_JAX_SGLANG_MODEL names another model folder; SAGE_JAX_SGLANG_URL, a server that is running already with it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
environment=${SAGE_JAX_SGLANG_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sage_jax/sglang}
smollm2=$root/models/SmolLM2-135M-Instruct
cd "$root"
export JAX_PLATFORMS=cpu PYTHONPATH="$root"
if [[ ! -e "$environment/installed" && -z "${SAGE_JAX_SGLANG_URL:-}" ]]; then
  echo "SGLang is not installed in $environment: run third_party/sglang/install.sh first. Skipped."
  exit
fi
work=$(mktemp -d)
server=
stop() {
  if [[ -n "$server" ]]; then
    kill "$server" 2>/dev/null || true # its parts end with it
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap stop EXIT
if [[ -z "${SAGE_JAX_SGLANG_MODEL:-}" && -f "$smollm2/config.json" ]]; then
  export SAGE_JAX_SGLANG_MODEL=$smollm2
elif [[ -z "${SAGE_JAX_SGLANG_MODEL:-}" ]]; then
  export SAGE_JAX_SGLANG_MODEL="$work/model"
  "$python" -c 'import pathlib, sys; from sage_jax.testing.tiny import tiny_model; tiny_model(pathlib.Path(sys.argv[1]))' \
    "$SAGE_JAX_SGLANG_MODEL"
fi
if [[ -z "${SAGE_JAX_SGLANG_URL:-}" ]]; then
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  export SAGE_JAX_SGLANG_URL="http://127.0.0.1:$port"
  echo "starting SGLang with $SAGE_JAX_SGLANG_MODEL"
  # Its log stays out of the way, and is shown when it does not start.
  "$here/serve.sh" "$SAGE_JAX_SGLANG_MODEL" "$port" --skip-tokenizer-init >"$work/server.log" 2>&1 &
  server=$!
  ready="import httpx, sys; sys.exit(httpx.get('$SAGE_JAX_SGLANG_URL/health', trust_env=False).status_code != 200)"
  for second in $(seq 600); do
    kill -0 "$server" 2>/dev/null || { tail -n 40 "$work/server.log"; echo "SGLang ended"; exit 1; }
    "$python" -c "$ready" 2>/dev/null && break
    [[ $second -lt 600 ]] || { tail -n 40 "$work/server.log"; echo "SGLang does not answer"; exit 1; }
    sleep 1
  done
fi
"$python" -m pytest tests/rollout/conformance_test.py tests/rollout/sglang_run_test.py -k sglang --timeout=3600 "$@"
