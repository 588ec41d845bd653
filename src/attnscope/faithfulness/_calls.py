"""The weights of an attention call, written out: whole and in the way of gradients, or some rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attention import AttentionCall, masked_softmax

if TYPE_CHECKING:
    from collections.abc import Iterator

_WEIGHTS_AT_ONCE = 1 << 22  # 16 MiB in float32, all heads of some rows


def weights_of(call: AttentionCall, rows: slice = slice(None)) -> Float[Tensor, "batch head row key"]:
    """A of all heads of a call: softmax of scale, soft cap, bias, mask and sinks; float32 or wider.

    Parameters
    ----------
    call
        The attention call. Gradients go through it.
    rows
        Which queries, without a step; by default all.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> weights_of(AttentionCall(x, x[:, :1], x[:, :1], scale=1.0, causal=True), slice(1, 2))[0, 1].tolist()
    [[0.5, 0.5, 0.0]]
    """
    wide = torch.promote_types(call.query.dtype, torch.float32)
    first, last, _ = rows.indices(call.query.shape[2])
    query, key = call.query[:, :, first:last].to(wide), call.key.to(wide)
    grouped = query.unflatten(1, (key.shape[1], call.group))
    scores = (call.scale * grouped @ key[:, :, None].transpose(-2, -1)).flatten(1, 2)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias[:, :, first:last].to(wide)
    mask = None if call.mask is None else call.mask[:, :, first:last]
    if call.causal:
        index = torch.arange(key.shape[2], device=key.device)
        past = index <= torch.arange(first, last, device=key.device)[:, None]
        mask = past if mask is None else mask & past
    sinks = None if call.sinks is None else call.sinks.to(wide)[:, None, None]
    return masked_softmax(scores, mask, sinks)


def weight_tiles(call: AttentionCall) -> Iterator[tuple[slice, Float[Tensor, "head row key"]]]:
    """A of the first text, so many rows of all heads at a time that no layer's matrices are held.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> [(rows.start, rows.stop, tuple(tile.shape)) for rows, tile in weight_tiles(AttentionCall(x, x, x, scale=1.0))]
    [(0, 3, (2, 3, 3))]
    """
    _, heads, queries, _ = call.query.shape
    height = max(1, _WEIGHTS_AT_ONCE // (heads * call.key.shape[2]))
    for first in range(0, queries, height):
        rows = slice(first, min(queries, first + height))
        yield rows, weights_of(call, rows)[0]


def values_of(call: AttentionCall) -> Float[Tensor, "batch head key value_width"]:
    """V of every head, where several share one too; float32 or wider.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> values_of(AttentionCall(x, x[:, :1], x[:, :1], scale=1.0)).shape
    torch.Size([1, 2, 3, 4])
    """
    wide = torch.promote_types(call.value.dtype, torch.float32)
    return call.value.to(wide).repeat_interleave(call.group, 1)


def attended(
    call: AttentionCall,
) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query key"]]:
    """Output, in the query's type, and weights of a call, with gradients from one to the other.

    Examples
    --------
    >>> x = torch.ones(1, 1, 2, 3, requires_grad=True)
    >>> output, weights = attended(AttentionCall(x, x, x, scale=1.0))
    >>> torch.autograd.grad(output.sum(), weights)[0].tolist()
    [[[[3.0, 3.0], [3.0, 3.0]]]]
    """
    weights = weights_of(call)
    return (weights @ values_of(call)).to(call.query.dtype), weights


@torch.no_grad()
def output_by_rows(call: AttentionCall) -> Float[Tensor, "1 head query value_width"]:
    """The output of a call of one text, in the query's type, with no more weights in memory than `weight_tiles` makes.

    On short texts this takes a fraction of what `attnscope.attention.output_of` does, which is made for long ones.

    Examples
    --------
    >>> x = torch.ones(1, 1, 2, 3)
    >>> output_by_rows(AttentionCall(x, x, x, scale=1.0)).tolist()
    [[[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]]
    """
    values = values_of(call)[0]
    return torch.cat([tile @ values for _, tile in weight_tiles(call)], 1)[None].to(call.query.dtype)


def visible_keys(call: AttentionCall, head: int) -> Bool[Tensor, "query key"]:
    """Which keys the queries of one head may look at, in the first text.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 3)
    >>> visible_keys(AttentionCall(x, x, x, scale=1.0, causal=True), 0).tolist()
    [[True, False], [True, True]]
    """
    return call.allowed(0, head)


def band_of(
    matrix: Float[Tensor, "*head row key"], first: int, band: int
) -> Float[Tensor, "*head row offset"]:
    """The entries of rows at offsets ``-band..band`` from themselves, 0 beyond the text; `first` is the first row.

    Examples
    --------
    >>> band_of(torch.tensor([[1.0, 2.0, 3.0]]), 2, 1).tolist()
    [[2.0, 3.0, 0.0]]
    """
    rows, keys = matrix.shape[-2:]
    offset = torch.arange(-band, band + 1, device=matrix.device)
    at = torch.arange(first, first + rows, device=matrix.device)[:, None] + offset
    there = (at >= 0) & (at < keys)
    return matrix.gather(-1, at.clamp(0, keys - 1).expand(*matrix.shape[:-2], -1, -1)) * there
