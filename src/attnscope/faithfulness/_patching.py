"""Activation patching: what of one run, put into the other, moves the prediction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope._arguments import typed
from attnscope.capture import Tokenizer, borrowing, load_model
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._runs import (
    Direction,
    Runs,
    both_runs,
    differences,
    encoded_pairs,
    head_coordinates,
    with_recovered,
)
from attnscope.store import padded_heads

if TYPE_CHECKING:
    from attnscope.attention import AttentionCall
    from attnscope.capture import LoadedModel, Model
    from attnscope.faithfulness.passes import EncodedPairs, Pair

What = Literal["heads", "residual"]
WHATS: tuple[What, ...] = ("heads", "residual")


@typed
@borrowing
def activation_patch(
    model: Model,
    pairs: Iterable[Pair],
    *,
    tokenizer: Tokenizer = None,
    what: What = "heads",
    by_position: bool = False,
    direction: Direction = "denoising",
    variants: int | None = None,
) -> xr.Dataset:
    r"""Put activations of one run into the other, one at a time, and see which run's answer the model gives.

    `attnscope.patch` does this of many pairs with intervals, a run folder and a page.

    Parameters
    ----------
    model, tokenizer
        See `attnscope.scan`.
    pairs
        Clean and corrupted texts, all as long in tokens.
    what
        ``heads``: each head's output. ``residual``: the residual stream after each block, always by position.
    by_position
        Whether heads are patched at one position at a time, or at all.
    direction
        ``denoising``: clean activations go into the corrupted run (does this bring the answer back?); ``noising``: the
        other way round (does this break it?).
    variants
        Most variants side by side; by default as many as the device is quickest with.

    Returns
    -------
    xarray.Dataset
        ``difference`` ``(pair, layer, head[, position])`` or ``(pair, block, position)``: logit of the answer minus
        logit of the wrong one in the patched run, and ``recovered``: how far it went from the run that was patched (0)
        to the other (1), of the means over pairs. ``clean`` and ``corrupted`` ``(pair)`` are the differences of the two
        runs.

    Raises
    ------
    AttnscopeError
        What `EncodedPairs.of` and `intervene` raise, or if clean and corrupted texts give the same answers.

    Examples
    --------
    >>> from attnscope.faithfulness import Pair
    >>> pairs = [Pair("It was part<mask> the first.", "It was due<mask> the first.", " of", " to")]
    >>> activation_patch("bundled", pairs).difference.dims
    ('pair', 'layer', 'head')
    """
    loaded = load_model(model, tokenizer=tokenizer)
    encoded = encoded_pairs(loaded, pairs)
    pairs_patched = patched(
        loaded, encoded, what=what, by_position=by_position, direction=direction, variants=variants
    )
    if "position" in pairs_patched.dims:
        pairs_patched = pairs_patched.assign_coords(
            token=("position", np.array(encoded.labels(), dtype=object))
        )
    return with_recovered(pairs_patched).assign_attrs(model=loaded.name)


def patched(
    loaded: LoadedModel,
    encoded: EncodedPairs,
    *,
    what: What,
    by_position: bool,
    direction: Direction,
    variants: int | None = None,
    skips: bool = True,
) -> xr.Dataset:
    """The differences of each pair; see `activation_patch`."""
    with both_runs(loaded, encoded, direction, skips=skips) as runs:
        most = runs.variants(variants)
        if what == "residual":
            values = _states(runs, most)
            coords = {"block": np.arange(values.shape[1])}
            return differences(runs, ("block", "position"), values, direction, coords)
        values = _heads(runs, most, by_position=by_position)
        dims = ("layer", "head", *(["position"] if by_position else []))
        return differences(runs, dims, values, direction, head_coordinates(runs))


def _heads(runs: Runs, most: int, *, by_position: bool) -> np.ndarray:
    """``(pair, layer, head[, position])``."""
    count, length = runs.encoded.clean.shape
    layers: list[np.ndarray] = []
    for call, donor in enumerate(runs.donors):
        heads = donor.shape[1]
        cells = [
            (head, place) for head in range(heads) for place in (range(length) if by_position else [None])
        ]
        parts: list[Tensor] = []
        for first in range(0, len(cells), most):
            some = cells[first : first + most]

            def edit(_: AttentionCall, output: Tensor, some: object = some, donor: Tensor = donor) -> Tensor:
                output = output.clone()
                for variant, (head, place) in enumerate(some):  # pyright: ignore[reportArgumentType]
                    at = slice(None) if place is None else slice(place, place + 1)
                    output[variant, :, head, at] = donor[:, head, at]
                return output

            parts.append(runs.encoded.difference(runs.passes.run({call: edit}, len(some))))
        shape = (count, heads, *([length] if by_position else []))
        layers.append(torch.cat(parts).T.reshape(shape).double().cpu().numpy())
    return np.moveaxis(padded_heads(layers, axis=1), 0, 1)


def _states(runs: Runs, most: int) -> np.ndarray:
    """``(pair, block, position)``."""
    if not runs.donor_states:
        raise AttnscopeError(
            f"{type(runs.passes.model).__name__} has no list of blocks, so its residual stream is not found: patch its "
            "heads"
        )
    length = runs.encoded.clean.shape[1]
    blocks: list[np.ndarray] = []
    for block, donor in enumerate(runs.donor_states):
        parts: list[Tensor] = []
        for first in range(0, length, most):
            places = range(first, min(first + most, length))

            def edit(states: Tensor, places: range = places, donor: Tensor = donor) -> Tensor:
                states = states.clone()
                for variant, place in enumerate(places):
                    states[variant, :, place] = donor[:, place]
                return states

            parts.append(runs.encoded.difference(runs.passes.run({}, len(places), {block: edit})))
        blocks.append(torch.cat(parts).T.double().cpu().numpy())
    return np.stack(blocks, 1)
