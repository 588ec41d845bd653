"""Numbers of the lesson `positions` that are measured once: figure 1, tables of fewer dimensions, and two trainings.

    python scripts/plain_wikitext.py wikitext-2 runs/plain
    python benchmarks/paper_figures.py ~/attnscope-models --text runs/plain/valid.txt --out figures.json

`profiles` are the vectors of equation 7 of every head and text: the page runs k-means on them. `reduced` has the
weight of positional heads after the position table is replaced by its first principal components. `copying` compares
RoPE with a learned table where a task asks for a relative position alone: every token is to name the token two before
it. Intervals are over trainings, by Student's t.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from paper_claims import DECODERS, MODELS, slow_share, texts
from scipy import stats

import attnscope
from attnscope.capture.load import load_model
from attnscope.explanation.tables import position_table
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope_yamamoto2023.arrays.components import principal_components

NEAR = 10  # largest offset of equation 7
#: Texts and their tokens, of the models whose heads are sorted.
SORTED = {"bundled": (100, 128), "all-MiniLM-L6-v2": (40, 256)}
DIMENSIONS = (0, 1, 2, 4, 6, 8, 12, 16, 24)
#: Heads that attend to one offset, layer, head and offset: their weight there, with fewer dimensions of the table.
REDUCED = {"bundled": (0, 3, -1), "rxnmapper-albert": (0, 3, -1), "all-MiniLM-L6-v2": (0, 2, -1)}
SHIFT, LENGTH, WORDS = 2, 64, 16  # of the task of copying
UPDATES, EVERY, SEEDS, ENOUGH = 400, 20, 11, 0.4


def profiles(folder: str, text: Path, texts: int, length: int) -> dict[str, Any]:
    """The share of each head's weight at the offsets -10..10, text by text, as 16-bit integers of 1/65535."""
    scan = attnscope.scan(folder, text, limit=texts, window=length)
    shares = scan.profile.sel(offset=slice(-NEAR, NEAR)).transpose("window", "layer", "head", "offset").values
    numbers = np.round(np.clip(shares, 0, 1) * 65535).astype("<u2")
    return {
        "shape": list(numbers.shape),
        "length": length,
        "block": base64.b64encode(numbers.tobytes()).decode("ascii"),
    }


def reduced(folder: str, texts: Any, layer: int, head: int, offset: int) -> dict[str, Any]:
    """Weight of a head at an offset, with the position table as its first principal components have it."""
    loaded = load_model(folder)
    rows = torch.from_numpy(position_table(loaded.model).rows).float()
    matrices = [one for one in loaded.model.parameters() if one.ndim == 2 and one.shape[1] == rows.shape[1]]
    table = next(
        one for one in matrices if len(one) >= len(rows) and torch.allclose(one[-len(rows) :].float(), rows, atol=1e-6)
    )
    mean = rows.mean(0)
    left, values, right = torch.linalg.svd(rows - mean, full_matrices=False)
    weights: list[float] = []
    for count in (*DIMENSIONS, len(values)):
        reduced_rows = (left[:, :count] * values[:count]) @ right[:count] + mean
        with torch.no_grad():
            table[-len(rows) :] = reduced_rows.to(table.dtype)
        of_layer = attnscope.scan(loaded.model, texts, limit=2, window=128, tokenizer=loaded.tokenizer).profile.mean(
            "window"
        )
        shares = of_layer.sel(layer=layer, offset=offset).values
        weights.append(round(float(shares[head]), 4))
    share = principal_components(rows.numpy()).cumulative_share.values
    return {
        "head": f"{layer}.{head}",
        "offset": offset,
        "dimensions": [*DIMENSIONS, len(values)],
        "weight": weights,
        "share": [round(float(share[count - 1]), 4) if count else 0.0 for count in (*DIMENSIONS, len(values))],
    }


def table_of(folder: str) -> dict[str, Any]:
    """The principal components of a position table that the page adds up: scores, directions and the mean row."""
    rows = position_table(load_model(folder).model).rows
    mean = rows.mean(0)
    left, values, right = np.linalg.svd(rows - mean, full_matrices=False)
    most = DIMENSIONS[-1]
    strongest = [int(one) for one in np.argsort(-rows.var(0))[:: max(1, rows.shape[1] // 8)][:4]]
    return {
        "columns": np.round(rows[:, strongest].T, 5).tolist(),
        "means": np.round(mean[strongest], 5).tolist(),
        "scores": np.round(left[:, :most] * values[:most], 5).tolist(),
        "directions": np.round(right[:most][:, strongest], 5).tolist(),
    }


def copying(positions: str, seed: int) -> tuple[list[float], list[float]]:
    """Loss and weight on the token two before, while a model of one layer and one head learns to name that token."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": WORDS, "width": 32, "heads": 1, "feed_forward": 64, "encoder_layers": 1, "dropout": 0.0}
    config = EncoderConfig(positions=positions, max_position_embeddings=LENGTH, **sizes)
    config._attn_implementation = "eager"  # noqa: SLF001 it returns its weights
    model = EncoderForMaskedLM(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(seed)
    losses, weights = list[float](), list[float]()
    for update in range(UPDATES + 1):
        tokens = torch.randint(3, WORDS, (32, LENGTH), generator=draw)
        labels = tokens.roll(SHIFT, 1)
        labels[:, :SHIFT] = -100
        output = model(tokens, labels=labels)
        if update % EVERY == 0:
            losses.append(float(output.loss))
            with torch.no_grad():
                attended = model(tokens).attentions[0][:, 0]
            weights.append(float(attended.diagonal(-SHIFT, 1, 2).mean()))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    return losses, weights


def copying_curves() -> dict[str, Any]:
    """Both schemes over several trainings."""
    curves: dict[str, Any] = {"seeds": SEEDS, "updates": [*range(0, UPDATES + 1, EVERY)]}
    for positions in ("rope", "learned"):
        runs = np.array([copying(positions, seed) for seed in range(SEEDS)])  # (seed, kind, update)
        wide = stats.t.ppf(0.975, SEEDS - 1) * runs.std(0, ddof=1) / np.sqrt(SEEDS)
        mean = runs.mean(0)
        reached = [next((int(at) * EVERY for at in np.flatnonzero(run[1] >= ENOUGH)), UPDATES + EVERY) for run in runs]
        curves[positions] = {"reached": reached} | {
            name: {
                "mean": np.round(mean[kind], 4).tolist(),
                "ends": np.round(np.stack([mean[kind] - wide[kind], mean[kind] + wide[kind]], 1), 4).tolist(),
            }
            for kind, name in enumerate(("loss", "weight"))
        }
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="Folders that hold folders of models")
    parser.add_argument("--text", type=Path, required=True, help="File of English text")
    parser.add_argument("--rope", type=Path, help="What benchmarks/rope_curves.py wrote")
    parser.add_argument(
        "--objectives", type=Path, nargs=2, help="What benchmarks/objectives.py wrote, with seeds 0 and 1"
    )
    parser.add_argument("--out", type=Path, required=True, help="File for the numbers, as JSON; other parts in it stay")
    parser.add_argument("--only", nargs="+", default=["copying", "objectives", "profiles", "reduced", "rope", "tables"])
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)

    def folder_of(name: str) -> str:
        return next((str(folder / name) for folder in options.models if (folder / name).is_dir()), name)

    written = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}

    def write(**parts: Any) -> None:
        written.update(parts)
        options.out.write_text(json.dumps(written, separators=(",", ":")) + "\n", encoding="utf-8")

    if "rope" in options.only and options.rope:
        write(rope=json.loads(options.rope.read_text(encoding="utf-8")))
    if "objectives" in options.only and options.objectives:
        first, again = (json.loads(path.read_text(encoding="utf-8")) for path in options.objectives)
        write(objectives={**first, "again": again})
    if "copying" in options.only:
        write(copying=copying_curves())
    if "profiles" in options.only:
        write(profiles={name: profiles(folder_of(name), options.text, *sizes) for name, sizes in SORTED.items()})
    if "tables" in options.only:
        encoders = {name: position_table(load_model(folder_of(name)).model).rows for name in MODELS}
        loaded = {name: load_model(folder_of(name), need_tokenizer=False).model for name in DECODERS}
        decoders = {name: position_table(model, "decoder").rows for name, model in loaded.items()}
        write(slow={name: round(slow_share(rows), 4) for name, rows in (encoders | decoders).items()})
    if "reduced" in options.only:
        parts = {name: reduced(folder_of(name), texts(MODELS[name][0]), *place) for name, place in REDUCED.items()}
        write(reduced=parts, table=table_of("bundled"))


if __name__ == "__main__":
    main()
