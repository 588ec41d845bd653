"""Statistics from some rows: how often their 95% intervals hold, and what they cost beside all rows.

    python benchmarks/rows.py coverage MODEL TEXT... --window 2048 --windows 8 --rows 64 128 256
    python benchmarks/rows.py coverage random TEXT... --window 2048
    python benchmarks/rows.py cost --lengths 8192 32768 --rows 128

`coverage`: every row of some windows is measured once; then rows are drawn many times, as `scan` draws them. Told is,
by statistic, in which share of the draws the interval holds the mean over all rows, where one is told; the same of the
worst twentieth of the heads; and how often one is told: of single windows, and of the mean over all windows. Then the
mean width of the latter, median over heads. Of bins: those that have to be estimated and hold more than 0.0001 of the
weight. `random` is a Llama of random weights.
`cost`: one attention layer of a Llama's shape, causal: fused attention; with all statistics of all rows; of some rows.
Times are taken in turns; the share is (some rows - fused) / (all rows - fused), of the medians.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import xarray as xr

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.engines import measure
from attnscope.kernels.fused import fused_attention
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.quantities import DEFAULT, OF_ESTIMATES, STATISTICS
from attnscope.measure.row_samples import OF_ALL_ROWS, ExactValues, RowSample, estimates, sizes_of
from attnscope.measure.rows import reduce_call
from attnscope.measure.sampling_error import intervals
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows

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
class Rows:
    """All rows of one layer, of several windows, and the calls from which they came."""

    calls: list[AttentionCall]
    every: RowMeasures


@dataclass
class EveryRow:
    """Keeps the measures of all rows of all heads, call after call, by window."""

    reach: int
    windows: list[list[Rows]]

    def __call__(self, _: Site, call: AttentionCall) -> torch.Tensor:
        output, rows = measure(call, Need.everything(BAND, None, far_starts(BAND, self.reach)))
        self.windows[-1].append(Rows([call], rows))
        return output


@torch.no_grad()
def coverage(model: str, texts: list[Path], window: int, windows: int, counts: list[int], draws: int) -> None:
    loaded = random_llama() if model == "random" else load_model(model)
    cut = list(Windows(Corpus.from_sources(texts), loaded.tokenizer, length=window, limit=windows))
    cut = [one for one in cut if len(one) == window]
    seen = EveryRow(window - 1, [])
    for one in cut:
        seen.windows.append([])
        with watching(loaded.model, seen, weights_suffice=True):
            loaded.model(input_ids=torch.tensor([one.ids]))
    layers = [joined([each[layer] for each in seen.windows]) for layer in range(len(seen.windows[0]))]
    print(f"{model}: {len(cut)} windows of {window} tokens, {draws} draws; share of the told intervals that hold")
    print(f"{'':21} {'one window':^26} {'all windows':^26}")
    of_one = f"{'all':>8} {'worst 5%':>9} {'told':>7}"
    print(f"{'rows':>6} {'statistic':14} {of_one} {of_one} {'width':>10}")
    for count in counts:
        found: dict[str, list[Held]] = {name: [] for name in ESTIMATED}
        for rows in layers:
            for name, held in holding(rows, window, count, draws).items():
                found[name].append(held)
        for name, parts in found.items():
            print(f"{count:>6} {name:14}", *(said(shares) for shares in zip(*parts, strict=True)))


def said(shares: Sequence[np.ndarray]) -> str:
    """Of one window or of all: in which share the interval holds, where one is told."""
    if shares[0].ndim == 1:
        return f"{np.median(np.concatenate(shares)):10.4g}"
    told, holds = np.concatenate(shares, axis=1)
    worst = np.sort(holds[told > 0] / told[told > 0])
    few = worst[: max(1, len(worst) // 20)].mean()
    return f"{holds.sum() / told.sum():8.3f} {few:9.3f} {told.mean():7.1%}"


def joined(parts: list[Rows]) -> Rows:
    """Windows as a batch."""
    every = [part.every for part in parts]
    names = [field.name for field in fields(RowMeasures) if getattr(every[0], field.name) is not None]
    measures = {name: torch.cat([getattr(each, name) for each in every]) for name in names}
    return Rows([call for part in parts for call in part.calls], RowMeasures(**measures))


class Held(NamedTuple):
    """Of one statistic: shares of the draws in which an interval is told, and in which it is told and holds."""

    single: np.ndarray  # (2, window and head)
    whole: np.ndarray  # (2, head)
    width: np.ndarray  # (head,): mean width of the interval of all windows, where one is told


def holding(rows: Rows, length: int, count: int, draws: int) -> dict[str, Held]:
    """How often intervals hold, of each window and head, and of each head's mean over windows."""
    windows = len(rows.calls)
    valid = (torch.ones(windows, length, dtype=torch.bool),) * 2
    known = ExactValues.of(rows.every, valid)
    exact = reduce_call(rows.every, ESTIMATED, *valid)
    counted = rows.every.mass > 0
    near = far_starts(BAND, length - 1)[0] - 1
    sizes = torch.cat(
        [
            sizes_of(call, one_text(rows.every, text), counted[text : text + 1], near)
            for text, call in enumerate(rows.calls)
        ]
    )
    told: dict[str, list[list[np.ndarray]]] = {name: [] for name in ESTIMATED}
    for seed in range(draws):
        draw = RowSample(count, seed).draw([length] * windows, sizes)
        queries = draw.of_heads(rows.every.mass.shape[1]).queries
        found = estimates(taken(rows.every, queries), ESTIMATED, draw, known)
        for name in ESTIMATED:
            dims = ("window", "head", *STATISTICS[name].along)
            part = xr.Dataset({f"{name}{end}": (dims, found[f"{name}{end}"].numpy()) for end in ("", *OF_ESTIMATES)})
            truth = exact[name].numpy()
            single = intervals(part.rename(window="draw").expand_dims("window"))[name].values
            whole = intervals(part)[name].values
            told[name].append([*holds(single, truth), *holds(whole, truth.mean(0)), whole[..., 1] - whole[..., 0]])
    result: dict[str, Held] = {}
    for name, parts in told.items():
        truth = exact[name].numpy()
        there = truth > 1e-4 * length if name == "bin_sum" else np.ones_like(truth, dtype=bool)
        if name == "bin_sum":  # near ones are known
            there = there & (found[f"{name}_error"].numpy() > 0)
        columns = [np.stack(column) for column in zip(*parts, strict=True)]
        of_all = there.all(0)
        with np.errstate(invalid="ignore"):
            width = np.nansum(columns[4], 0) / np.isfinite(columns[4]).sum(0)
        result[name] = Held(
            np.stack([columns[0].mean(0)[there], columns[1].mean(0)[there]]),
            np.stack([columns[2].mean(0)[of_all], columns[3].mean(0)[of_all]]),
            width[of_all & np.isfinite(width)],
        )
    return result


def holds(bounds: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where an interval is told, and where it is told and holds."""
    told = np.isfinite(bounds[..., 0])
    inside = (bounds[..., 0] - 1e-9 <= truth) & (truth <= bounds[..., 1] + 1e-9)
    return told, told & inside


def one_text(rows: RowMeasures, text: int) -> RowMeasures:
    return RowMeasures(
        log_sum_exp=rows.log_sum_exp[text : text + 1],
        mass=rows.mass[text : text + 1],
        band=None if rows.band is None else rows.band[text : text + 1],
    )


def taken(rows: RowMeasures, queries: torch.Tensor) -> RowMeasures:
    def some(values: torch.Tensor) -> torch.Tensor:
        index = queries[(...,) + (None,) * (values.ndim - 3)]
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
            "all": lambda call=call, marked=marked: measure_call(call, DEFAULT, BAND, call.query.shape[2] - 1, marked),
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
        print(f"{length:>7} {fused:8.3f} {every:9.3f} {some:9.3f} {(some - fused) / (every - fused):7.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
