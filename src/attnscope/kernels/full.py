"""The scores and weights of an attention call, written out for some of its rows or all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.kernels.call import AttentionCall
from attnscope.kernels.reference import masked_softmax


def scores_of(call: AttentionCall, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
    """Scores of all heads of a call, with scale, soft cap and bias, -inf where masked; float32 or wider."""
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query, key = call.query[:, :, rows].to(wide), call.key.to(wide)
    grouped = query.unflatten(1, (key.shape[1], call.group))  # heads that share keys, so that no key is repeated
    scores = (call.scale * grouped @ key[:, :, None].transpose(-2, -1)).flatten(1, 2)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias[:, :, rows].to(wide)
    mask = None if call.mask is None else call.mask[:, :, rows]
    if call.causal:
        past = torch.arange(key.shape[2], device=key.device) <= call.query_positions[:, None, rows, None]
        mask = past if mask is None else mask & past
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def softmax_of(call: AttentionCall, scores: Float[Tensor, "batch head row key"]) -> Float[Tensor, "batch head row key"]:
    """Weights that follow from scores, with the sinks of the call."""
    return masked_softmax(scores, None, None if call.sinks is None else call.sinks.to(scores.dtype)[:, None, None])


def weights_of(call: AttentionCall, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
    """Weights of all heads of a call; float32 or wider."""
    return softmax_of(call, scores_of(call, rows))


def values_of(call: AttentionCall) -> Float[Tensor, "batch head key value_width"]:
    """Values of every head, repeated where heads share them; float32 or wider."""
    return call.value.to(torch.promote_types(call.value.dtype, torch.float32)).repeat_interleave(call.group, 1)


def attended(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query key"]]:
    """Output, in the query's dtype, and weights of a call, with gradients between them."""
    weights = weights_of(call)
    return (weights @ values_of(call)).to(call.query.dtype), weights


@torch.no_grad()
def attend_in_full(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query key"]]:
    """Output and weights of a call, without gradients."""
    return attended(call)


class RowWeights(NamedTuple):
    """Some rows of a call, written out."""

    weights: Float[Tensor, "batch head row key"]  # 0 where masked; a bias of -inf or near it masks too
    allowed: Float[Tensor, "batch head row key"]  # where it may attend


@torch.no_grad()
def row_weights(call: AttentionCall, rows: slice, dtype: torch.dtype = torch.float32) -> RowWeights:
    """Write out the weights of some rows, in memory that grows with their number alone."""
    scores = scores_of(call, rows).to(dtype)
    allowed = ~(scores <= torch.finfo(dtype if call.bias is None else call.bias.dtype).min / 2)  # NaN shows
    return RowWeights(softmax_of(call, scores.masked_fill(~allowed, -torch.inf)), allowed)
