#!/usr/bin/env bash
# The oldest versions that pyproject.toml allows, installed, and the main verbs run with them. PyTorch stays the pinned one.
# usage: scripts/floors.sh
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
command -v uv >/dev/null || { python3 -m venv "$work/uv" && "$work/uv/bin/pip" install -q uv && PATH=$PATH:$work/uv/bin; }
grep '^torch==' constraints.txt >"$work/torch.txt"
uv pip compile -q --no-header --no-annotate --resolution lowest-direct --python "$work/venv" \
  -c "$work/torch.txt" pyproject.toml -o "$work/lowest.txt"
# what builds of PyTorch for CUDA need is not installed with the one for processors
grep -vE '^(nvidia-|triton|cuda)' "$work/lowest.txt" >"$work/floors.txt"
uv pip install -q --python "$work/venv" -c "$work/floors.txt" . -r packages/requirements.txt

unset PYTHONPATH
mkdir "$work/run" && cd "$work/run"
"$work/venv/bin/python" - >"$work/log" 2>&1 <<'PYTHON' || { echo "with the oldest versions:"; tail -50 "$work/log"; exit 1; }
import shlex
import sys

from attnscope.cli import main

relations = "relations --from /[Tt]he/ --to /[a-z]+/ --limit 4"
# in one process: PyTorch is imported once
for words in ("scan", "explain --limit 4", "card --limit 4", "walk bundled", "circuits", relations):
    print("attnscope", words, flush=True)
    sys.argv = ["attnscope", *shlex.split(words)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
PYTHON
echo "works with the oldest versions: $(grep -cE '^[a-z]' "$work/floors.txt") packages"
