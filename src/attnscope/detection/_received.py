"""How much weight each key gets, without the matrix: the columns of attention, not its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnscope.attention import Need, attend_in_full, measure, of_queries

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.attention import AttentionCall

_ROWS = 64  # whose weights are written out at once


def received(
    call: AttentionCall, log_sum_exp: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head key"]:
    r"""Sum of the weights on each key, over all queries.

    :math:`\sum_i e^{s_{ij} - \mathrm{lse}_i}` is the exponential of a log-sum-exp with queries and keys exchanged and
    each row's own taken off by one more feature. Where a mask or a bias forbids that, some rows are written out at a
    time.

    Parameters
    ----------
    call
        The attention call; of one that looks back only, as many queries as keys.
    log_sum_exp
        Log-sum-exp of its rows.

    Examples
    --------
    >>> from attnscope.attention import AttentionCall
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> received(call, measure(call, Need())[1].log_sum_exp)[0, 0].tolist()
    [1.8333..., 0.8333..., 0.3333...]
    """
    if call.mask is None and call.bias is None and call.softcap is None:
        return _exchanged(call, log_sum_exp)
    queries = call.query.shape[2]
    sums = log_sum_exp.new_zeros(*call.query.shape[:2], call.key.shape[2])
    for rows in torch.arange(queries, device=call.query.device).split(_ROWS):
        sums += attend_in_full(of_queries(call, rows))[1].sum(2, dtype=torch.float64)
    return sums


def _exchanged(call: AttentionCall, log_sum_exp: Tensor) -> Tensor:
    query = call.query.float() * call.scale
    key = call.key.float().repeat_interleave(call.group, 1)
    level = -log_sum_exp[..., None].float()
    as_query = torch.cat([key, torch.ones_like(key[..., :1])], -1)
    as_key = torch.cat([query, level], -1)
    if call.causal:  # a key is seen by the queries from its place on: from its end, it looks back
        as_query, as_key = as_query.flip(2), as_key.flip(2)
    turned = replace(call, query=as_query, key=as_key, value=level.flip(2), scale=1.0, sinks=None)
    sums = measure(turned, Need())[1].log_sum_exp.exp()
    return sums.flip(2) if call.causal else sums
