"""What a head looks at by its weights, whether its scores say the same, and how often they would by accident."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float

from attnscope.store import stacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.mechanism.evidence import Evidence, Layer

ERROR = 0.01  # probability that one head or more of a model without preferences seems to have one
SAME = 0.5  # tokens: readings that lie closer together find the same offset
MOST = 0.5  # share of position from which a head's scores are more position than all else
READINGS = ("offset_of_spectrum", "offset_of_correlation")


def weight_peaks(evidence: Evidence) -> xr.Dataset:
    """Where the weights of each head are largest, and whether that is more than chance: dimensions ``layer, head``.

    ``peak_weight``, the largest mean weight within the band; ``offset_of_weights``, its offset, NaN where the weights
    go on rising beyond the band; ``weight_level``, what a mean weight at that offset must exceed to be more than chance
    (see `Reach.level`), over all heads and offsets of the model; ``prefers``, whether it does; ``lowest_offset`` and
    ``highest_offset``, what the mask allows; ``weights_of``, the first layer of the same query and key matrices.
    """
    tests = sum(layer.band_sums[0].size for layer in evidence.layers)
    heads = max(layer.heads for layer in evidence.layers)
    parts = [_of_layer(layer, ERROR / tests).reindex(head=np.arange(heads)) for layer in evidence.layers]
    peaks = stacked(parts, "layer", [layer.site.index for layer in evidence.layers])
    peaks["prefers"] = (peaks.peak_weight > peaks.weight_level) & np.isfinite(peaks.offset_of_weights)
    for name, long_name, units in (
        ("offset_of_weights", "Offset of the largest mean weight", "tokens"),
        ("peak_weight", "Largest mean weight", "weight"),
        ("weight_level", "Mean weight that chance gives at that offset", "weight"),
    ):
        peaks[name].attrs = {"long_name": long_name, "units": units}
    lowest, highest = zip(*[layer.reach.offsets for layer in evidence.layers], strict=True)
    return peaks.assign_coords(
        lowest_offset=("layer", list(lowest)),
        highest_offset=("layer", list(highest)),
        weights_of=("layer", [_first_alike(layer, evidence.layers) for layer in evidence.layers]),
    )


def _first_alike(layer: Layer, layers: Sequence[Layer]) -> int:
    """Number of the first layer that has the query and key matrices of this one, where layers share them (ALBERT)."""
    return next(other.site.index for other in layers if _same_weights(layer, other))


def _same_weights(layer: Layer, other: Layer) -> bool:
    if layer.site.name == other.site.name:
        return True
    one, two = layer.projections, other.projections
    return (
        one.query is not None
        and two.query is not None
        and one.key is not None
        and two.key is not None
        and np.array_equal(one.query, two.query)
        and np.array_equal(one.key, two.key)
    )


def _of_layer(layer: Layer, chance: float) -> xr.Dataset:
    profiles = layer.profiles.mean(0)
    half = profiles.shape[-1] // 2
    offset = np.arange(-half, half + 1)
    low, high = layer.reach.offsets
    at = profiles.argmax(-1)
    # beyond the mask all weights are 0, and known; beyond the band they are not
    known = (np.abs(offset) < half) | (offset == low) | (offset == high)
    return xr.Dataset(
        {
            "offset_of_weights": ("head", np.where(known[at], offset[at], np.nan)),
            "peak_weight": ("head", profiles.max(-1)),
            "weight_level": ("head", layer.reach.level(chance)[at]),
        },
        coords={"head": np.arange(layer.heads)},
    )


def judged(readings_of: xr.Dataset) -> xr.Dataset:
    """Add whether each head is positional, whether its readings agree, and how often those of other heads would.

    Parameters
    ----------
    found
        With ``prefers``, ``offset_of_weights``, the readings of the scores and, where known, ``position_share``.

    Returns
    -------
    xarray.Dataset
        With ``positional`` (it prefers an offset, and position gives more than half of its scores' profile), ``asked``
        (it is positional, and both readings find an offset), ``agree`` (asked, and both lie within half a token of the
        weights' offset) and ``chance``, how often the readings of another head lie so near: of all other heads that
        have both, counting one more that does, since few heads tell no small chance (NaN where there is no other, and
        of heads that are not positional). ``offset_of_weights`` becomes NaN where a head prefers none.

    Examples
    --------
    >>> head = lambda values: ("head", np.array(values))
    >>> verdict = judged(
    ...     xr.Dataset(
    ...         {
    ...             "prefers": head([True, True, True]),
    ...             "offset_of_weights": head([-1.0, 1.0, 1.0]),
    ...             "offset_of_spectrum": head([-1.1, 0.9, 5.0]),
    ...             "offset_of_correlation": head([-1.0, 1.2, np.nan]),
    ...         }
    ...     )
    ... )
    >>> verdict.agree.values.tolist(), verdict.chance.values.tolist()
    ([True, True, False], [0.5, 0.5, 0.6666666666666666])
    >>> verdict.asked.values.tolist()  # one reading of the last head finds nothing
    [True, True, False]
    """
    share = readings_of.get("position_share")
    by_position = True if share is None else share > MOST
    weights = readings_of.offset_of_weights.values
    readings = np.stack([readings_of[name].values for name in READINGS], -1)
    dims = readings_of.prefers.dims
    positional = readings_of.prefers & by_position
    asked = positional & xr.DataArray(np.isfinite(readings).all(-1), dims=dims)
    chance = _by_accident(weights.ravel(), readings.reshape(-1, len(READINGS))).reshape(weights.shape)
    judged_of = readings_of.assign(
        offset_of_weights=readings_of.offset_of_weights.where(readings_of.prefers),
        positional=positional,
        asked=asked,
        agree=asked & xr.DataArray(_near(weights, readings), dims=dims),
        chance=xr.DataArray(chance, dims=dims).where(positional),
    )
    judged_of.asked.attrs = {"long_name": "Positional, and both readings find an offset"}
    judged_of.agree.attrs = {
        "long_name": "Both readings find the offset of the weights, of heads that are asked"
    }
    judged_of.chance.attrs = {"long_name": "Chance that another head's scores would agree", "units": "share"}
    return judged_of


def _near(weights: np.ndarray, readings: np.ndarray) -> Bool[np.ndarray, "*head"]:
    return np.asarray((np.abs(readings - weights[..., None]) <= SAME).all(-1))


def _by_accident(
    weights: Float[np.ndarray, " head"], readings: Float[np.ndarray, "head reading"]
) -> Float[np.ndarray, " head"]:
    read = np.isfinite(readings).all(-1)
    near = _near(weights[:, None], readings[None])
    np.fill_diagonal(near, val=False)
    others = read.sum() - read
    return np.where((others > 0) & np.isfinite(weights), (1 + near.sum(1)) / (1 + others), np.nan)
