"""Weights that a module returns in another form than (batch, head, query, key), put into that form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnscope.capture._heuristics import said_heads, weights_layout

_DIMENSIONS = {"heads last": 4, "heads in batch": 3, "band": 4, "blocks": 5}


def as_weights(module: nn.Module, tensor: Tensor, tokens: int | None) -> Tensor:
    """Weights as ``(batch, head, query, key)``; of a text that a module pads, those of its tokens.

    Examples
    --------
    >>> as_weights(nn.Identity(), torch.zeros(1, 2, 3, 4), tokens=3).shape
    torch.Size([1, 2, 3, 4])
    """
    layout = weights_layout(module)
    if layout is None or tensor.ndim != _DIMENSIONS[layout]:
        return tensor
    if layout == "heads last":  # (query, key, batch, head)
        return tensor.permute(2, 3, 0, 1)
    if layout == "heads in batch":  # (batch x head, query, key)
        return tensor.unflatten(0, (-1, said_heads(module)[0]))
    if layout == "band":  # (batch, query, head, offset)
        return band_as_matrix(tensor.transpose(1, 2))[..., :tokens, :tokens]
    # (batch, block, head, query, key of three blocks)
    return blocks_as_matrix(tensor.transpose(1, 2))[..., :tokens, :tokens]


def band_as_matrix(band: Tensor) -> Tensor:
    """Spread ``(batch, head, query, offset)``, offsets from -w to w, over ``(batch, head, query, key)``.

    Examples
    --------
    >>> band_as_matrix(torch.tensor([[[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]]])).tolist()
    [[[[0.5, 0.5], [1.0, 0.0]]]]
    """
    *_, queries, width = band.shape
    reach = width // 2
    place = torch.arange(queries, device=band.device)[:, None] + torch.arange(width, device=band.device)
    wide = band.new_zeros(*band.shape[:-1], queries + 2 * reach)
    wide.scatter_(-1, place.expand(band.shape), band)
    return wide[..., reach : reach + queries]


def blocks_as_matrix(blocks: Tensor) -> Tensor:
    """Spread ``(batch, head, block, query, key)``, keys of the block before, its own and the next, over the text.

    Examples
    --------
    >>> blocks_as_matrix(torch.tensor([[[[[0.0, 0.5, 0.5]], [[0.5, 0.5, 0.0]]]]])).tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    batch, heads, count, size, _ = blocks.shape
    wide = blocks.new_zeros(batch, heads, count, size, (count + 2) * size)
    for block in range(count):
        wide[:, :, block, :, block * size : (block + 3) * size] = blocks[:, :, block]
    return wide.flatten(2, 3)[..., size:-size]
