#!/usr/bin/env bash
# The move into the new house: run it in a clean worktree, then mend what the tests say. `bash scripts/rebuild/run.sh`
set -euo pipefail
cd "$(dirname "$0")/../.."
here=scripts/rebuild
python $here/split_plan.py . $here/plan.txt >/tmp/attnscope-plan.txt
python $here/move.py . /tmp/attnscope-plan.txt
ruff check --fix -q src tests benchmarks || true
ruff check --fix --unsafe-fixes -q --select TC004,F811,F401,I001 src tests benchmarks || true
python $here/by_hand.py
ruff check --fix -q src tests benchmarks || true
ruff format -q .
