#!/usr/bin/env bash
# The newest versions that there are of everything, installed, and the quick tests run with them.
# usage: scripts/newest.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${1:-python3}" -m venv "$work/venv"
python3 -m venv "$work/uv"
"$work/uv/bin/pip" install -q uv
install() { "$work/uv/bin/uv" pip install -q --python "$work/venv/bin/python" "$@"; }
# a build of PyTorch for processors, where its index can be reached; else PyPI's
install --torch-backend cpu torch 2>"$work/log" || install torch
install -e '.[dev]' -r packages/editable.txt

unset PYTHONPATH
for package in python torch transformers; do
  "$work/venv/bin/python" -c "import platform, importlib.metadata as m; print('$package', platform.python_version() if '$package' == 'python' else m.version('$package'))"
done
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider -m quick
echo "works with the newest versions"
