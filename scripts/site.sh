#!/usr/bin/env bash
# Build the documentation site into build/site, in the environment at hand.
# usage: scripts/site.sh
set -euo pipefail
cd "$(dirname "$0")/.."
pip install -q -c constraints.txt -e '.[dev,docs]' -r packages/editable.txt jupyterlab
sphinx-build -W docs build/site
touch build/site/.nojekyll # folders that begin with _ are pages too
