"""What each token of one text receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.load import load_model
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.reading import TextModelOptions
from attnscope.capture.watch import Site
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.sums import column_sums
from attnscope.measure.raw import ChosenHeads, first_window, observe_window
from attnscope.measure.windows import window_length
from attnscope.support.arguments import validated
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.read.encoded import Sources


@validated
@torch.no_grad()
def received(
    model: Model | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    layer: int | None = None,
    head: int | None = None,
    observation: int | None = None,
    window: int | None = None,
    progress: Tell | None = None,
    **options: Unpack[TextModelOptions],
) -> xr.DataArray:
    r"""Attention received by each token of a text: :math:`\sum_i A_{ij}` over all queries, or over the last ones.

    Exact, and in a memory that grows with the length of the text, not with its square: fit for the longest window.

    Parameters
    ----------
    model
        See `attnscope.scan`.
    texts
        One text, or its token ids; of a long one the first window is taken.
    targets
        What the decoder of an encoder-decoder reads; by default what the encoder reads.
    layer, head
        Which layer and head; by default all. Attention calls are counted from 0.
    observation
        Queries at the end of the window that alone count, the observation window of methods that drop keys (SnapKV, Li
        et al. 2024); by default all count.
    window
        Tokens of the window; by default what the model takes.
    progress
        Called with a `Progress` before the model is loaded, before it reads, and at the end.

    Returns
    -------
    xarray.DataArray
        ``(layer, head, key)``, in queries, float64, without the dimension of what was chosen; coordinate ``key_token``.
        It adds up to the number of queries (less, where a head has a learned sink).

    Raises
    ------
    AttnscopeError
        If several texts are given, there is no such layer or head, or `observation` is below 1.

    Examples
    --------
    >>> received_weights = received("bundled", "The tide comes in twice a day.", layer=0, head=3)
    >>> received_weights.dims, round(float(received_weights.sum()), 4) == received_weights.sizes["key"]
    (('key',), True)
    >>> most = received_weights.sortby(received_weights, ascending=False)[:2]  # the keys that receive most
    >>> most.key_token.shape
    (2,)
    """
    heads = ChosenHeads(layer, head)
    reject_modalities("received", MODEL if model is None else model, texts, revision=options["revision"])
    check_whole(1, observation=observation)
    tell = progress or no_progress
    tell(Progress("loading the model", 0.0))
    loaded = load_model(model, **options)
    tell(Progress("received", 0.5))
    read = first_window(loaded, texts, targets, window_length(loaded, window))

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, rows = measure(call, Need())
        if heads.has(site, call):
            heads.add(site, column_sums(call, rows.log_sum_exp, last=observation)[0])
        return output

    observe_window(loaded, read, observe)
    tell(Progress("received", 1.0))
    beside, has_decoder = read.target or read, bool(loaded.model.config.is_encoder_decoder)
    sides = {site.kind == "causal" and has_decoder for site, _ in heads.layers}
    if len({sums.shape[1] for _, sums in heads.layers}) > 1 or (len(sides) > 1 and beside is not read):
        raise AttnscopeError(
            "the layers of this encoder-decoder have keys of two texts: choose one (layer=), or leave out targets"
        )
    tokens = np.array((beside if sides == {True} else read).tokens, dtype=object)
    words = {"long_name": "Sum of the weights on each key", "units": "queries"}
    return heads.labelled("received", ("key",), {"key_token": ("key", tokens)}, words)
