"""What measured attention costs on a GPU, beside PyTorch's own attention and a model's plain forward pass.

    python benchmarks/gpu.py                 # all of it, wherever there is a GPU
    python benchmarks/gpu.py layer --widths 64 --lengths 512 4096 --causal
    python benchmarks/gpu.py model
    python benchmarks/gpu.py tests           # whether all numbers are right there, and no times
    python benchmarks/gpu.py --interpret     # no GPU: that alone, in Triton's interpreter and on one made believe

First the tests that are marked `device` run on the GPU: the kernel's cases (tests/kernels/test_triton.py) and every
verb against eager attention or the CPU (tests/test_devices.py). How many passed and failed is printed; where one fails,
nothing is timed. `layer`: one layer of 65,536 tokens, by PyTorch's flash, cuDNN and memory-efficient attention, by
compiled FlexAttention (at the lengths of --flex alone: to compile it takes long), and by `measure` with row statistics
and band, without the largest key, with two columns besides, and with the bins that scan asks for by default; behind
each ratio, in brackets, what its count of instructions predicts (tests/kernels/compiled_triton.py). `model`:
scan's forward pass beside the plain one, of BERT-base's shape and of a Llama of 1B parameters, with random weights and
without a language-model head. Everything is timed in turns within one run; a ratio is the median over the turns.
Printed are markdown tables with the device and the versions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnscope.capture.forward import forward
from attnscope.capture.watching import watching
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import choose_engine, measure
from attnscope.measure.passes import StatisticsObserver, WindowBatch, stacked
from attnscope.measure.quantities import DEFAULT
from attnscope.read.windows import Window

if TYPE_CHECKING:
    from collections.abc import Callable

BAND = 10
TOKENS = 65_536
HIDDEN = 1024  # heads times width of a layer
TURNS = 10
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# Times of flash attention by width: a number, and one for each instruction of a tile. Least squares over the four ways
# without bins that an H200 timed at 4,096 tokens (docs/scale/gpu.md), compiled for sm_90.
PREDICTION = {64: (0.273, 0.00170), 128: (0.488, 0.00099)}
CROSSING = (
    0.28  # of the instructions beyond the shortest path, those that run: at 4,096 tokens 1 tile in 5 crosses bins
)
GOALS = {"row statistics and band": 1.25, "and two columns": 1.8}
ROOT = Path(__file__).parents[1]


def cases(*, interpreted: bool) -> int:
    """Run the tests of devices in processes of their own, which count those that passed; the exit code."""
    known = {"TRITON_INTERPRET", "ATTNSCOPE_TEST_DEVICE"}
    environment = {name: value for name, value in os.environ.items() if name not in known}
    environment |= {"TRITON_INTERPRET": "1"} if interpreted else {"ATTNSCOPE_TEST_DEVICE": "cuda"}
    arguments = ["-q", "-p", "no:cacheprovider", "-n", str(min(8, os.cpu_count() or 1)), "-m", "device", "tests"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment, check=False
    ).returncode


def time_in_turns(ways: dict[str, Callable[[], object] | None]) -> dict[str, list[float]]:
    """Milliseconds of each way in each turn, by the device's clock; of those that fail, the reason is printed."""
    times: dict[str, list[float]] = {}
    for name, run in ways.items():  # what is compiled is compiled here
        if run is None:
            continue
        try:
            run()
            run()
        except (RuntimeError, torch.OutOfMemoryError) as failure:
            print(f"{name} does not run here: {str(failure).splitlines()[0]}", file=sys.stderr)
        else:
            times[name] = []
    for _ in range(TURNS):
        for name, taken in times.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            ways[name]()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end))
    return times


def ratio(times: dict[str, list[float]], name: str, beside: str) -> str:
    if name not in times or beside not in times:
        return "–"
    pairs = zip(times[name], times[beside], strict=True)
    return f"{statistics.median(one / other for one, other in pairs):.2f}"


def predictions(width: int) -> dict[str, str]:
    """The ratio of each way that the instructions of the compiled kernel predict; none but on a Hopper."""
    if width not in PREDICTION or torch.cuda.get_device_capability() != (9, 0):
        return {}
    command = [sys.executable, "-m", "tests.kernels.compiled_triton", "90", "--table", str(width)]
    rows = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()[2:]
    fixed, each = PREDICTION[width]
    ratios: dict[str, str] = {}
    for _, name, *_, common, most, _ in ([cell.strip() for cell in row.strip("| ").split("|")] for row in rows):
        instructions = int(common) + CROSSING * (int(most) - int(common))
        ratios[name] = f" ({fixed + each * instructions:.2f})"
    return ratios


def layer_ways(
    length: int, width: int, dtype: torch.dtype, *, causal: bool, flex: bool, device: str
) -> dict[str, Callable[[], object] | None]:
    """What is timed of one layer."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shape = (max(1, TOKENS // length), HIDDEN // width, length, width)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    columns = torch.zeros(shape[0], length, 2, device=device)
    columns[:, 0] = 1.0
    call = AttentionCall(query, key, value, width**-0.5, causal=causal)
    rows = Need.everything(BAND)
    needs = {
        "attention alone": Need(),
        "row statistics and band": rows,
        "without largest key": replace(rows, largest_key=False),
        "and two columns": Need.everything(BAND, columns),
        "and bins (scan)": Need.everything(BAND, columns, far_starts(BAND, length)),
    }
    engine = choose_engine(call, rows)
    print(f"n = {length}, width {width}, {dtype}: measured by '{engine}'", file=sys.stderr)

    def fused(backend: SDPBackend) -> Callable[[], object]:
        def run() -> object:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(query, key, value, is_causal=causal)

        return run

    def flexible() -> Callable[[], object] | None:
        if not flex:
            return None
        compiled = torch.compile(flex_attention)
        mask = None
        if causal:
            mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, length, length, device=device)
        return lambda: compiled(query, key, value, block_mask=mask)

    return {
        "flash": fused(SDPBackend.FLASH_ATTENTION),
        "cuDNN": fused(SDPBackend.CUDNN_ATTENTION),
        "efficient": fused(SDPBackend.EFFICIENT_ATTENTION),
        "FlexAttention": flexible(),
        **{name: lambda need=need: measure(call, need) for name, need in needs.items()},
    }


def compare_layers(lengths: list[int], widths: list[int], types: list[str], flex: list[int], *, causal: bool) -> None:
    goals = ", ".join(f"{name} {goal}" for name, goal in GOALS.items())
    print(f"\nOne layer of {TOKENS} tokens, causal={causal}; times of flash's forward pass (goals: {goals})\n")
    heading: list[str] = []
    for dtype in types:
        for width in widths:
            predicted = {} if causal else predictions(width)
            for length in lengths:
                ways = layer_ways(length, width, TYPES[dtype], causal=causal, flex=length in flex, device="cuda")
                times = time_in_turns(ways)
                if not heading:
                    heading = ["type", "width", "n", "flash, ms", *list(ways)[1:]]
                    print("| " + " | ".join(heading) + " |\n" + "|---" * len(heading) + "|")
                flash = f"{statistics.median(times['flash']):.3f}" if "flash" in times else "–"
                cells = [dtype, str(width), str(length), flash]
                cells += [ratio(times, name, "flash") + predicted.get(name, "") for name in list(ways)[1:]]
                print("| " + " | ".join(cells) + " |", flush=True)
                torch.compiler.reset()


def shapes() -> dict[str, tuple[type, object, int, int]]:
    """Model class, configuration, batch and length."""
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

    llama = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    )
    return {
        "BERT-base": (BertModel, BertConfig(), 32, 512),
        "BERT-base, large batch": (BertModel, BertConfig(), 128, 512),
        "Llama, 1B": (LlamaModel, llama, 4, 2048),
        "Llama, 1B, long": (LlamaModel, llama, 1, 8192),
    }


def model_ways(
    kind: type, config: object, batch: int, length: int, dtype: torch.dtype, device: str
) -> dict[str, Callable[[], object]]:
    """The plain forward pass, and that of a scan with its default statistics."""
    torch.manual_seed(0)
    with torch.device(device):
        model = kind(config).eval().to(dtype)
    ids = torch.randint(10, 1000, (batch, length)).tolist()
    words, spans = ("w",) * length, ((0, 1),) * length
    windows = [Window(tuple(row), (False,) * length, spans, "text", 0, words) for row in ids]
    reading = WindowBatch.of(windows, 0, device)

    def plain() -> object:
        return model(input_ids=reading.text.input_ids, use_cache=False)

    def scanned() -> object:
        observer = StatisticsObserver(DEFAULT, BAND, reading, length - 1)
        with watching(model, observer):
            forward(model, {"input_ids": reading.text.input_ids}, str)
        return stacked(observer.layers())

    return {"plain": plain, "scan": scanned}


def compare_models(types: list[str]) -> None:
    print("\nA whole forward pass; scan's default statistics (goal: 1.15)\n")
    print("| model | type | batch | n | plain, ms | scan, ms | ratio |\n" + "|---" * 7 + "|")
    for name, (kind, config, batch, length) in shapes().items():
        for dtype in types:
            times = time_in_turns(model_ways(kind, config, batch, length, TYPES[dtype], "cuda"))
            if len(times) == 2:
                plain, scan = (statistics.median(times[way]) for way in ("plain", "scan"))
                cells = f"{plain:.1f} | {scan:.1f} | {ratio(times, 'scan', 'plain')}"
                print(f"| {name} | {dtype} | {batch} | {length} | {cells} |", flush=True)


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "tests", "layer", "model"], default="all")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32_768, 65_536])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--types", nargs="+", choices=list(TYPES), default=["float16", "bfloat16"])
    parser.add_argument("--flex", type=int, nargs="*", default=[8192])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--interpret", action="store_true")
    given = parser.parse_args()
    if given.interpret:
        return cases(interpreted=True)
    if not torch.cuda.is_available():
        print(
            "found no GPU that PyTorch can use: give one, or try the kernel in Triton's interpreter (--interpret)",
            file=sys.stderr,
        )
        return 2
    if code := cases(interpreted=False):
        print("some numbers are wrong on this device, or could not be had: nothing is timed", file=sys.stderr)
        return code
    if given.what == "tests":
        return 0
    import triton

    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    if given.what != "model":
        compare_layers(given.lengths, given.widths, given.types, given.flex, causal=given.causal)
    if given.what != "layer":
        compare_models(given.types)
    return 0


if __name__ == "__main__":
    sys.exit(main())
