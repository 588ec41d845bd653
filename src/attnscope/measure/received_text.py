"""What each token of one text receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import forward
from attnscope.capture.load import load_model
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.processors import Tokenizer
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure, output_of
from attnscope.kernels.sums import column_sums
from attnscope.measure.raw import first_window
from attnscope.measure.windows import window_length
from attnscope.store.arrays import padded_heads
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
    tokenizer: Tokenizer = None,
    window: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Tell | None = None,
) -> xr.DataArray:
    r"""Attention received by each token of a text: :math:`\sum_i A_{ij}` over all queries, or over the last ones.

    Exact, and in a memory that grows with the length of the text, not with its square: fit for the longest window.

    Parameters
    ----------
    model, tokenizer, device, dtype, revision, trust_remote_code
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
    check_whole(0, layer=layer, head=head)
    reject_modalities("received", MODEL if model is None else model, texts, revision=revision)
    check_whole(1, observation=observation)
    tell = progress or no_progress
    tell(Progress("loading the model", 0.0))
    loaded = load_model(
        model,
        tokenizer=tokenizer,
        revision=revision,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )
    tell(Progress("received", 0.5))
    read = first_window(loaded, texts, targets, window_length(loaded, window))
    beside = read.target or read
    weights: dict[int, tuple[Site, np.ndarray]] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        if layer is not None and site.index != layer:
            return output_of(call)
        heads = call.query.shape[1]
        if head is not None and head >= heads:
            raise AttnscopeError(
                f"there is no head {head} in layer {site.index}: it has {heads}, counted from 0"
            )
        output, rows = measure(call, Need())
        sums = column_sums(call, rows.log_sum_exp, last=observation)[0]
        weights[site.index] = site, (sums if head is None else sums[head : head + 1]).cpu().numpy()
        return output

    inputs = {"input_ids": torch.tensor([list(read.ids)], device=device_of(loaded.model))}
    has_decoder = bool(loaded.model.config.is_encoder_decoder)
    if has_decoder:
        inputs["decoder_input_ids"] = torch.tensor([list(beside.ids)], device=device_of(loaded.model))
    with borrowed(loaded.model), watching(loaded.model, observe):
        forward(loaded.model, inputs, lambda _: read.source)
    tell(Progress("received", 1.0))
    if layer is not None and not weights:
        raise AttnscopeError(
            f"there is no attention layer {layer}: give a smaller number; they are counted from 0"
        )
    layers = [weights[index] for index in sorted(weights)]
    sides = {site.kind == "causal" and has_decoder for site, _ in layers}
    if len({sums.shape[1] for _, sums in layers}) > 1 or (len(sides) > 1 and beside is not read):
        raise AttnscopeError(
            "the layers of this encoder-decoder have keys of two texts: choose one (layer=), or leave out targets"
        )
    keys = beside if sides == {True} else read
    array = xr.DataArray(
        padded_heads([sums for _, sums in layers]),
        dims=("layer", "head", "key"),
        coords={
            **layer_coordinates([site for site, _ in layers]),
            "key_token": ("key", np.array(keys.tokens, dtype=object)),
        },
        name="received",
        attrs={"long_name": "Sum of the weights on each key", "units": "queries"},
    )
    array = array.assign_coords(head=np.arange(array.sizes["head"]) if head is None else [head])
    chosen = ({"layer": 0} if layer is not None else {}) | ({} if head is None else {"head": 0})
    return array.isel(chosen)
