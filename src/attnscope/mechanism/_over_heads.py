"""An analysis of one head over all heads of a model, stacked along ``layer`` and ``head``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
import xarray as xr

from attnscope._arguments import typed
from attnscope.mechanism.arrays import append_one
from attnscope.mechanism.evidence import Evidence, Layer
from attnscope.store import stacked

OneHead = Callable[[Layer, int], xr.Dataset]


def over_heads(evidence: Evidence, analyse: OneHead) -> xr.Dataset:
    """Stack a head's analysis over all layers with bilinear scores and all their heads.

    ``lowest_offset`` and ``highest_offset``, coordinates over ``layer``, are what the mask lets the heads look at.
    """
    layers = evidence.bilinear
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # LAPACK and FFT leave Python's lock free
        heads = [list(pool.map(partial(analyse, layer), range(layer.heads))) for layer in layers]
    rows = [stacked(of_layer, "head", np.arange(len(of_layer))) for of_layer in heads]
    names = np.array([layer.site.name for layer in layers], dtype=object)
    return stacked(rows, "layer", [layer.site.index for layer in layers]).assign_coords(
        layer_name=("layer", names),
        lowest_offset=("layer", [layer.reach.offsets[0] for layer in layers]),
        highest_offset=("layer", [layer.reach.offsets[1] for layer in layers]),
    )


@typed
def inputs_of(layer: Layer, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean X over texts and a column of ones; W_Q and W_K with their biases below.

    Parameters
    ----------
    layer
        Evidence of the layer.
    head
        Number of the head, from 0.

    Returns
    -------
    tuple of numpy.ndarray
        X ``(position, width + 1)``, W_Q and W_K ``(width + 1, r)``.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> from attnscope.mechanism.evidence import gather
    >>> model = GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=9, n_positions=4)).eval()
    >>> (layer,) = gather(model, [[5, 6, 7], [7, 8, 5]], band=2).layers
    >>> x, query, key = inputs_of(layer, 1)
    >>> x.shape, query.shape, key.shape  # 8 columns, and one of ones for the biases
    ((3, 9), (9, 4), (9, 4))
    """
    return append_one(layer.moments.position_mean), *layer.matrices(head, affine=True)
