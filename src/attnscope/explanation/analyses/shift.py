"""The shift between queries and keys: three estimates, and the controls that must lose it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnscope.explanation.analyses.verdict import best_heads, ranked_rows
from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.arrays.correlation import Mode, profile_agreement
from attnscope.explanation.arrays.correlation import cross_correlation as correlation_of_head
from attnscope.explanation.arrays.correlation import cross_spectrum as spectrum_of_head
from attnscope.explanation.arrays.decomposition import Completion, reparametrize
from attnscope.explanation.arrays.phase_map import completion_range
from attnscope.explanation.arrays.phase_map import phase_map as map_of_head
from attnscope.explanation.arrays.phase_map import shift_controls as controls_of_head
from attnscope.explanation.evidence import Evidence, Layer, inputs_of, over_heads
from attnscope.explanation.study import Picture, Section, Study, analysis, lacks_bilinear_scores
from attnscope.options import DRAWS, Count, Seed
from attnscope.support.checks import check_some, check_whole

SHIFT = Section(
    "shift",
    "The shift between queries and keys",
    "If keys are the queries moved by a fixed number of tokens, the head attends to a fixed offset. The figures "
    "estimate this shift in three ways, from the scores before the mask. Masked offsets are grey and have no peaks.",
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
    "phase_map",
    "The rotation from queries to keys",
    "Phase map",
    needs=(lacks_bilinear_scores,),
    section=SHIFT,
    pictures=(
        Picture(
            "phase-maps",
            "The rotation from queries to keys",
            "Dark spots show the energy of its eigenvectors. Spots along a line through 0 mean attention at that "
            "offset (Δ = −offset is the shift of the keys); red marks the strongest line, wrapped lines included. "
            "Single spots depend on the completion of the rotation; the figure above does not.",
            draw="attnscope.results.figures.shifts:phase_maps",
            of="heads",
        ),
    ),
    of_arrays=True,
)
def phase_map(
    study: Study, *, completion: Completion | None = None, band: tuple[int, int] | None = None, seed: Seed | None = None
) -> xr.Dataset:
    """Energy of queries by frequency and by the angle of the rotation R, for all heads.

    See mathematics.md, Phase map. On the means of X over texts.

    Parameters
    ----------
    completion, seed
        See `attnscope.explanation.arrays.phase_map.phase_map`.
    band
        Band of frequencies for the numbers without dimension: the first and the last, cycles per window.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.phase_map.phase_map`, with the dimensions ``layer, head``.
    """
    band, settings = band or study.frequencies, study.defaults(completion=completion, seed=seed)
    return over_heads(
        study.evidence,
        lambda layer, head: map_of_head(*inputs_of(layer, head), offsets=layer.reach.offsets, band=band, **settings),
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


_HEADS = 4  # the first in the ranking


CONTROLLED = Section(
    "controls",
    "Is the shift real?",
    "An estimator may find a shift in anything. These controls remove the cause of the shift from the clearest heads: "
    "the shift must then vanish.",
)


def _of_best_heads(study: Study) -> xr.Dataset:
    verdict = study.result("verdict")
    if verdict is None:
        raise NotDefinedError("without a verdict no heads can be chosen")
    shifted = np.isfinite(verdict.offset_of_spectrum)
    ranked = best_heads(ranked_rows(verdict, {}), count=None)
    shifting = [(layer, head) for layer, head in ranked if shifted.sel(layer=layer, head=head)]
    if not shifting:
        raise NotDefinedError("no head's scores favour one offset more than random phases do")
    return controls_of_heads(study.evidence, shifting[:_HEADS], band=study.frequencies, seed=study.seed)


@analysis(
    "controls",
    "The shift and its controls",
    "Controls",
    explained=_of_best_heads,
    needs=(lacks_bilinear_scores,),
    section=CONTROLLED,
    pictures=(
        Picture(
            "shift-controls",
            "The shift and its controls",
            "Each disc is one draw. Blue should be far right above; orange should be near 0, off the red line below. "
            "In shuffled text a word still matches itself, at offset 0. Green: the offset from the rotation, completed "
            "in four ways. If green misses the line, do not rely on the rotation's map.",
            draw="attnscope.results.figures.explain:shift_controls",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
def shift_controls(
    study: Study,
    *,
    heads: Sequence[tuple[int, int]] = ((0, 0),),
    band: tuple[int, int] | None = None,
    draws: int = 3,
    seed: Seed | None = None,
) -> xr.Dataset:
    """The shift of a few heads, with and without controls that must lose it.

    See mathematics.md, Controls. On the means of X over texts.

    Parameters
    ----------
    heads
        Pairs (layer, head).
    band
        Band of frequencies in which the shift is read off: the first and the last, cycles per window.
    draws, seed
        Number of draws of each random control and of the completion, and their seed.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head`` (those of the heads; NaN for other pairs). The variables of
        `attnscope.explanation.arrays.phase_map.shift_controls` over ``control``; ``completed_shift`` and
        ``completed_share``, those of `completion_range`, over ``completion``.
    """
    check_some("pairs (layer, head)", heads=heads)
    check_whole(0, DRAWS, draws=draws)
    settings = study.defaults(seed=seed)
    return controls_of_heads(study.evidence, heads, band=band or study.frequencies, draws=draws, **settings)


def controls_of_heads(
    evidence: Evidence,
    heads: Sequence[tuple[int, int]],
    *,
    band: tuple[int, int] | None = None,
    draws: int = 3,
    seed: int = 0,
) -> xr.Dataset:
    """`controls_of_head` and `completion_range` of a few heads."""

    def of_head(pair: tuple[int, int]) -> xr.Dataset:
        layer, head = evidence.layer(pair[0]), pair[1]
        inputs = inputs_of(layer, head)
        other = (head + layer.projections.group) % layer.heads  # the next head with keys of its own
        strange = layer.matrices(other, affine=True)[1] if layer.projections.group < layer.heads else None
        where: dict[str, Any] = {"band": band, "offsets": layer.reach.offsets}
        lost = controls_of_head(*inputs, other_key=strange, **where, draws=draws, seed=seed)
        completed = completion_range(*inputs, **where, draws=draws, seed=seed)
        completed = completed.rename(line_shift="completed_shift", share_near="completed_share")
        return lost.merge(completed).expand_dims(layer=[pair[0]], head=[head])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return xr.merge(pool.map(of_head, heads), join="outer", compat="no_conflicts", combine_attrs="drop")
