"""Measured attention on CUDA: which calls the kernel of `_triton_kernels` can do, and how it is launched."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.attention._bins import segments
from attnscope.attention._call import AttentionCall, Need, RowMeasures
from attnscope.attention._finite import told
from attnscope.attention._fused import plan_passes
from attnscope.attention._tiles import batched_tiles

WIDEST = 256
COLUMNS_AT_ONCE = 64
BINS_A_SIDE = 31
TYPES = (torch.float32, torch.float16, torch.bfloat16)
CAPABILITY = (8, 0)  # Ampere: the first with bfloat16 and TF32, of which float32 products are made


def can_triton(call: AttentionCall, need: Need) -> str | None:
    """Say why the Triton kernel cannot give what is needed; None if it can.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 1, 4, 8, dtype=torch.float64)
    >>> can_triton(AttentionCall(x, x, x, scale=1.0), Need())
    'the kernel works in float32, float16 and bfloat16, not in float64'
    """
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
    if not min(*call.query.shape[:3], call.key.shape[2]):
        return "there is no query or no key"
    if not (call.scale if call.softcap is None else call.softcap) > 0:
        return "the largest score must be that of the largest product: scale or soft cap is not above 0"
    if len(need.bins) > BINS_A_SIDE:
        return f"there are {len(need.bins)} bins of offsets a side, and room for {BINS_A_SIDE}"
    return _no_place(call.query.device)


def _no_place(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if is_interpreted():
        return None
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the kernel needs CUDA, or Triton's interpreter (TRITON_INTERPRET=1), not {device.type}"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return f"the kernel needs CUDA {CAPABILITY[0]}.{CAPABILITY[1]}, as of Ampere, or later"
    return None


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels: it is so from the start of a process, by its environment."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in {"1", "true", "on", "yes"}


class Launch(NamedTuple):
    """Sizes of the tiles, and the warps and stages of loads that work on them."""

    queries: int
    keys: int
    warps: int
    stages: int


def launch_of(width: int, dtype: torch.dtype) -> Launch:
    """Launch parameters for heads of a padded width.

    Each program holds the sums of its queries in registers and two stages of keys and values in shared memory.

    Examples
    --------
    >>> launch_of(64, torch.float16)
    Launch(queries=128, keys=64, warps=8, stages=2)
    """
    if is_interpreted():
        return Launch(32, 32, 1, 1)  # small texts, several tiles
    if dtype == torch.float32:
        return Launch(64, 32, 4, 2) if width <= 128 else Launch(32, 32, 4, 1)
    if width <= 64:
        return Launch(128, 64, 8, 2)
    return Launch(128, 64, 8, 2) if width <= 128 else Launch(64, 32, 4, 2)


def triton_tiles(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """The measures that `can_triton` allows, by one kernel: each score is read once while it is in registers.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 2, 7, 16, dtype=torch.float16)
    >>> call = AttentionCall(x, x, x, scale=0.25)
    >>> triton_tiles(call, Need(entropy=True))[1].entropy.shape  # doctest: +SKIP
    torch.Size([1, 2, 7])
    """
    # the running sum of the entropy turns to NaN where an allowed score is -inf, if nothing else may make it so
    shows = need.entropy and call.is_contiguous and call.bias is None and call.softcap is None
    return told(_passes, call, need, shows_scores=shows, wide=batched_tiles)


def _passes(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    """One launch; a further one for each further block of columns."""
    if need.columns is None or need.columns.shape[-1] <= COLUMNS_AT_ONCE:
        return _launched(call, need)
    cuts = plan_passes(need.columns.shape[-1], COLUMNS_AT_ONCE)
    output, rows = _launched(call, replace(need, columns=need.columns[..., cuts[0]]))
    others = [_launched(call, Need(columns=need.columns[..., cut]))[1] for cut in cuts[1:]]
    columns = torch.cat([one.columns for one in (rows, *others) if one.columns is not None], -1)
    return output, replace(rows, columns=columns)


def _launched(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    from attnscope.attention._triton_kernels import attend_rows  # Triton is loaded when it is first needed

    query, key, value = (_with_unit_stride(side) for side in (call.query, call.key, call.value))
    batch, heads, queries, width = query.shape
    keys, value_width = value.shape[2:]
    device = query.device
    launch = launch_of(_padded(max(width, value_width), 16), query.dtype)
    has_extent = call.mask is not None
    start, stop = (bound.contiguous() for bound in call.extent) if has_extent else (query, query)
    mask = None if call.mask is None or call.is_contiguous else call.mask.view(torch.uint8)
    columns = 0 if need.columns is None else need.columns.shape[-1]
    marks = query if need.columns is None else need.columns.float().transpose(1, 2).contiguous()
    band = 0 if need.band is None else need.band

    def results(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(batch, heads, queries, *sizes, dtype=dtype, device=device)

    output = results(value_width, dtype=query.dtype)
    rows = torch.empty(7, batch, heads, queries, dtype=torch.float64, device=device)
    column_sums = results(columns)
    bin_sums = results(2 * len(need.bins))
    band_weights = results(2 * band + 1 if need.band is not None else 0)
    grid = (-(-queries // launch.queries) * batch * heads,)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        attend_rows[grid](
            query,
            key,
            value,
            query if mask is None else mask,
            query if call.bias is None else call.bias,
            query if call.sinks is None else call.sinks,
            marks,
            start,
            stop,
            _edges(need.bins, device) if need.bins else query,
            output,
            rows,
            column_sums,
            bin_sums,
            band_weights,
            float(call.scale),
            1.0 if call.softcap is None else float(call.softcap),
            heads,
            call.group,
            queries,
            keys,
            width,
            value_width,
            2 * len(need.bins) + 1,
            band,
            *query.stride()[:3],
            *key.stride()[:3],
            *value.stride()[:3],
            *_strides(mask, batch, heads),
            *_strides(call.bias, batch, heads),
            queries if has_extent and len(start) > 1 else 0,
            HAS_EXTENT=has_extent,
            CAUSAL=call.causal,
            HAS_MASK=mask is not None,
            HAS_BIAS=call.bias is not None,
            HAS_CAP=call.softcap is not None,
            HAS_SINKS=call.sinks is not None,
            ENTROPY=need.entropy,
            COLLISION=need.collision,
            OFFSETS=need.offsets or need.variance,
            VARIANCE=need.variance,
            COLUMNS=columns,
            HAS_BINS=bool(need.bins),
            HAS_BAND=need.band is not None,
            WIDTH=_padded(width, 16),
            VALUE_WIDTH=_padded(value_width, 16),
            QUERY_TILE=launch.queries,
            KEY_TILE=launch.keys,
            COLUMN_TILE=_padded(columns, 1 if columns <= 4 else 16),
            BIN_TILE=_padded(2 * len(need.bins) + 1, 1),
            BAND_TILE=32,
            UPCAST=is_interpreted(),
            PRECISION="tf32x3" if query.dtype == torch.float32 else "tf32",
            num_warps=launch.warps,
            num_stages=launch.stages,
        )
    return output, RowMeasures(
        log_sum_exp=rows[0],
        mass=rows[1],
        largest=rows[2],
        entropy=rows[3] if need.entropy else None,
        collision=rows[4] if need.collision else None,
        mean_offset=rows[5] if need.offsets or need.variance else None,
        offset_variance=rows[6] if need.variance else None,
        columns=None if need.columns is None else column_sums.double(),
        bins=bin_sums if need.bins else None,
        band=None if need.band is None else band_weights,
    )


def _with_unit_stride(side: Tensor) -> Tensor:
    return side if side.stride(-1) == 1 else side.contiguous()


def _strides(of_pairs: Tensor | None, batch: int, heads: int) -> tuple[int, ...]:
    """Of text, head, query and key; 0 where a size of 1 stands for all."""
    return (0, 0, 0, 0) if of_pairs is None else of_pairs.expand(batch, heads, -1, -1).stride()


def _padded(size: int, least: int) -> int:
    """The next power of two, as the sizes of tiles are."""
    return max(least, 1 << (size - 1).bit_length()) if size > 0 else least


@lru_cache(maxsize=32)
def _edges(bins: tuple[int, ...], device: torch.device) -> Tensor:
    """First offsets of the segments, in the kernel's type."""
    return torch.from_numpy(segments(bins).clip(-(1 << 30), 1 << 30).astype(np.int32)).to(device)
