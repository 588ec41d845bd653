"""The shift between queries and keys: an estimate by frequency, and one by offset."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope.explanation.arrays.correlation import Mode, profile_agreement
from attnscope.explanation.arrays.correlation import cross_correlation as correlation_of_head
from attnscope.explanation.arrays.correlation import cross_spectrum as spectrum_of_head
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.evidence import Layer, inputs_of, over_heads
from attnscope.explanation.study import Picture, Section, Study, analysis, lacks_bilinear_scores
from attnscope.options import Count

SHIFT = Section(
    "shift",
    "The shift between queries and keys",
    "If keys are the queries moved by a fixed number of tokens, the head attends to a fixed offset. The figures "
    "estimate this shift in two ways, from the scores before the mask. Masked offsets are grey and have no peaks.",
)


@analysis(
    "cross_spectrum",
    "Offset by frequency",
    "Cross-spectrum",
    needs=(lacks_bilinear_scores,),
    section=SHIFT,
    pictures=(
        Picture(
            "cross-spectrum",
            "Offset by frequency",
            "Each disc is a frequency. Discs at one height favour the same offset; large, dark discs count most. "
            "Beyond the dashed curves, a phase gives the offset only up to whole periods.",
            draw="attnscope.results.figures.shifts:cross_spectrum_offsets",
            of="heads",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
def cross_spectrum(study: Study, *, band: tuple[int, int] | None = None) -> xr.Dataset:
    """Shift between queries and keys by frequency, free of any completion of R, for all heads.

    See mathematics.md, Cross-spectrum. On the means of X over texts; biases change none of it, as their columns
    are constant and have no frequency.

    Parameters
    ----------
    band
        First and last frequency that estimate the shift, cycles per window.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.correlation.cross_spectrum`, with the dimensions ``layer, head``.
    """
    band = band or study.frequencies
    return over_heads(
        study.evidence,
        lambda layer, head: spectrum_of_head(*inputs_of(layer, head), band=band, offsets=layer.reach.offsets),
    )


@analysis(
    "cross_correlation",
    "Scores along offsets",
    "Cross-correlation",
    needs=(lacks_bilinear_scores,),
    section=SHIFT,
    pictures=(
        Picture(
            "cross-correlations",
            "Scores along offsets",
            "Above: each leading column. Below: their sum, weighted by singular values. Waves of several periods add "
            "up near one offset and cancel elsewhere.",
            draw="attnscope.results.figures.shifts:cross_correlations",
            of="heads",
        ),
        Picture(
            "peak-agreement",
            "Do scores predict weights?",
            "Left: the share of heads whose mean scores and mean weights peak at the same offset (dashed: with the "
            "scores of the layer's other heads). Right: the rank correlation of both profiles over visible offsets. "
            "Heads with nearly uniform attention can agree without favouring an offset.",
            draw="attnscope.results.figures.explain:peak_agreement",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
def cross_correlation(study: Study, *, mode: Mode = "centre_k", columns: Count = 20) -> xr.Dataset:
    """Cross-correlation of query and key columns over offsets, and its weighted sum, for all heads.

    See mathematics.md, Cross-correlation, and Scores and weights: each head's mean weight profile is compared with
    the profile of its scores.

    Parameters
    ----------
    mode
        See `attnscope.explanation.arrays.correlation.cross_correlation`.
    columns
        Number of leading columns in the result.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.correlation.cross_correlation` of the leading columns, with the dimensions
        ``layer, head``, and the variables of `attnscope.explanation.arrays.correlation.profile_agreement`.
    """

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        states, query, key = inputs_of(layer, head)
        widest = layer.band_sums[0].shape[-1] // 2
        half = min(widest, len(states) - 1)  # beyond, a window has no pair of tokens
        parts = reparametrize(query, key)
        correlation = correlation_of_head(
            states @ parts.query, states @ parts.key, parts.values, mode=mode, near=half, offsets=layer.reach.offsets
        )
        near = correlation.trace_mean.sel(offset=slice(-half, half)).values
        weights = layer.profiles.mean(0)[head][widest - half : widest + half + 1]
        agreement = profile_agreement(weights, near, band=half, offsets=layer.reach.offsets)
        leading = correlation.isel(column=slice(columns))
        leading = leading.assign_coords(column=np.arange(leading.sizes["column"]))  # ranks may differ
        return leading.merge(agreement, combine_attrs="drop")

    return over_heads(study.evidence, of_head)
