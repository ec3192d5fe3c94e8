#!/usr/bin/env bash
# Runs the conformance suite on a real SGLang server with a small random model. Usage: test.sh [pytest arguments]
# SAGE_JAX_SGLANG_MODEL names another model folder; SAGE_JAX_SGLANG_URL, a server that is running already.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
environment=${SAGE_JAX_SGLANG_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sage_jax/sglang}
cd "$root"
if [[ ! -x "$environment/bin/python" && -z "${SAGE_JAX_SGLANG_URL:-}" ]]; then
  echo "SGLang is not installed in $environment: run third_party/sglang/install.sh first. Skipped."
  exit
fi
work=$(mktemp -d)
server=
trap '[[ -z "$server" ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
if [[ -z "${SAGE_JAX_SGLANG_MODEL:-}" ]]; then
  export SAGE_JAX_SGLANG_MODEL="$work/model"
  PYTHONPATH="$root" JAX_PLATFORMS=cpu "$python" "$here/make_model.py" "$SAGE_JAX_SGLANG_MODEL"
fi
if [[ -z "${SAGE_JAX_SGLANG_URL:-}" ]]; then
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  export SAGE_JAX_SGLANG_URL="http://127.0.0.1:$port"
  # Its log stays out of the way, and is shown when it does not start.
  "$here/serve.sh" "$SAGE_JAX_SGLANG_MODEL" "$port" --skip-tokenizer-init >"$work/server.log" 2>&1 &
  server=$!
  for _ in $(seq 600); do
    kill -0 "$server" 2>/dev/null || { tail -n 40 "$work/server.log"; echo "SGLang ended"; exit 1; }
    "$python" -c "import httpx, sys; sys.exit(httpx.get('$SAGE_JAX_SGLANG_URL/health', trust_env=False).status_code != 200)" \
      2>/dev/null && break
    sleep 1
  done
fi
JAX_PLATFORMS=cpu "$python" -m pytest tests/rollout/conformance_test.py -k sglang "$@"
