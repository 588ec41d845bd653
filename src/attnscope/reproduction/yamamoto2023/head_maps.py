"""Weights of a few heads among the first tokens of one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.tokens import read, token_ids
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.measure.maps import weight_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def head_maps(
    model: PreTrainedModel, ids: Sequence[int], tokens: Sequence[str], heads: Sequence[tuple[int, int]], *, rows: int
) -> xr.Dataset:
    """All weights in the first rows of each head (call, head), over ``shown``: what `weight_maps` draws."""
    rows = min(rows, len(ids))
    weights: dict[tuple[int, int], np.ndarray] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        for layer, head in heads:
            if layer == site.index:
                weights[layer, head] = torch.cat(list(weight_rows(call, head, rows))).cpu().numpy()
        return output_of(call)

    with watching(model, observe):
        read(model, token_ids([ids]))
    weight = np.stack([weights[head] for head in heads])
    dims = ("shown", "query", "rank")
    return xr.Dataset(
        {"key": (dims, np.broadcast_to(np.arange(weight.shape[-1]), weight.shape)), "weight": (dims, weight)},
        coords={
            "token": ("query", np.array(tokens[:rows], dtype=object)),
            "layer": ("shown", [layer for layer, _ in heads]),
            "head": ("shown", [head for _, head in heads]),
        },
    )
