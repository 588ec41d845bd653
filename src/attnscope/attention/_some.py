"""Some of the weights of a call: those of chosen queries, and those of each query on chosen keys."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention._call import AttentionCall


def of_queries(call: AttentionCall, queries: Int[Tensor, " chosen"]) -> AttentionCall:
    """The same call of some of its queries alone; that they look back only is then said by a mask.

    Parameters
    ----------
    call
        The attention call.
    queries
        Their places.

    Examples
    --------
    >>> from attnscope.attention import attend_in_full
    >>> x = torch.zeros(1, 1, 4, 2)
    >>> part = of_queries(AttentionCall(x, x, x, scale=1.0, causal=True), torch.tensor([1, 3]))
    >>> attend_in_full(part)[1][0, 0].tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    mask = None if call.mask is None else call.mask[:, :, queries]
    if call.causal:
        past = torch.arange(call.key.shape[2], device=queries.device) <= queries[:, None]
        mask = past[None, None] if mask is None else mask & past
    return replace(
        call,
        query=call.query[:, :, queries],
        causal=False,
        mask=mask,
        bias=None if call.bias is None else call.bias[:, :, queries],
    )


def weights_at(
    call: AttentionCall, log_sum_exp: Float[Tensor, "batch head query"], keys: Int[Tensor, "_ query chosen"]
) -> Float[Tensor, "batch head query chosen"]:
    r"""Weight of each query on chosen keys, from queries, keys and log-sum-exp: n d work for each column of keys.

    :math:`A_{ij} = e^{s_{ij} - \mathrm{lse}_i}`, the score with scale, cap and bias.

    Parameters
    ----------
    call
        The attention call.
    log_sum_exp
        Log-sum-exp of its rows, as `measure` gives it.
    keys
        Places of the keys, of each text or of all alike; -1 for none, which has the weight 0.

    Returns
    -------
    Tensor
        Float32 or wider; 0 where a query may not look.

    Examples
    --------
    >>> from attnscope.attention import Need, measure
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> before = torch.tensor([[[-1], [0], [1]]])
    >>> weights_at(call, measure(call, Need())[1].log_sum_exp, before)[0, 0, :, 0].tolist()
    [0.0, 0.5, 0.3333333432674408]
    """
    batch, heads, _, _ = call.query.shape
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query = call.query.to(wide) * call.scale
    own = torch.arange(call.query.shape[2], device=query.device)
    columns: list[Tensor] = []
    for at in keys.unbind(-1):
        place = at.clamp_min(0)[:, None].expand(batch, -1, -1)
        of_heads = place.expand(-1, call.key.shape[1], -1)[..., None].expand(-1, -1, -1, call.key.shape[3])
        key = call.key.gather(2, of_heads).to(wide).repeat_interleave(call.group, 1)
        scores = (query * key).sum(-1)
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        seen = (at >= 0)[:, None] & (place <= own if call.causal else True)
        for grid in (call.bias, call.mask):
            if grid is None:
                continue
            shape = (batch, grid.shape[1], *grid.shape[2:])
            values = grid.expand(shape).gather(3, place.expand(-1, grid.shape[1], -1)[..., None])[..., 0]
            if grid is call.mask:
                seen = seen & values
            else:
                scores = scores + values.to(wide)
        weights = torch.exp(scores.double() - log_sum_exp)
        columns.append(torch.where(seen.expand(-1, heads, -1), weights, 0.0).to(wide))
    return torch.stack(columns, -1)
