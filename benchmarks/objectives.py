"""Does the objective of a training decide which waves a table of positions has? Two trainings that differ in it alone.

    python scripts/plain_wikitext.py wikitext-2 runs/plain
    python benchmarks/objectives.py runs/plain/train.txt --out objectives.json

The same small Transformer with a learned table, the same text and the same batches: once it restores masked tokens and
reads both ways, once it predicts the next token and reads backwards alone. The file has the mean amplitude spectrum of
each table, in units of white noise of its shape, and the share of its power in slow waves.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import torch
from paper_claims import significant, slow_share
from torch import nn
from torch.nn import functional
from transformers import AutoTokenizer

from attnscope.bundled import MODELS
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum

LENGTH, WIDTH, LAYERS, HEADS, BATCH = 128, 64, 2, 4, 16
MASK_SHARE = 0.15


class Small(nn.Module):
    """A Transformer with one table of tokens and one of positions."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor, *, causal: bool) -> torch.Tensor:
        states = self.tokens(ids) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH) if causal else None
        return self.layers(states, mask=mask, is_causal=causal) @ self.tokens.weight.T


def trained(
    ids: torch.Tensor, words: int, mask_id: int, updates: int, *, causal: bool, seed: int
) -> tuple[np.ndarray, float]:
    """The position table after training, and the last loss."""
    torch.manual_seed(seed)
    model = Small(words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    draw = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1, (update + 1) / 200, (updates - update) / (updates / 5))
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,), generator=draw)
        batch = torch.stack([ids[start : start + LENGTH + 1] for start in starts])
        hidden = torch.rand(BATCH, LENGTH, generator=draw) < MASK_SHARE
        if causal:
            read, labels = batch[:, :-1], batch[:, 1:]
        else:
            read, labels = batch[:, :-1].masked_fill(hidden, mask_id), batch[:, :-1].masked_fill(~hidden, -100)
        loss = functional.cross_entropy(model(read, causal=causal).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        if update % 250 == 0:
            print("next token" if causal else "masked token", update, np.mean(losses[-100:]), flush=True)
    return model.positions.weight.detach().double().numpy(), float(np.mean(losses[-100:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(MODELS["bundled"])
    ids = torch.tensor(
        tokenizer(options.text.read_text(encoding="utf-8")[:4_000_000], add_special_tokens=False).input_ids
    )
    written = {"updates": options.updates, "rows": LENGTH}
    for name, causal in (("masked token", False), ("next token", True)):
        table, loss = trained(
            ids, len(tokenizer), tokenizer.mask_token_id, options.updates, causal=causal, seed=options.seed
        )
        spectrum = amplitude_spectrum(table)
        written[name] = {
            "loss": round(loss, 3),
            "spectrum": significant(spectrum["mean"].values / float(spectrum.null_mean), 3),
            "slow": round(slow_share(table), 4),
        }
        print(name, loss, written[name]["slow"], np.round(written[name]["spectrum"], 1).tolist())
        options.out.write_text(json.dumps(written) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
