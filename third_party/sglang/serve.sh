#!/usr/bin/env bash
# Serves a Hugging Face folder with SGLang on the CPU in float32. Usage: serve.sh MODEL PORT [more server arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
environment=${SAGE_JAX_SGLANG_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sage_jax/sglang}
model=$1 port=$2
shift 2
# Threads that wait for each other must sleep: spinning on shared cores costs a factor of ten and more.
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 PYTHONPATH="$here/stubs"
exec "$environment/bin/python" -m sglang.launch_server \
  --model-path "$model" --host 127.0.0.1 --port "$port" \
  --device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 \
  --max-total-tokens 20000 --max-running-requests 32 --mem-fraction-static 0.3 --skip-server-warmup "$@"
