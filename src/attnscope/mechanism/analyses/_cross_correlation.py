"""Scores along offsets, column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope._arguments import typed
from attnscope.checks import check_whole
from attnscope.mechanism._analysis import Analysis, Picture
from attnscope.mechanism._needs import BILINEAR_SCORES
from attnscope.mechanism._over_heads import inputs_of, over_heads
from attnscope.mechanism._study import studied, study
from attnscope.mechanism.analyses._cross_spectrum import SHIFT
from attnscope.mechanism.arrays import cross_correlation as correlation_of_head
from attnscope.mechanism.arrays import profile_agreement, reparametrize

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism._study import Study
    from attnscope.mechanism.arrays import Mode
    from attnscope.mechanism.evidence import Evidence, Layer

_COLUMNS = 20  # leading columns that are kept


@typed
def cross_correlation(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    mode: Mode = "centre_k",
    columns: int = _COLUMNS,
) -> xr.Dataset:
    """Cross-correlation of query and key columns over offsets, and its weighted sum, for all heads.

    See docs/mathematics.md, Cross-correlation, and Scores and weights: each head's mean weight profile is compared with
    the profile of its scores.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.mechanism.study`.
    mode
        See `attnscope.mechanism.arrays.cross_correlation`.
    columns
        Number of leading columns that are kept.

    Returns
    -------
    xarray.Dataset
        As `attnscope.mechanism.arrays.cross_correlation` of the columns kept, with the dimensions ``layer, head``: over
        ``offset`` (tokens) ``trace_mean``, over ``range`` ``trace_peak_offset`` (tokens); beside it what
        `attnscope.mechanism.arrays.profile_agreement` gives.

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has); if the mode is unknown, or there are fewer
        than two full windows.

    Examples
    --------
    >>> from attnscope import mechanism
    >>> mechanism.cross_correlation("bundled", limit=2).trace.dims
    ('layer', 'head', 'offset')
    """
    check_whole(1, columns=columns)
    given = study(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_heads(given.evidence, mode=mode, columns=columns)


def of_heads(evidence: Evidence, *, mode: Mode = "centre_k", columns: int = _COLUMNS) -> xr.Dataset:
    """`correlation_of_head` of every head: the leading columns and the weighted sum."""

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        states, query, key = inputs_of(layer, head)
        widest = layer.band_sums[0].shape[-1] // 2
        half = min(widest, len(states) - 1)  # beyond, a window has no pair of tokens
        parts = reparametrize(query, key)
        correlation = correlation_of_head(
            states @ parts.query,
            states @ parts.key,
            parts.values,
            mode=mode,
            near=half,
            offsets=layer.reach.offsets,
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
            (
                "Above, each leading column; below, their sum, weighted by singular values. Waves of "
                "several periods add up near one offset and cancel further away."
            ),
            draw="attnscope.figures.explain:cross_correlations",
            of="heads",
        ),
        Picture(
            "peak-agreement",
            "Do scores foretell weights?",
            (
                "All heads, by layer: how many weigh most the offset at which their mean scores are "
                "highest (dashed: with the scores of the layer's other heads), and how alike both "
                "profiles rank the offsets that the mask allows. Softmax lies between the two, so this "
                "is measured, not implied; where all weights are nearly equal it holds without any head"
                " preferring an offset."
            ),
            draw="attnscope.figures.explain:peak_agreement",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
