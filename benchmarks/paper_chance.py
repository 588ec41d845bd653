"""How often each published number is met by models of the published shapes with random weights.

    python benchmarks/paper_chance.py --models 12

Weights are drawn as an untrained model's are. What `explain --analyses yamamoto2023` says beside a row, "by chance", is
what this prints.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForMaskedLM

from attnscope_yamamoto2023.models import GPT2, ROBERTA, SHAPES
from attnscope_yamamoto2023.rows import ROWS, paper_table

LENGTH = {ROBERTA: 512, GPT2: 512}


def random_model(name: str, seed: int) -> RobertaForMaskedLM | GPT2LMHeadModel:
    """A model of that shape as it is before training."""
    torch.manual_seed(seed)
    sizes = SHAPES[name].sizes
    if name == ROBERTA:
        return RobertaForMaskedLM(RobertaConfig(**sizes, type_vocab_size=1, layer_norm_eps=1e-5)).eval()
    return GPT2LMHeadModel(GPT2Config(**sizes)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=12, help="Random models of each shape")
    parser.add_argument("--texts", type=int, default=4, help="Random texts that each model reads")
    options = parser.parse_args()
    met: Counter[int] = Counter()
    tried: Counter[int] = Counter()
    undefined: dict[int, Counter[str]] = defaultdict(Counter)
    for name in (ROBERTA, GPT2):
        own = {row.number for row in ROWS if row.model == name}
        for seed in track(range(options.models), description=name):
            model = random_model(name, seed)
            ids = np.random.default_rng(seed).integers(10, 50000, (options.texts, LENGTH[name])).tolist()
            found = paper_table(model, ids, seed=seed, published_as=name)
            for row in own:
                verdict = str(found.verdict.sel(row=row).item())
                met[row] += verdict == "agrees"
                tried[row] += verdict in {"agrees", "differs"}
                if verdict == "not run":
                    undefined[row][str(found.note.sel(row=row).item())] += 1
    table = Table("row", "quantity", "met by chance", title=f"{options.texts} random texts each")
    for row in ROWS:
        reasons = undefined[row.number]
        count = tried[row.number] + reasons.total()
        if row.tolerance and not row.impossible and count:
            why = "".join(f"; in {number}: {reason}" for reason, number in reasons.items())
            table.add_row(str(row.number), row.quantity, f"{met[row.number]} of {count}{why}")
    Console().print(table)


if __name__ == "__main__":
    main()
