"""Scores along offsets, column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from attnscope.explanation.analyses.cross_spectrum import SHIFT
from attnscope.explanation.arrays.correlation import cross_correlation as correlation_of_head
from attnscope.explanation.arrays.correlation import profile_agreement
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.ranking import inputs_of, over_heads
from attnscope.explanation.study import BILINEAR_SCORES, Analysis, Picture, Reading, studied
from attnscope.support.arguments import Count, validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.arrays.correlation import Mode
    from attnscope.explanation.evidence import Evidence, Layer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

_COLUMNS = 20  # leading columns that are kept


@validated
def cross_correlation(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    mode: Mode = "centre_k",
    columns: Count = _COLUMNS,
    **reading: Unpack[Reading],
) -> xr.Dataset:
    """Cross-correlation of query and key columns over offsets, and its weighted sum, for all heads.

    See docs/mathematics.md, Cross-correlation, and Scores and weights: each head's mean weight profile is compared with
    the profile of its scores.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.
    mode
        See `attnscope.explanation.arrays.correlation.cross_correlation`.
    columns
        Number of leading columns in the result.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.correlation.cross_correlation` of the leading columns, with the dimensions
        ``layer, head``, and the variables of `attnscope.explanation.arrays.correlation.profile_agreement`.

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has); if the mode is unknown; if there are fewer
        than two full windows.
    """
    with studied(ANALYSIS, model, texts, reading) as study:
        return of_heads(study.evidence, mode=mode, columns=columns)


def of_heads(evidence: Evidence, *, mode: Mode = "centre_k", columns: int = _COLUMNS) -> xr.Dataset:
    """`correlation_of_head` of every head: the leading columns and the weighted sum."""

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

    return over_heads(evidence, of_head)


ANALYSIS = Analysis(
    "cross_correlation",
    "Scores along offsets",
    "Cross-correlation",
    lambda study: of_heads(study.evidence),
    needs=(BILINEAR_SCORES,),
    section=SHIFT,
    pictures=(
        Picture(
            "cross-correlations",
            "Scores along offsets",
            "Above, each leading column; below, their sum, weighted by singular values. Waves of several periods add"
            " up near one offset and cancel further away.",
            draw="attnscope.results.figures.shifts:cross_correlations",
            of="heads",
        ),
        Picture(
            "peak-agreement",
            "Do scores foretell weights?",
            "All heads, by layer: how many weigh most the offset at which their mean scores are highest (dashed: "
            "with the scores of the layer's other heads), and how alike both profiles rank the offsets that the mask"
            " allows. Softmax lies between the two, so this is measured, not implied; where all weights are nearly "
            "equal it holds without any head preferring an offset.",
            draw="attnscope.results.figures.verdict:peak_agreement",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
