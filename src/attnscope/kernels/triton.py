"""Measured attention on CUDA: the calls that the kernel of `_triton_kernels` supports, and its launch."""

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from attnscope.kernels.bins import segments
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, shows_scores, without_flat_curves
from attnscope.kernels.fused import plan_passes
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.plain import batched_tiles

WIDEST = 256
COLUMNS_AT_ONCE = 64
SUMMED = 2  # columns that the kernel sums one by one
BINS_A_SIDE = 31
TYPES = (torch.float32, torch.float16, torch.bfloat16)
VERSION = (3, 5)  # of Triton: the first with what the kernel is written in
CAPABILITY = (8, 0)  # Ampere: the first with bfloat16 and TF32, of which float32 products are made


def can_triton(call: AttentionCall, need: Need) -> str | None:
    """The reason why the Triton kernel cannot measure this call; None if it can."""
    operands = (call.query, call.key, call.value)
    types = {str(operand.dtype).removeprefix("torch.") for operand in operands}
    if any(operand.dtype not in TYPES for operand in operands):
        return f"the kernel works in float32, float16 and bfloat16, not in {', '.join(sorted(types))}"
    if len(types) > 1:
        return f"queries, keys and values must be of one type, not of {', '.join(sorted(types))}"
    if call.query.shape[-1] != call.key.shape[-1]:
        return "queries and keys differ in width"
    widths = call.query.shape[-1], call.value.shape[-1]
    if not all(1 <= width <= WIDEST for width in widths):
        return f"heads are {widths[0]} and {widths[1]} wide, and the kernel's 1 to {WIDEST}"
    if call.positions is not None:
        return "queries have positions of their own"
    if not min(*call.query.shape[:3], call.key.shape[2]):
        return "there is no query or no key"
    if not (call.scale if call.softcap is None else call.softcap) > 0:
        return "the largest score must be that of the largest product: scale or soft cap is not above 0"
    if len(need.bins) > BINS_A_SIDE:
        return f"there are {len(need.bins)} bins of offsets a side, and room for {BINS_A_SIDE}"
    return _no_place(call.query.device)


def _no_place(device: torch.device) -> str | None:
    version = _version()
    if version is None:
        return "the package triton is not installed"
    if version < VERSION:
        return f"the kernel needs triton {VERSION[0]}.{VERSION[1]} or later, not {version[0]}.{version[1]}"
    if is_interpreted():
        return None
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the kernel needs CUDA, or Triton's interpreter (TRITON_INTERPRET=1), not {device.type}"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"the kernel needs CUDA {CAPABILITY[0]}.{CAPABILITY[1]}, as of Ampere, or later"
    return None


@lru_cache(maxsize=1)
def _version() -> tuple[int, int] | None:
    if find_spec("triton") is None:
        return None
    import triton  # pyright: ignore[reportMissingImports] where there is none

    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels; the environment decides it when the process starts."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "on", "yes"}


class Launch(NamedTuple):
    """Sizes of the tiles, and their warps and stages of loads."""

    queries: int
    keys: int
    warps: int
    stages: int


# By the widest head. Half precision up to 128 by the clock of an H200 (docs/scale/gpu.md); the others by the compiler's
# count of registers (tests/kernels/compiled_triton.py).
_HALF = {64: Launch(64, 64, 4, 3), 128: Launch(64, 64, 4, 2), WIDEST: Launch(64, 32, 8, 2)}
_SINGLE = {64: Launch(32, 32, 4, 2), 128: Launch(32, 32, 4, 2), WIDEST: Launch(32, 16, 4, 1)}
_INTERPRETED = Launch(64, 32, 1, 1)  # small texts of tests take several tiles


def launch_of(width: int, dtype: torch.dtype, *, is_crowded: bool = False) -> Launch:
    """Launch parameters for a head width, smaller where registers also hold a bias or many columns."""
    table = _SINGLE if dtype == torch.float32 else _HALF
    launch = next(launch for widest, launch in table.items() if width <= widest)
    return launch._replace(keys=min(launch.keys, 32)) if is_crowded else launch


def triton_tiles(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """The measures that `can_triton` allows, by one kernel that reads each score once while it is in registers."""
    # the running sum of the entropy turns to NaN where an allowed score is -inf, if nothing else may make it so
    shows = need.entropy and shows_scores(call)
    return without_flat_curves(_passes, call, need, shows_scores=shows, wide=batched_tiles)


def _passes(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """One launch; a further one for each further block of columns."""
    if need.columns is None or need.columns.shape[-1] <= COLUMNS_AT_ONCE:
        return _launched(call, need)
    cuts = plan_passes(need.columns.shape[-1], COLUMNS_AT_ONCE)
    output, rows = _launched(call, replace(need, columns=need.columns[..., cuts[0]]))
    others = [_launched(call, Need(columns=need.columns[..., cut]))[1] for cut in cuts[1:]]
    columns = torch.cat([part.columns for part in (rows, *others) if part.columns is not None], -1)
    return output, replace(rows, columns=columns)


def _launched(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    from attnscope.kernels._triton_kernels import attend_rows  # Triton is loaded when it is first needed

    query, key, value = (
        # the kernel reads rows as vectors: columns must be adjacent
        (side if side.stride(-1) == 1 else side.contiguous())
        for side in (call.query, call.key, call.value)
    )
    batch, heads, queries, _ = query.shape
    keys, value_width = value.shape[2:]
    device = query.device
    # Triton has no booleans in memory: the same bytes as numbers
    mask = None if call.mask is None or call.is_contiguous else call.mask.view(torch.uint8)
    start, stop = (None, None) if call.mask is None else (bound.contiguous() for bound in call.extent)
    marks = None if need.columns is None else need.columns.float().expand(batch, -1, -1).transpose(1, 2)
    columns = 0 if marks is None else marks.shape[1]
    bias, bias_strides = _bias_in_memory(call, batch, heads)
    fixed = _fixed(call, need, columns)

    def results(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(batch, heads, queries, *sizes, dtype=dtype, device=device)

    output = results(value_width, dtype=query.dtype)
    rows = torch.empty(8, batch, heads, queries, dtype=torch.float64, device=device)
    column_sums = None if need.columns is None else results(columns)
    bin_sums = results(2 * len(need.bins)) if need.bins else None
    band_weights = None if need.band is None else results(2 * need.band + 1)
    grid = (-(-queries // fixed["QUERY_TILE"]) * batch * heads,)
    # one program for each block of queries of each head of each text
    kernel = cast("Any", attend_rows)[grid]  # Triton has no types for it
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel(
            query,
            key,
            value,
            mask,
            bias,
            None if call.sinks is None else call.sinks.contiguous(),
            None if marks is None else marks.contiguous(),
            (start, stop),
            _edges(need.bins, device) if need.bins else None,
            (output, rows, column_sums, bin_sums, band_weights),
            (float(call.scale), None if call.softcap is None else float(call.softcap)),
            (heads, call.group, queries, keys, 2 * len(need.bins) + 1, need.band or 0),
            (*(side.stride()[:3] for side in (query, key, value)), _strides(mask, batch, heads), bias_strides),
            queries if start is not None and len(start) > 1 else 0,
            **fixed,
        )
    return output, RowMeasures(
        log_sum_exp=rows[0],
        mass=rows[1],
        largest=rows[2],
        entropy=rows[3] if need.entropy else None,
        collision=rows[4] if need.collision else None,
        mean_offset=rows[5] if need.offsets or need.variance else None,
        offset_variance=rows[6] if need.variance else None,
        largest_key=rows[7] if need.largest_key else None,
        columns=column_sums,
        bins=bin_sums,
        band=band_weights,
    )


def _fixed(call: AttentionCall, need: Need, columns: int) -> dict[str, Any]:
    """Constants of the compiled kernel; a change of one compiles it again."""
    width, value_width = call.query.shape[-1], call.value.shape[-1]
    is_crowded = not (call.mask is None or call.is_contiguous) or call.bias is not None or columns > SUMMED
    widest = max(width, value_width)
    launch = _INTERPRETED if is_interpreted() else launch_of(widest, call.query.dtype, is_crowded=is_crowded)
    return {
        "CAUSAL": call.causal,
        "ENTROPY": need.entropy,
        "COLLISION": need.collision,
        "OFFSETS": need.offsets or need.variance,
        "VARIANCE": need.variance,
        "KEYED": need.largest_key,
        "COLUMNS": columns,
        "SUMMED": SUMMED,
        "width": width,
        "value_width": value_width,
        "QUERY_TILE": launch.queries,
        "KEY_TILE": launch.keys,
        "BIN_TILE": 1 << (2 * len(need.bins)).bit_length(),
        "BAND_TILE": 32,
        "UPCAST": is_interpreted(),
        "PRECISION": "tf32x3" if call.query.dtype == torch.float32 else "tf32",
        "num_warps": launch.warps,
        "num_stages": launch.stages,
        "enable_fp_fusion": True,  # a multiplication and an addition in one
    }


def _strides(of_pairs: Tensor | None, batch: int, heads: int) -> tuple[int, ...]:
    """Strides of text, head, query and key; 0 where a size of 1 is shared by all."""
    return (0, 0, 0, 0) if of_pairs is None else of_pairs.expand(batch, heads, -1, -1).stride()


def _bias_in_memory(call: AttentionCall, batch: int, heads: int) -> tuple[Tensor | None, tuple[int, ...]]:
    """Address of the bias of the first query and key, and its strides; by offset, the next query is one number back."""
    if not isinstance(call.bias, OffsetBias):
        return call.bias, _strides(call.bias, batch, heads)
    of_text, of_head, step = call.bias.by_offset.expand(batch, heads, -1).stride()
    # query i and key j read the number at j - i: one back for each query, one on for each key
    return call.bias.by_offset[..., call.bias.shape[-2] - 1 :], (of_text, of_head, -step, step)


@lru_cache(maxsize=32)
def _edges(bins: tuple[int, ...], device: torch.device) -> Tensor:
    """First offsets of the segments, in the kernel's type."""
    return torch.from_numpy(segments(bins).clip(-(1 << 30), 1 << 30).astype(np.int32)).to(device)
