"""The output by fused attention, some rows measured, and what the log-sum-exp tells of all rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.attention._at_offsets import weights_at_offsets
from attnscope.attention._by_head import each_head, operands_of_head
from attnscope.attention._call import AttentionCall, Need, RowMeasures
from attnscope.attention._finite import magnitude
from attnscope.attention._fused import can_fuse, fused_attention
from attnscope.attention._measure import measure

_ROWS = 1024  # whose mask is written out at once
_WEIGHTS = 1 << 22  # of marked keys that are held at once


@torch.no_grad()
def measure_sampled(
    call: AttentionCall, need: Need, queries: Int[Tensor, "_ row"]
) -> tuple[Tensor, RowMeasures, RowMeasures]:
    r"""Attend by PyTorch's fused kernel; measure what is wanted of some rows, and of all rows what costs O(n).

    The kernel gives the log-sum-exp of each row, and with it any single weight is
    :math:`A_{ij} = \exp(s_{ij} - \mathrm{lse}_i)`: so the band and the weight on marked keys are exact in every row.
    Everything else is measured of the rows that are named, whose scores alone are made.

    Parameters
    ----------
    call
        The attention call. With a bias or a soft cap the output comes from the pass that measures all rows, and nothing
        is saved.
    need
        What is wanted.
    queries
        ``(batch or 1, row)``: the rows, by their numbers.

    Returns
    -------
    output : Tensor
        ``(batch, head, query, value_width)``.
    every : RowMeasures
        ``log_sum_exp``, ``mass``, and ``band`` and ``columns`` where they are wanted, of every row.
    some : RowMeasures
        All that is wanted, of the rows named.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> _, every, some = measure_sampled(call, Need(band=1, entropy=True), torch.tensor([[1, 3]]))
    >>> every.band[0, 0, [0, 1, 3], 1].tolist(), some.entropy[0, 0].exp().round().tolist()
    ([1.0, 0.5, 0.25], [2.0, 4.0])
    """
    of_all = Need(band=need.band, columns=need.columns)
    fused = _fused(call) if _can_fuse(call) else None
    if fused is None:
        output, every = measure(call, of_all)
    else:
        output, log_sum_exp, mass = fused
        every = RowMeasures(
            log_sum_exp=log_sum_exp,
            mass=mass,
            band=None if need.band is None else _band(call, log_sum_exp, need.band),
            columns=None if need.columns is None else _columns(call, log_sum_exp, need.columns),
        )
    rows = call.take(queries)
    return output, every, measure(replace(rows, value=rows.value[..., :0]), need)[1]


def _can_fuse(call: AttentionCall) -> bool:
    narrow = call.value.shape[-1] <= call.key.shape[-1]
    return (
        narrow and call.query.dtype != torch.float64 and can_fuse(replace(call, sinks=None), Need()) is None
    )


def _fused(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor] | None:
    """Output, log-sum-exp and mass of each row; None where something is not finite, which the kernel spreads."""
    plain = replace(call, sinks=None)
    if call.mask is None:
        output, log_real = fused_attention(plain)
    else:
        parts = [_fused_rows(plain, first) for first in range(0, call.query.shape[2], _ROWS)]
        output, log_real = (torch.cat(part, 2) for part in zip(*parts, strict=True))
    there = log_real > -torch.inf
    log_sum_exp, mass = log_real, there.double()
    if call.sinks is not None:
        log_sum_exp = torch.logaddexp(log_real, call.sinks.double()[:, None])
        mass = torch.where(there, torch.exp(log_real - log_sum_exp), 0.0)
        output = output * mass[..., None].to(output.dtype)
    return (output, log_sum_exp, mass) if bool(magnitude(output) < torch.inf) else None


def _fused_rows(call: AttentionCall, first: int) -> tuple[Tensor, Tensor]:
    """Some rows against the keys that they may see: the mask is never written out whole."""
    rows = slice(first, min(first + _ROWS, call.query.shape[2]))
    start, stop = (bound[:, rows] for bound in call.extent)
    keys = slice(int(start.min()), max(int(stop.max()), int(start.min()) + 1))
    index = torch.arange(keys.start, keys.stop, device=start.device)
    allowed = ((index >= start[..., None]) & (index < stop[..., None]))[:, None]
    if call.mask is not None and not call.is_contiguous:
        allowed = allowed & call.mask[:, :, rows, keys]
    part = replace(
        call,
        query=call.query[:, :, rows],
        key=call.key[:, :, keys],
        value=call.value[:, :, keys],
        causal=False,
        mask=None if bool(allowed.all()) else allowed,
    )
    return fused_attention(part)


def _band(call: AttentionCall, log_sum_exp: Tensor, band: int) -> Tensor:
    """Weights at the offsets ``-band..band``, ``(batch, head, query, offset)``, float32."""
    if call.query.device.type != "cpu" or not call.is_contiguous:
        return weights_at_offsets(call, log_sum_exp, range(-band, band + 1)).float()
    from attnscope.attention._compiled import band_compiled  # numba is loaded when it is first needed

    weights = torch.zeros(*call.query.shape[:3], 2 * band + 1)
    level = log_sum_exp.masked_fill(log_sum_exp == -torch.inf, torch.inf).float()

    def work(text: int, head: int) -> None:
        operands = operands_of_head(call, text, head)
        of_rows = operands.start, operands.stop, level[text, head]
        band_compiled(operands.query, operands.key, *of_rows, weights[text, head])

    each_head(call, work)
    return weights


def _columns(call: AttentionCall, log_sum_exp: Tensor, columns: Tensor) -> Tensor:
    """Weighted sums of the value columns, ``(batch, head, query, column)``, from the keys that have any."""
    marked = columns.ne(0).any(-1).any(0).nonzero()[:, 0]
    key = call.key[:, :, marked].float().repeat_interleave(call.group, dim=1).mT
    query = call.query.float() * call.scale
    values = columns[:, None, marked].float()
    start, stop = (bound[:, None, :, None] for bound in call.extent)
    sums = torch.zeros(*call.query.shape[:3], columns.shape[-1], device=query.device)
    step = max(1, _WEIGHTS // max(1, len(marked) * query.shape[0] * query.shape[1]))
    for first in range(0, query.shape[2], step):
        rows = slice(first, first + step)
        seen = (marked >= start[:, :, rows]) & (marked < stop[:, :, rows])
        if call.mask is not None and not call.is_contiguous:
            seen = seen & call.mask[:, :, rows][..., marked]
        weights = torch.exp(query[:, :, rows] @ key - log_sum_exp[:, :, rows, None].float())
        sums[:, :, rows] = torch.where(seen, weights, 0.0) @ values
    return sums.double()
