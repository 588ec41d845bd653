#!/usr/bin/env bash
# The oldest versions that pyproject.toml allows, installed, and the main verbs run with them. PyTorch stays the pinned one.
# usage: scripts/floors.sh
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
python3 -m venv "$work/uv"
"$work/uv/bin/pip" install -q uv
grep '^torch==' constraints.txt >"$work/torch.txt"
"$work/uv/bin/uv" pip compile -q --no-header --no-annotate --resolution lowest-direct --python "$work/venv" \
  -c "$work/torch.txt" pyproject.toml -o "$work/lowest.txt"
# what builds of PyTorch for CUDA need is not installed with the one for processors
grep -vE '^(nvidia-|triton|cuda)' "$work/lowest.txt" >"$work/floors.txt"
"$work/uv/bin/uv" pip install -q --python "$work/venv" -c "$work/floors.txt" . -r packages/requirements.txt

unset PYTHONPATH
mkdir "$work/run" && cd "$work/run"
for verb in scan "explain --limit 4" "card --limit 4" "walk bundled" circuits "relations --from /[Tt]he/ --to /[a-z]+/ --limit 4"; do
  # shellcheck disable=SC2086  # a verb and its options
  "$work/venv/bin/attnscope" $verb >"$work/log" 2>&1 || { echo "attnscope $verb, oldest versions:"; tail -50 "$work/log"; exit 1; }
done
echo "works with the oldest versions: $(grep -cE '^[a-z]' "$work/floors.txt") packages"
