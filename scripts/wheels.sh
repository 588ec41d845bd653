#!/usr/bin/env bash
# Before a release: build wheel and sdist, and install each in fresh environments as users do.
# usage: scripts/wheels.sh [PYTHON...]   by default python3.11 to python3.14, as far as they are installed
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pythons=("$@")
[ $# -gt 0 ] || for version in 3.11 3.12 3.13 3.14; do
  ! "python$version" -c '' 2>/dev/null || pythons+=("python$version")
done

try() { # PYTHON FILE: install FILE, and run it in an empty folder
  rm -rf "$work/venv" "$work/run" && mkdir "$work/run" && "$1" -m venv "$work/venv"
  "$work/venv/bin/pip" install -q -c constraints.txt "$2" && "$work/venv/bin/pip" install -q -c constraints.txt packages/attnscope-lineage packages/attnscope-live packages/attnscope-relations
  (
    cd "$work/run" && PATH=$work/venv/bin:$PATH && unset PYTHONPATH
    attnscope scan --limit 4
    attnscope explain --limit 4
    attnscope walk --help
    attnscope relations --help
  ) >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  echo "$("$1" --version): $(basename "$2") works"
}

"${pythons[0]}" -m venv "$work/build" && "$work/build/bin/pip" install -q build
"$work/build/bin/python" -m build -q --outdir "$work/dist"
wheel=$(echo "$work"/dist/*.whl)
files=$("$work/build/bin/python" -m zipfile -l "$wheel")
for name in attnscope/py.typed attnscope/bundled dist-info/licenses/LICENSE; do
  grep -q "$name" <<<"$files" || { echo "the wheel has no $name"; exit 1; }
done
! grep -E '^(tests|docs|benchmarks|scripts)/' <<<"$files" || { echo "the wheel has files that only the repository needs"; exit 1; }

try "${pythons[0]}" "$(echo "$work"/dist/*.tar.gz)"
for python in "${pythons[@]}"; do try "$python" "$wheel"; done
