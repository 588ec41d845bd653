"""Attribution patching: what patching each head would do, estimated from gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr

from attnscope._arguments import typed
from attnscope.capture import Tokenizer, borrowed, borrowing, layer_coordinates, load_model
from attnscope.faithfulness._runs import Direction, encoded_pairs
from attnscope.faithfulness.passes import HeadGradients, answers_difference, stacked_passes
from attnscope.store import padded_heads

if TYPE_CHECKING:
    from attnscope.capture import LoadedModel, Model
    from attnscope.faithfulness.passes import EncodedPairs, Pair


@typed
@borrowing
def attribution_patch(
    model: Model,
    pairs: Iterable[Pair],
    *,
    tokenizer: Tokenizer = None,
    by_position: bool = False,
    direction: Direction = "noising",
    steps: int = 1,
) -> xr.Dataset:
    """Estimate patching every head by one backward pass, or by several on the way between the inputs (EAP-IG).

    Parameters
    ----------
    model, pairs, tokenizer, by_position, direction
        See `activation_patch`.
    steps
        Gradients taken between the embeddings of both texts; 1 takes it at the text that is patched (Nanda 2023), more
        are EAP-IG's (Hanna, Pezzelle & Belinkov 2024), by the midpoint rule.

    Returns
    -------
    xarray.Dataset
        ``estimate`` ``(pair, layer, head[, position])``: change of the logit difference, to first order.

    Examples
    --------
    >>> from attnscope.faithfulness import Pair
    >>> pairs = [Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")]
    >>> attribution_patch("bundled", pairs).estimate.dims
    ('pair', 'layer', 'head')
    """
    loaded = load_model(model, tokenizer=tokenizer)
    encoded = encoded_pairs(loaded, pairs)
    return estimated(loaded, encoded, by_position=by_position, direction=direction, steps=steps).assign_attrs(
        model=loaded.name
    )


def estimated(
    loaded: LoadedModel, encoded: EncodedPairs, *, by_position: bool, direction: Direction, steps: int
) -> xr.Dataset:
    """The estimates of each pair; see `attribution_patch`."""
    model = loaded.model
    encoded = (
        encoded if direction == "noising" else encoded.turned()
    )  # from here on, clean is what is patched
    with borrowed(model):
        with stacked_passes(model, skips=False) as passes:
            passes.plain({"input_ids": encoded.corrupted}, encoded.places)
            others = passes.outputs
            passes.plain({"input_ids": encoded.clean}, encoded.places)
            own, sites = passes.outputs, passes.sites
        shares = [None] if steps == 1 else [(step + 0.5) / steps for step in range(steps)]
        slopes = [answers_difference(HeadGradients(model), encoded, share) for share in shares]
    summed = (3,) if by_position else (2, 3)
    layers: list[np.ndarray] = []
    for call, (patched, donor) in enumerate(zip(own, others, strict=True)):
        gradient = torch.stack([step[call] for step in slopes]).mean(0)
        layers.append(((donor - patched) * gradient).sum(summed).double().cpu().numpy())
    estimates = np.moveaxis(padded_heads(layers, axis=1), 0, 1)
    dims = ("pair", "layer", "head", *(["position"] if by_position else []))
    attrs = {"long_name": "Change of the answer minus the wrong answer, estimated", "units": "logits"}
    return xr.Dataset(
        {"estimate": (dims, estimates, attrs)},
        coords={**layer_coordinates(sites), "head": np.arange(estimates.shape[2])},
        attrs={"steps": steps, "direction": direction},
    )
