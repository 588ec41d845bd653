"""What the second pass costs: attention received, every offset, chosen offsets, beside PyTorch's fused attention.

    python benchmarks/received.py
    python benchmarks/received.py --lengths 512 8192 --causal --processor-time --threads 1

One layer of heads 64 wide, float32, on the CPU. Ways are timed in turns within one run; a ratio is the median over the
turns. `--processor-time` counts the time of all threads in place of the clock's, for a machine that others use. Then
the largest relative error of any key that receives more than 0.001 of a row, against float64, at the first length.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.kernels.bins import far_starts, weights_at_offsets
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.sums import column_sums, exchanged, weight_sums

if TYPE_CHECKING:
    from collections.abc import Callable

BAND, LAST = 10, 32


def ways_of(call: AttentionCall) -> dict[str, Callable[[], object]]:
    """What is timed."""
    n = call.key.shape[2]
    log_sum_exp = measure(call, Need())[1].log_sum_exp
    columns = torch.zeros(1, n, 2)
    columns[:, 0] = 1.0  # a first token that is special, as in most texts
    everything = Need.everything(BAND, columns, far_starts(BAND, n))
    fused = torch.nn.functional.scaled_dot_product_attention
    return {
        "fused": lambda: fused(call.query, call.key, call.value, is_causal=call.causal),
        "all statistics of rows": lambda: measure(call, everything),
        "received": lambda: column_sums(call, log_sum_exp),
        f"of the last {LAST}": lambda: column_sums(call, log_sum_exp, last=LAST),
        "every offset": lambda: weight_sums(call, log_sum_exp, offsets=True),
        "received and every offset": lambda: weight_sums(call, log_sum_exp, received=True, offsets=True),
        "received, by exchange": lambda: measure(exchanged(call, log_sum_exp), Need()),
        "three offsets": lambda: weights_at_offsets(call, log_sum_exp, (-1, -n // 2, 1 - n // 2)),
    }


def compare(lengths: list[int], heads: int, repeats: int, clock: Callable[[], float], *, causal: bool) -> None:
    print(f"one layer of {heads} heads x 64, float32, {torch.get_num_threads()} threads, causal={causal}")
    print(f"{'n':>8}  {'':28}{'s':>10}{'x fused':>10}")
    for n in lengths:
        query, key, value = torch.randn(3, 1, heads, n, 64).unbind(0)
        ways = ways_of(AttentionCall(query, key, value, scale=0.125, causal=causal))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(repeats + 1):
            for way, run in ways.items():
                began = clock()
                run()
                if turn:  # the first turn warms up
                    times[way].append(clock() - began)
        for way, taken in times.items():
            ratio = np.median(np.array(taken) / np.array(times["fused"]))
            print(f"{n:8}  {way:28}{np.median(taken):10.4f}{ratio:10.2f}")


def largest_error(n: int, *, causal: bool) -> tuple[float, float]:
    """Largest relative error of a column sum against float64, and the largest score."""
    query, key, value = (3 * torch.randn(3, 1, 2, n, 64)).unbind(0)
    call = AttentionCall(query, key, value, scale=0.125, causal=causal)
    wide = replace(call, query=query.double(), key=key.double(), value=value.double())
    sums, exact = (column_sums(each, measure(each, Need())[1].log_sum_exp) for each in (call, wide))
    largest = float((query @ key.mT).abs().max()) * 0.125
    return float(((sums - exact).abs() / exact)[exact > 1e-3].max()), largest


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    compare(options.lengths, options.heads, options.repeats, clock, causal=options.causal)
    error, score = largest_error(options.lengths[0], causal=options.causal)
    print(f"largest relative error: {error:.1e}, of scores up to {score:.0f}")


if __name__ == "__main__":
    main()
