"""The weights of a few rows of an attention call, such as the last one of a text that is being written."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention._call import AttentionCall
from attnscope.attention._reference import masked_softmax


class RowWeights(NamedTuple):
    """Some rows of a call, written out.

    Attributes
    ----------
    weights
        ``(batch, head, row, key)``, float64; 0 where a row may not look.
    allowed
        ``(batch, 1 or head, row, key)``: where it may.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 8)
    >>> rows = row_weights(AttentionCall(x, x, x, scale=1.0, causal=True), first=1)
    >>> rows.weights[0, 0].round(decimals=2).tolist(), rows.allowed[0, 0].tolist()
    ([[0.5, 0.5, 0.0], [0.33, 0.33, 0.33]], [[True, True, False], [True, True, True]])
    """

    weights: Tensor
    allowed: Tensor


@torch.no_grad()
def row_weights(call: AttentionCall, first: int) -> RowWeights:
    """Write out the weights of the rows from `first` to the last, in memory that grows with their number alone.

    Parameters
    ----------
    call
        The attention call. Its keys may be more than its queries, as where earlier tokens are kept in a cache.
    first
        Number of the first query.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 4, 8)
    >>> rows = row_weights(AttentionCall(x, x[:, :1], x[:, :1], scale=1.0, causal=True), first=2)
    >>> rows.weights[0, 1].tolist()
    [[0.3333333333333333, 0.3333333333333333, 0.3333333333333333, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    rows = slice(first, None)
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query = call.query[:, :, rows].to(wide)
    # heads that share keys stand in one matrix, so that no key is repeated
    grouped = query.unflatten(1, (-1, call.group)).flatten(2, 3)
    scores = call.scale * grouped @ call.key.to(wide).mT
    scores = scores.unflatten(2, (call.group, -1)).flatten(1, 2).double()
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    bias = None if call.bias is None else call.bias[..., rows, :]
    if bias is not None:
        scores = scores + bias.double()
    allowed = _allowed(call, bias, rows).expand(len(scores), -1, -1, -1)
    sinks = None if call.sinks is None else call.sinks.double()[:, None, None]
    return RowWeights(masked_softmax(scores, allowed, sinks), allowed)


def _allowed(call: AttentionCall, bias: Tensor | None, rows: slice) -> Tensor:
    queries, keys = call.query.shape[2], call.key.shape[2]
    place = torch.arange(max(queries, keys), device=call.query.device)
    allowed = torch.ones(1, 1, len(place[:queries][rows]), keys, dtype=torch.bool, device=place.device)
    if call.causal:
        allowed = (place[:keys] <= place[:queries][rows, None])[None, None]
    if call.mask is not None:
        allowed = allowed & call.mask[..., rows, :]
    if bias is not None:
        allowed = allowed & ~(bias <= torch.finfo(bias.dtype).min / 2)  # NaN shows
    return allowed
