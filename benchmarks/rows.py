"""Statistics from some rows: how often their 95% intervals hold, and what they cost beside all rows.

    python benchmarks/rows.py coverage MODEL TEXT... --window 2048 --windows 8 --rows 64 128 256
    python benchmarks/rows.py coverage random TEXT... --window 2048
    python benchmarks/rows.py cost --lengths 8192 32768 --rows 128

`coverage`: every row of some windows is measured once; then rows are drawn many times, as `scan` draws them. Told is in
which share of the draws the interval holds the mean over all rows, by statistic: of single windows, and of the mean
over all windows; over all heads (of bins, those with some weight), and of the worst twentieth of the heads. `random` is
a Llama of random weights.
`cost`: one attention layer of a Llama's shape, causal: fused attention; with all statistics of all rows; of some rows.
Times are taken in turns; the share is (some rows - fused) / (all rows - fused), of the medians.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import xarray as xr

from attnscope.attention import AttentionCall, Need, RowMeasures, far_starts, fused_attention, measure
from attnscope.capture import LoadedModel, Site, load_model, watching
from attnscope.corpus import Corpus, cut_windows
from attnscope.statistics import DEFAULT, STATISTICS, intervals
from attnscope.statistics._pass import Marks, measure_call
from attnscope.statistics._row_samples import OF_ALL_ROWS, RowSample, estimates

BAND = 10
ESTIMATED = [name for name in DEFAULT if not set(STATISTICS[name].needs) <= OF_ALL_ROWS]


def random_llama() -> LoadedModel:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from attnscope.bundled import MODEL

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        initializer_range=0.1,
    )
    return load_model(LlamaForCausalLM(config).eval(), tokenizer=AutoTokenizer.from_pretrained(MODEL))


@dataclass
class EveryRow:
    """Keeps the measures of all rows of all heads, call after call, by window."""

    reach: int
    windows: list[list[RowMeasures]]

    def __call__(self, _: Site, call: AttentionCall) -> torch.Tensor:
        need = Need.everything(BAND, None, far_starts(BAND, self.reach))
        output, rows = measure(call, need)
        self.windows[-1].append(rows)
        return output


@torch.no_grad()
def coverage(model: str, texts: list[Path], window: int, windows: int, counts: list[int], draws: int) -> None:
    loaded = random_llama() if model == "random" else load_model(model)
    cut = list(cut_windows(Corpus.from_sources(texts), loaded.tokenizer, length=window, limit=windows))
    cut = [one for one in cut if len(one) == window]
    seen = EveryRow(window - 1, [])
    for one in cut:
        seen.windows.append([])
        with watching(loaded.model, seen, weights_suffice=True):
            loaded.model(input_ids=torch.tensor([one.ids]))
    layers = [joined([each[layer] for each in seen.windows]) for layer in range(len(seen.windows[0]))]
    print(f"{model}: {len(cut)} windows of {window} tokens, {draws} draws; share of the intervals that hold")
    print(f"{'rows':>6} {'statistic':14} {'window':>8} {'worst 5%':>9} {'all':>8} {'worst 5%':>9}")
    for count in counts:
        told: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in ESTIMATED}
        for rows in layers:
            for name, holds in holding(rows, len(cut), window, count, draws).items():
                told[name].append(holds)
        for name, parts in told.items():
            shares = [np.concatenate(part) for part in zip(*parts, strict=True)]
            print(f"{count:>6} {name:14}", *(f"{share.mean():8.3f} {worst(share):9.3f}" for share in shares))


def worst(share: np.ndarray) -> float:
    return float(np.sort(share)[: max(1, len(share) // 20)].mean())


def joined(parts: list[RowMeasures]) -> RowMeasures:
    """Windows as a batch."""
    names = [field.name for field in fields(RowMeasures) if getattr(parts[0], field.name) is not None]
    return RowMeasures(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def holding(
    rows: RowMeasures, windows: int, length: int, count: int, draws: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Share of the draws whose interval holds, of each window and head, and of each head's mean over windows."""
    lengths = torch.full((windows,), length)
    exact = estimates(
        rows, ESTIMATED, RowSample(length + length % 2).draw([length] * windows), lengths, lengths
    )
    holds: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in ESTIMATED}
    for seed in range(draws):
        draw = RowSample(count, seed).draw([length] * windows)
        found = estimates(taken(rows, draw.queries), ESTIMATED, draw, lengths, lengths)
        for name in ESTIMATED:
            dims = ("text", "head", *STATISTICS[name].along)
            part = xr.Dataset(
                {f"{name}{end}": (dims, found[f"{name}{end}"].numpy()) for end in ("", "_error", "_freedom")}
            )
            truth = xr.DataArray(exact[name].numpy(), dims=dims)
            of_one = [intervals(part.isel(text=[text]))[name] for text in range(windows)]
            single = abs(part[name] - truth) <= xr.concat(of_one, "text") + 1e-9
            whole = abs((part[name] - truth).mean("text")) <= intervals(part)[name] + 1e-9
            holds[name].append((single.values, whole.values))
    shares: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, parts in holds.items():
        truth = exact[name].numpy()
        there = truth > 1e-4 * length if name == "bin_sum" else np.ones_like(truth, dtype=bool)
        single, whole = (np.mean(part, 0) for part in zip(*parts, strict=True))
        shares[name] = single[there], whole[there.all(0)]
    return shares


def taken(rows: RowMeasures, queries: torch.Tensor) -> RowMeasures:
    def some(values: torch.Tensor) -> torch.Tensor:
        index = queries[:, None, :].expand(-1, values.shape[1], -1)[(...,) + (None,) * (values.ndim - 3)]
        return values.gather(2, index.expand(*index.shape[:3], *values.shape[3:]))

    names = [field.name for field in fields(RowMeasures) if getattr(rows, field.name) is not None]
    return RowMeasures(**{name: some(getattr(rows, name)) for name in names})


@torch.no_grad()
def cost(lengths: list[int], count: int, turns: int, heads: int, width: int) -> None:
    print(f"{heads} heads of {width}, causal, {torch.get_num_threads()} threads: seconds")
    print(f"{'tokens':>7} {'fused':>8} {'all rows':>9} {f'{count} rows':>9} {'share':>7}")
    for length in lengths:
        x = torch.randn(3, 1, heads, length, width, generator=torch.Generator().manual_seed(0))
        call = AttentionCall(x[0], x[1], x[2], width**-0.5, causal=True)
        marks = torch.ones(1, length, dtype=torch.bool)
        marked = Marks(marks, marks, torch.zeros_like(marks))
        ways = {
            "fused": lambda call=call: fused_attention(call),
            "all": lambda call=call, marked=marked: measure_call(
                call, DEFAULT, BAND, call.query.shape[2] - 1, marked
            ),
            "some": lambda call=call, marked=marked: measure_call(
                call, DEFAULT, BAND, call.query.shape[2] - 1, marked, sample=RowSample(count)
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(turns + 1):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                if turn:  # the first one loads
                    times[name].append(time.perf_counter() - began)
        fused, every, some = (float(np.median(times[name])) for name in ways)
        print(
            f"{length:>7} {fused:8.3f} {every:9.3f} {some:9.3f} {(some - fused) / (every - fused):7.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ways = parser.add_subparsers(dest="way", required=True)
    of_coverage = ways.add_parser("coverage")
    of_coverage.add_argument("model")
    of_coverage.add_argument("texts", nargs="+", type=Path)
    of_coverage.add_argument("--window", type=int, default=2048)
    of_coverage.add_argument("--windows", type=int, default=8)
    of_coverage.add_argument("--rows", type=int, nargs="+", default=[64, 128, 256])
    of_coverage.add_argument("--draws", type=int, default=100)
    of_cost = ways.add_parser("cost")
    of_cost.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32768])
    of_cost.add_argument("--rows", type=int, default=128)
    of_cost.add_argument("--turns", type=int, default=3)
    of_cost.add_argument("--heads", type=int, default=8)
    of_cost.add_argument("--width", type=int, default=64)
    given = parser.parse_args()
    if given.way == "coverage":
        coverage(given.model, given.texts, given.window, given.windows, given.rows, given.draws)
    else:
        cost(given.lengths, given.rows, given.turns, given.heads, given.width)


if __name__ == "__main__":
    main()
