"""What `attnscope.edit` costs: to enter and leave it on a model seen before, and a pass inside, over a plain pass.

    python benchmarks/edit.py                        # the shape of SmolLM2-135M, random weights
    python benchmarks/edit.py MODEL --tokens 512

Plain passes, and passes inside with a function that returns its input, take turns in one process. A ratio is the median
over pairs of neighbouring passes, of processor time; to enter and leave takes the least of many times, because other
programs only add to it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attnscope
from attnscope.capture.load import load_model

SMOLLM2: Any = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="Model folder; by default random weights of SmolLM2-135M's shape")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=15, help="Pairs of a plain pass and one inside")
    parser.add_argument("--threads", type=int, default=1)
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    if settings.model:
        model = load_model(settings.model, device="cpu").model.eval()
    else:
        model = LlamaForCausalLM(LlamaConfig(**SMOLLM2)).eval()
    ids = torch.randint(5, model.config.vocab_size, (1, settings.tokens))
    changes = {
        "residual stream of block 1": ({"1.resid_mid": _same}, "output"),
        "neurons of block 1": ({"1.neurons": _same}, "output"),
        "head 1.0, z": ({(1, 0): _same}, "z"),
        "head 1.0, output": ({(1, 0): _same}, "output"),
        "head 1.0, weights": ({(1, 0): _same}, "weights"),
    }

    def run() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    print("change                        enter and leave   pass inside over a plain pass")
    for name, (functions, on) in changes.items():

        def inside(functions: Any = functions, on: Any = on) -> float:
            with attnscope.edit(model, functions, on=on):
                return _seconds(run)

        def empty(functions: Any = functions, on: Any = on) -> None:
            with attnscope.edit(model, functions, on=on):
                pass

        empty()
        around = min(_seconds(empty) for _ in range(100))
        run()
        pairs = [(_seconds(run), inside(), _seconds(run)) for _ in range(settings.pairs)]
        ratio = np.median([2 * within / (before + after) for before, within, after in pairs])
        print(f"{name:28}  {1e3 * around:12.2f} ms   {ratio:.3f}")


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


if __name__ == "__main__":
    main()
