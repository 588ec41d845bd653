#!/usr/bin/env bash
# Before a release: build wheel and sdist of all packages, check them, and install them in fresh environments as users do.
# usage: [DIST=FOLDER] scripts/wheels.sh [PYTHON...]   by default python3.11 to python3.14, as far as they are installed
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
dist=$(realpath -m "${DIST:-$work/dist}")
trap 'rm -rf "$work"' EXIT
pythons=("$@")
[ $# -gt 0 ] || for version in 3.11 3.12 3.13 3.14; do
  ! "python$version" -c '' 2>/dev/null || pythons+=("python$version")
done

try() { # PYTHON FILE: install FILE, and run it in an empty folder
  rm -rf "$work/venv" "$work/run" && mkdir "$work/run" && "$1" -m venv "$work/venv"
  "$work/venv/bin/pip" install -q -c constraints.txt "$2" "$dist"/attnscope_lineage-*.whl "$dist"/attnscope_live-*.whl "$dist"/attnscope_relations-*.whl "$dist"/attnscope_circuits-*.whl "$dist"/attnscope_cards-*.whl
  (
    cd "$work/run" && PATH=$work/venv/bin:$PATH && unset PYTHONPATH
    attnscope scan --limit 4
    attnscope explain --limit 4
    attnscope walk --help
    attnscope relations --help
    attnscope circuits --help
    attnscope card --help
  ) >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  echo "$("$1" --version): $(basename "$2") works"
}

"${pythons[0]}" -m venv "$work/build" && "$work/build/bin/pip" install -q build twine
for package in . packages/*/; do "$work/build/bin/python" -m build -q --outdir "$dist" "$package"; done
"$work/build/bin/twine" check --strict "$dist"/*
wheel=$(echo "$dist"/attnscope-[0-9]*.whl)
files=$("$work/build/bin/python" -m zipfile -l "$wheel")
for name in attnscope/py.typed attnscope/bundled attnscope.mo dist-info/licenses/LICENSE dist-info/licenses/NOTICE; do
  grep -q "$name" <<<"$files" || { echo "the wheel has no $name"; exit 1; }
done
! grep -E '^(tests|docs|benchmarks|scripts)/' <<<"$files" || { echo "the wheel has files that only the repository needs"; exit 1; }

try "${pythons[0]}" "$(echo "$dist"/attnscope-[0-9]*.tar.gz)"
for python in "${pythons[@]}"; do try "$python" "$wheel"; done
