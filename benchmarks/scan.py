"""What scanning costs beside the model's own forward pass, and beside writing the weights out.

    python benchmarks/scan.py model --corpus ../shared/data/wikitext-2/valid.txt
    python benchmarks/scan.py layer --lengths 512 2048 8192

`model`: a shape with random weights (roberta-base with its head of words, SmolLM2-135M), windows of 32, 128 and 512
tokens, 2,048 tokens a batch: the plain forward pass (sdpa), that of its body alone, the scan with its default
statistics, and eager attention with the same statistics computed from its weights.
`layer`: one attention layer of 12 heads x 64: PyTorch's fused attention, and the same with every statistic.

Times are taken in turns within one run; the ratio is the median over the turns. Peak memory is taken in a
process of its own for each way, above what the process held before its first pass. The compiled pass, with
LLVM below it, is loaded once a process, before the first batch: what that takes is told apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

from attnscope.bundled import MODEL
from attnscope.capture.forward import forward
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.engines import measure
from attnscope.measure.passes import StatisticsObserver, WindowBatch, stacked
from attnscope.measure.quantities import DEFAULT
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.read.texts import Corpus
from attnscope.read.windows import Windows, collate

BAND, TOKENS = 10, 2048  # largest offset; tokens in a batch


def roberta_shape(attention: str):
    from transformers import RobertaConfig, RobertaForMaskedLM

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, attn_implementation=attention
    )
    return RobertaForMaskedLM(config).eval()


def smollm2_shape(attention: str):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


SHAPES = {"roberta-base": roberta_shape, "SmolLM2-135M": smollm2_shape}


def batches(corpus: Path, length: int, number: int):
    """So many batches of windows of one length."""
    from transformers import AutoTokenizer

    tokenizer, batch_size = AutoTokenizer.from_pretrained(MODEL), TOKENS // length
    cut = list(Windows(Corpus.from_sources([corpus]), tokenizer, length=length, limit=number * batch_size))
    return [
        collate(cut[start : start + batch_size], tokenizer.pad_token_id) for start in range(0, len(cut), batch_size)
    ]


def plain(model, batch) -> None:
    model(input_ids=batch.input_ids)


def body(model, batch) -> None:
    model.base_model(input_ids=batch.input_ids)


def scanned(model, batch) -> None:
    observer = StatisticsObserver(DEFAULT, BAND, WindowBatch(batch, batch), batch.input_ids.shape[1] - 1)
    with watching(model, observer):
        forward(model, {"input_ids": batch.input_ids}, str, with_head=False)
    stacked(observer.layers())


def eager(model, batch) -> None:
    """All weights of all layers, then the same statistics read off them."""
    attentions = model(input_ids=batch.input_ids, output_attentions=True).attentions
    columns = indicator_columns(batch.valid, batch.special)
    for weights in attentions:
        reduce_call(rows_of(weights, columns), DEFAULT, batch.valid, batch.valid)


def rows_of(weights: torch.Tensor, columns: torch.Tensor) -> RowMeasures:
    n = weights.shape[-1]
    offset = (torch.arange(n) - torch.arange(n)[:, None]).float()
    far = far_starts(BAND, n - 1)
    mean = (weights * offset).sum(-1)
    band = torch.zeros(*weights.shape[:-1], 2 * BAND + 1)
    for t in range(-BAND, BAND + 1):
        rows = slice(max(0, -t), min(n, n - t))
        band[..., rows, t + BAND] = weights.diagonal(t, dim1=-2, dim2=-1)
    bins = [weights.new_zeros(weights.shape[:-1]) for _ in range(2 * len(far))]
    for number, (start, end) in enumerate(zip(far, (*far[1:], n), strict=True)):
        for side, distance in ((len(far) - 1 - number, -offset), (len(far) + number, offset)):
            bins[side] = (weights * ((distance >= start) & (distance < end))).sum(-1)
    return RowMeasures(
        log_sum_exp=torch.zeros_like(mean),
        mass=weights.sum(-1),
        entropy=-torch.xlogy(weights, weights).sum(-1),
        mean_offset=mean,
        offset_variance=(weights * offset**2).sum(-1) - mean**2,
        largest=weights.amax(-1),
        collision=weights.square().sum(-1),
        band=band,
        bins=torch.stack(bins, -1),
        columns=weights @ columns[:, None],
    )


WAYS = {"plain": ("sdpa", plain), "body": ("sdpa", body), "scan": ("sdpa", scanned), "eager": ("eager", eager)}


def peak_of(shape: str, way: str, corpus: Path, length: int) -> None:
    """Print the memory that loading the compiled pass takes, and what one way takes above the loaded model, in MiB."""
    attention, run = WAYS[way]
    model = SHAPES[shape](attention)
    batch = batches(corpus, length, 1)[0]
    if way == "scan":
        verify(model, {"input_ids": batch.input_ids[:1]})
    with Peak() as loading:
        if way == "scan":
            measure(AttentionCall(*[torch.zeros(1, 1, 8, 8)] * 3, scale=1.0), Need.everything(BAND))
    with Peak() as peak:
        run(model, batch)
        run(model, batch)
    print(loading.mebibytes, peak.mebibytes)


class Peak:
    """Highest resident memory within the block, above what was resident before it (Linux)."""

    def __enter__(self) -> Self:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
        self.before = self.read("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.mebibytes = (self.read("VmHWM") - self.before) / 1024

    @staticmethod
    def read(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(name)))


def compare_model(shape: str, corpus: Path, lengths: list[int], number: int) -> None:
    models = {attention: SHAPES[shape](attention) for attention in ("sdpa", "eager")}
    print(f"{shape}'s shape, {number} batches of {TOKENS} tokens, {torch.get_num_threads()} threads")
    titles = f"{'s/batch':>10}{'x plain':>10}{'x body':>10}{'peak MiB':>10}{'above plain':>13}{'once, to load':>15}"
    print(f"{'n':>6} {'':8}{titles}")
    for length in lengths:
        work = batches(corpus, length, number)
        verify(models["sdpa"], {"input_ids": work[0].input_ids[:1]})
        for attention, run in WAYS.values():  # warm up
            run(models[attention], work[0])
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for batch in work:
            for way, (attention, run) in WAYS.items():
                started = time.perf_counter()
                run(models[attention], batch)
                times[way].append(time.perf_counter() - started)
        memory = {way: _model_memory(shape, way, corpus, length) for way in WAYS}
        for way in WAYS:
            to_plain, to_body = (np.median(np.array(times[way]) / np.array(times[one])) for one in ("plain", "body"))
            loading, peak = memory[way]
            above = peak - memory["plain"][1]
            print(
                f"{length:6} {way:8}{np.median(times[way]):10.3f}{to_plain:10.3f}{to_body:10.3f}"
                f"{peak:10.0f}{above:13.0f}{loading:15.0f}"
            )


def _model_memory(shape: str, way: str, corpus: Path, length: int) -> list[float]:
    command = [sys.executable, __file__, "peak", "--shape", shape, "--way", way]
    command += ["--corpus", str(corpus), "--lengths", str(length)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in ended.stdout.split()[-2:]]


def compare_layer(lengths: list[int], repeats: int, *, causal: bool) -> None:
    print(f"one layer of 12 heads x 64, float32, {torch.get_num_threads()} threads, causal={causal}")
    print(f"{'n':>8}{'fused s':>10}{'with statistics s':>19}{'ratio':>8}{'above inputs MiB':>18}")
    for n in lengths:
        query, key, value = torch.randn(3, 1, 12, n, 64).unbind(0)
        fused_times, our_times = [], []
        for turn in range(repeats + 1):
            call = AttentionCall(query, key, value, scale=0.125, causal=causal)
            started = time.perf_counter()
            torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
            middle = time.perf_counter()
            columns = torch.zeros(1, n, 2)
            measure(call, Need.everything(BAND, columns, far_starts(BAND, n)))
            ended = time.perf_counter()
            if turn:  # the first turn warms up
                fused_times.append(middle - started)
                our_times.append(ended - middle)
        reached = _layer_memory(n)
        ratio = np.median(np.array(our_times) / np.array(fused_times))
        print(f"{n:8}{np.median(fused_times):10.3f}{np.median(our_times):19.3f}{ratio:8.2f}{reached:18.0f}")


def _layer_memory(n: int) -> float:
    found = subprocess.run(
        [sys.executable, __file__, "layer-peak", "--lengths", str(n)], check=True, capture_output=True, text=True
    )
    return float(found.stdout.split()[-1])


def layer_peak(n: int) -> None:
    small = torch.randn(3, 1, 12, 8, 64).unbind(0)
    measure(AttentionCall(*small, scale=0.125), Need.everything(BAND, torch.zeros(1, 8, 2)))
    query, key, value = torch.randn(3, 1, 12, n, 64).unbind(0)
    with Peak() as peak:
        measure(
            AttentionCall(query, key, value, scale=0.125),
            Need.everything(BAND, torch.zeros(1, n, 2), far_starts(BAND, n)),
        )
    print(peak.mebibytes)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["model", "layer", "peak", "layer-peak"])
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="roberta-base")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--way", choices=list(WAYS))
    options = parser.parse_args()
    if options.what == "layer":
        compare_layer(options.lengths or [512, 2048, 8192], options.repeats, causal=options.causal)
    elif options.what == "layer-peak":
        layer_peak(options.lengths[0])
    elif options.corpus is None:
        parser.error("--corpus names a text file")
    elif options.what == "peak":
        peak_of(options.shape, options.way, options.corpus, options.lengths[0])
    else:
        compare_model(options.shape, options.corpus, options.lengths or [32, 128, 512], options.batches)


if __name__ == "__main__":
    main()
