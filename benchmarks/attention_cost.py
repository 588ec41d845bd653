"""Time and memory of one attention head over the length n: the whole matrix, and forms that do without it.

    python benchmarks/attention_cost.py                        # prints the table
    python benchmarks/attention_cost.py --out costs.json       # also writes it, for the lesson `limits`

One head of width 64 in float32, on one thread of the CPU. `matrix` writes out softmax(Q K^T / sqrt(d)) V, `fused` is
`scaled_dot_product_attention` of PyTorch, `exact` is attnscope's pass: the same output, with entropy, largest weight
and the sums along offsets of every row. `window` (128 tokens), `blocks` (of 64, and one global token) and `linear` are
other functions: each attends to less, or with other weights. `queries` is the same output as `matrix`, a query at a
time; `recurrent` is a GRU of the same width, which cannot but go step by step (`--forms queries recurrent
--lengths 64 128 256 512 1024 2048 4096`). Time is the processor's, the least of some repetitions.
Memory is the most that PyTorch holds during a call beyond its inputs, by its own record of allocations.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import profile

from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope_lineage.efficient import block_sparse_attention, linear_attention, sliding_window_attention

WIDTH, BAND, WINDOW, BLOCK = 64, 10, 128, 64
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def whole_matrix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1) @ value


def query_by_query(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat([whole_matrix(query[..., i : i + 1, :], key, value) for i in range(query.shape[-2])], -2)


def recurrent(_query: Tensor, _key: Tensor, value: Tensor) -> Tensor:
    torch.manual_seed(0)
    cell, state, states = torch.nn.GRUCell(WIDTH, WIDTH), torch.zeros(1, WIDTH), list[Tensor]()
    for step in value[0, 0]:
        state = cell(step[None], state)
        states.append(state)
    return torch.cat(states)[None, None]


def exact_statistics(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    call = AttentionCall(query, key, value, scale=query.shape[-1] ** -0.5)
    output, rows = measure(call, Need(band=BAND, entropy=True, largest=True))
    assert rows.entropy is not None  # noqa: S101 it was requested
    return output


FORMS: dict[str, Form] = {
    "matrix": whole_matrix,
    "fused": scaled_dot_product_attention,
    "exact": exact_statistics,
    "window": lambda q, k, v: sliding_window_attention(q, k, v, left=WINDOW // 2, right=WINDOW // 2),
    "blocks": lambda q, k, v: block_sparse_attention(q, k, v, block=BLOCK),
    "linear": linear_attention,
    "queries": query_by_query,
    "recurrent": recurrent,
}
SAME_OUTPUT = ("fused", "exact", "queries")


def seconds(form: Form, inputs: tuple[Tensor, ...]) -> float:
    """Least processor time of a call, over at least 3 calls and about a second."""
    least, total, calls = float("inf"), 0.0, 0
    while calls < 3 or (total < 1.0 and calls < 200):
        start = time.process_time()
        form(*inputs)
        spent = time.process_time() - start
        least, total, calls = min(least, spent), total + spent, calls + 1
    return least


def peak_bytes(form: Form, inputs: tuple[Tensor, ...]) -> int:
    """The most memory that is allocated at once during a call."""
    with profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        form(*inputs)
    assert record.profiler is not None  # noqa: S101 the context has ended
    results: Any = record.profiler.kineto_results
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    held, most = 0, 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        held += change
        most = max(most, held)
    return most


@torch.no_grad()
def measured(lengths: list[int], forms: list[str]) -> dict[str, Any]:
    costs: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "bytes": [], "error": []} for name in forms}
    for length in lengths:
        torch.manual_seed(length)
        inputs = tuple(torch.randn(1, 1, length, WIDTH) for _ in range(3))
        expected = whole_matrix(*inputs)
        for name in forms:
            form = FORMS[name]
            error = float((form(*inputs) - expected).norm() / expected.norm())
            if name in SAME_OUTPUT and error > 1e-4:
                raise SystemExit(f"{name} differs from the whole matrix by {error:.1e} at n = {length}")
            costs[name]["error"].append(error)
            costs[name]["bytes"].append(peak_bytes(form, inputs))
            costs[name]["seconds"].append(seconds(form, inputs))
    return {"lengths": lengths, "width": WIDTH, "costs": costs, "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[*LENGTHS])
    parser.add_argument("--forms", nargs="+", choices=[*FORMS], default=[*FORMS])
    parser.add_argument("--out", type=Path, help="File for the numbers, as JSON; other forms in it stay")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measured(options.lengths, options.forms)
    table = Table("n", *(f"{name}: ms, MB" for name in options.forms))
    for row, length in enumerate(options.lengths):
        pairs = [
            f"{1000 * cost['seconds'][row]:,.2f}, {cost['bytes'][row] / 1e6:,.2f}" for cost in found["costs"].values()
        ]
        table.add_row(f"{length:,}", *pairs)
    Console(width=160).print(table)
    if options.out is not None:
        found["command"] = "python benchmarks/attention_cost.py"
        if options.out.exists():
            earlier = json.loads(options.out.read_text(encoding="utf-8"))
            if earlier["lengths"][: len(options.lengths)] == options.lengths:  # the same, or the first of them
                found |= {"lengths": earlier["lengths"], "costs": earlier["costs"] | found["costs"]}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
