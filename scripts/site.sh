#!/usr/bin/env bash
# Build the documentation site into build/site, in the environment at hand.
# usage: scripts/site.sh
set -euo pipefail
cd "$(dirname "$0")/.."
pip install -q -c constraints.txt -e '.[dev,docs]' -e packages/attnscope-yamamoto2023 -e packages/attnscope-zoo -e packages/attnscope-lineage -e packages/attnscope-live -e packages/attnscope-cards -e packages/attnscope-circuits -e packages/attnscope-monitor -e packages/attnscope-vllm -e 'packages/attnscope-relations[proteins,reactions]' jupyterlab
sphinx-build -W docs build/site
touch build/site/.nojekyll # folders that begin with _ are pages too
