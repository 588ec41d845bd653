"""Seconds for a model's circuits from its weights: GPT-2's size, random weights.

    python benchmarks/circuits.py --threads 2
    python benchmarks/circuits.py --layers 6 --heads 8 --width 512

A line for composition alone (every pair of heads, queries, keys and values, with p-values), and one for everything.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope_circuits
from attnscope_circuits.weights import Weights


def main() -> None:
    """Time one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50257, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    size = parser.parse_args()
    torch.set_num_threads(size.threads)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=size.layers, n_head=size.heads, n_embd=size.width, vocab_size=size.vocabulary)
    model = GPT2LMHeadModel(config).eval()
    weights = Weights(model, None, length=24, band=10, count=5, seed=0)
    start = time.perf_counter()
    pairs = int(weights.composition()["composition"][1].size // 3)
    print(f"composition of {size.layers * size.heads} heads ({pairs:,} cells): {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    attnscope_circuits.circuits(model)
    print(f"everything: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
