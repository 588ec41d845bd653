"""The attention map of one window, bounded: the largest weights of each row and the rest as one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from attnscope.attention import Need, attend, measure

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Site
    from attnscope.corpus import Window

BUDGET = 2_400_000  # listed weights over all heads: about 7 MB on disk and less than that in a page


class MapObserver:
    """Writes out the weights row block by row block and keeps the largest of each row."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.found: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        output = measure(call, Need())[0]
        heads = [top_weights(call, head, self.rank) for head in range(call.query.shape[1])]
        keys, weights, rest = (np.stack(part) for part in zip(*heads, strict=True))
        self.found[site.index] = (keys, weights, rest)
        return output


def top_weights(
    call: AttentionCall, head: int, rank: int, rows_at_once: int = 512
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Largest weights of each row of one head of the first text: keys, weights and the mass not listed."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    at = head // call.group
    bias = None if call.bias is None else call.bias[0, min(head, call.bias.shape[1] - 1)]
    for first in range(0, call.query.shape[2], rows_at_once):
        rows = slice(first, first + rows_at_once)
        _, weights = attend(
            call.query[0, head, rows].float(),
            call.key[0, at].float(),
            call.value[0, at].float(),
            call.allowed(0, head, rows),
            call.scale,
            bias=None if bias is None else bias[rows].float(),
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks[head].float().view(1, 1),
        )
        top = weights.topk(min(rank, weights.shape[-1]), dim=-1)
        parts.append((top.indices, top.values, (weights.sum(-1) - top.values.sum(-1)).clamp_min(0)))
    keys, weights, rest = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    return keys.astype(np.int32), weights.astype(np.float32), rest.astype(np.float32)


def sample_rank(layers: int, heads: int, tokens: int) -> int:
    """How many weights of each row the budget allows.

    Examples
    --------
    >>> sample_rank(12, 12, 512), sample_rank(3, 4, 128)
    (32, 128)
    """
    return max(4, min(tokens, BUDGET // (layers * heads * tokens)))


def sample_dataset(observer: MapObserver, window: Window, *, with_decoder: bool = False) -> xr.Dataset:
    """Gather the maps of all layers: dimensions ``layer, head, query, rank``.

    ``token`` and ``special (query)`` are of the text; with a decoder beside the encoder, ``target_token`` and
    ``target_special (query)`` are of what it reads. The attributes ``tokens`` and ``target_tokens`` say how many there
    are: beyond, rows are padding.
    """
    layers = [observer.found[index] for index in sorted(observer.found)]
    heads = max(keys.shape[0] for keys, _, _ in layers)
    queries, rank = (max(keys.shape[axis] for keys, _, _ in layers) for axis in (1, 2))
    shape = (len(layers), heads, queries, rank)
    key, weight = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    rest = np.zeros(shape[:3], np.float32)
    for index, (keys, weights, remainder) in enumerate(layers):
        part = (index, slice(keys.shape[0]), slice(keys.shape[1]))
        key[*part, : keys.shape[2]] = keys
        weight[*part, : keys.shape[2]] = weights
        rest[part] = remainder
    dims = ("layer", "head", "query", "rank")
    found = xr.Dataset(
        {"key": (dims, key), "weight": (dims, weight), "rest": (dims[:3], rest)},
        attrs={"source": window.source, "start": window.start},
    )
    texts = {"": window} | ({"target_": window.target or window} if with_decoder else {})
    for side, text in texts.items():
        beyond = queries - len(text)
        found = found.assign_coords(
            {
                f"{side}token": ("query", np.array([*text.tokens, *[""] * beyond], dtype=object)[:queries]),
                f"{side}special": ("query", np.array([*text.special, *[False] * beyond])[:queries]),
            }
        ).assign_attrs({f"{side}tokens": min(queries, len(text))})
    return found
