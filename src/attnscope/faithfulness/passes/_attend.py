"""Attention as fast as PyTorch has it, and with a gradient: for passes in which nothing is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from attnscope.attention import attend, causal_mask

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall


def output_with_gradient(call: AttentionCall) -> Tensor:
    """The output of a call, ``(batch, head, query, value_width)``, which a gradient can flow through.

    Examples
    --------
    >>> from attnscope.attention import AttentionCall
    >>> x = torch.ones(1, 1, 2, 3, requires_grad=True)
    >>> output_with_gradient(AttentionCall(x, x, x, scale=1.0)).requires_grad
    True
    """
    if call.softcap is not None or call.sinks is not None:
        return _written_out(call)
    mask, causal = call.mask, call.causal
    square = call.query.shape[2] == call.key.shape[2]
    if causal and (mask is not None or call.bias is not None or not square):
        past = causal_mask(call.query.shape[2], call.key.shape[2], call.query.device)
        mask, causal = past if mask is None else mask & past, False
    if call.bias is not None:
        added = call.bias.to(call.query.dtype)
        mask = added if mask is None else added.masked_fill(~mask, torch.finfo(added.dtype).min)
    return F.scaled_dot_product_attention(
        call.query,
        call.key,
        call.value,
        attn_mask=mask,
        is_causal=causal,
        scale=call.scale,
        enable_gqa=call.group > 1,
    )


def _written_out(call: AttentionCall) -> Tensor:
    mask = call.mask
    if call.causal:
        past = causal_mask(call.query.shape[2], call.key.shape[2], call.query.device)
        mask = past if mask is None else mask & past
    key, value = (side.repeat_interleave(call.group, 1) for side in (call.key, call.value))
    sinks = None if call.sinks is None else call.sinks[:, None, None]
    return attend(
        call.query, key, value, mask, call.scale, bias=call.bias, softcap=call.softcap, sinks=sinks
    )[0]
