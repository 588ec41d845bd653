"""The output by fused attention, the measures of all rows that follow from the log-sum-exp, and a sample of rows."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.by_head import each_head
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, magnitude
from attnscope.kernels.engines import measure
from attnscope.kernels.fused import can_fuse, fused_attention
from attnscope.kernels.plain import Operands

_ROWS = 1024  # whose mask is written out at once
_WEIGHTS = 1 << 22  # of marked keys in memory at once


@torch.no_grad()
def measure_by_level(call: AttentionCall, need: Need) -> tuple[Tensor, RowMeasures]:
    r"""Attend by PyTorch's fused kernel, and measure each row as far as its log-sum-exp allows in O(n)."""
    fits = call.value.shape[-1] <= call.key.shape[-1] and call.query.dtype != torch.float64
    fused = _fused(call) if fits and can_fuse(replace(call, sinks=None), Need()) is None else None
    if fused is None:
        return measure(call, Need(band=need.band, columns=need.columns))
    output, log_sum_exp, mass = fused
    return output, RowMeasures(
        log_sum_exp=log_sum_exp,
        mass=mass,
        band=None if need.band is None else _band(call, log_sum_exp, need.band),
        columns=None if need.columns is None else _columns(call, log_sum_exp, need.columns),
    )


@torch.no_grad()
def measure_rows(call: AttentionCall, need: Need, queries: Int[Tensor, "_ _ row"]) -> RowMeasures:
    """Measure some rows by their scores alone; each key head may have its own rows."""
    # values of width 0: nothing is mixed
    bare = replace(call, value=call.value[..., :0])
    # query heads that share a key head share its rows
    groups = [slice(head * call.group, (head + 1) * call.group) for head in range(queries.shape[1])]
    parts = [measure(bare.part(own).take(queries[:, head]), need)[1] for head, own in enumerate(groups)]
    measured = [field.name for field in fields(RowMeasures) if getattr(parts[0], field.name) is not None]
    return RowMeasures(**{name: torch.cat([getattr(part, name) for part in parts], 1) for name in measured})


def _fused(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor] | None:
    """Output, log-sum-exp and mass of each row; None if a number is not finite, as the kernel would spread it."""
    plain = replace(call, sinks=None)
    if call.mask is None:
        output, log_real = fused_attention(plain)
    else:
        parts = [_fused_rows(plain, first) for first in range(0, call.query.shape[2], _ROWS)]
        output, log_real = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    visible = log_real > -torch.inf
    log_sum_exp, mass = log_real, visible.double()
    if call.sinks is not None:
        log_sum_exp = torch.logaddexp(log_real, call.sinks.double()[:, None])
        mass = torch.where(visible, torch.exp(log_real - log_sum_exp), 0.0)
        # the fused kernel knows no sinks: they scale the output of each row
        output = output * mass[..., None].to(output.dtype)
    return (output, log_sum_exp, mass) if bool(magnitude(output) < torch.inf) else None


def _fused_rows(call: AttentionCall, first: int) -> tuple[Tensor, Tensor]:
    """Attend for some rows; the mask is never written out whole."""
    rows = slice(first, min(first + _ROWS, call.query.shape[2]))
    start, stop = (bound[:, rows] for bound in call.extent)
    # at least one key: an empty matrix has no softmax
    keys = slice(int(start.min()), max(int(stop.max()), int(start.min()) + 1))
    index = torch.arange(keys.start, keys.stop, device=start.device)
    allowed = ((index >= start[..., None]) & (index < stop[..., None]))[:, None]
    if call.mask is not None and not call.is_contiguous:
        allowed = allowed & call.mask[:, :, rows, keys]
    query, key, value = call.query[:, :, rows], call.key[:, :, keys], call.value[:, :, keys]
    # a mask of all True would be written out and added for nothing
    mask = None if bool(allowed.all()) else allowed
    return fused_attention(replace(call, query=query, key=key, value=value, causal=False, mask=mask))


def _band(call: AttentionCall, log_sum_exp: Tensor, band: int) -> Tensor:
    """Weights at the offsets ``-band..band``, ``(batch, head, query, offset)``, float32."""
    if call.query.device.type != "cpu" or not call.is_contiguous:
        return weights_at_offsets(call, log_sum_exp, range(-band, band + 1)).float()
    from attnscope.kernels.compiled import band_compiled  # numba is loaded when it is first needed

    weights = torch.zeros(*call.query.shape[:3], 2 * band + 1, dtype=torch.float32)
    # infinity marks rows without keys, which are left out
    level = log_sum_exp.masked_fill(log_sum_exp == -torch.inf, torch.inf).float()

    def work(operands: Operands, text: int, head: int) -> None:
        of_rows = operands.start, operands.stop, level[text, head]
        band_compiled(operands.query, operands.key, *of_rows, weights[text, head])

    each_head(call, work)
    return weights


def _columns(call: AttentionCall, log_sum_exp: Tensor, columns: Tensor) -> Tensor:
    """Weighted sums of the value columns, ``(batch, head, query, column)``, from the keys that have values in them."""
    marked = columns.ne(0).any(-1).any(0).nonzero()[:, 0]
    key = call.key[:, :, marked].float().repeat_interleave(call.group, dim=1).mT
    query = call.query.float() * call.scale
    values = columns[:, None, marked].float()
    start, stop = (bound[:, None, :, None] for bound in call.extent)
    sums = torch.zeros(*call.query.shape[:3], columns.shape[-1], dtype=torch.float32, device=query.device)
    step = max(1, _WEIGHTS // max(1, len(marked) * query.shape[0] * query.shape[1]))
    for first in range(0, query.shape[2], step):
        rows = slice(first, first + step)
        seen = (marked >= start[:, :, rows]) & (marked < stop[:, :, rows])
        if call.mask is not None and not call.is_contiguous:
            seen = seen & call.mask[:, :, rows][..., marked]
        weights = torch.exp(query[:, :, rows] @ key - log_sum_exp[:, :, rows, None].float())
        sums[:, :, rows] = torch.where(seen, weights, 0.0) @ values
    return sums.double()
