"""The rotation from queries to keys, and the controls that must lose the shift."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnscope.explanation.analyses.shift import SHIFT
from attnscope.explanation.analyses.verdict import best_heads, ranked_rows
from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.evidence import Evidence, Layer, inputs_of, over_heads
from attnscope.explanation.study import Analysis, Picture, Section, Study, analysis, lacks_bilinear_scores
from attnscope.options import DRAWS, Seed
from attnscope.support.checks import check_some, check_whole
from attnscope_yamamoto2023.arrays.phase_map import completion_range
from attnscope_yamamoto2023.arrays.phase_map import phase_map as map_of_head
from attnscope_yamamoto2023.arrays.phase_map import shift_controls as controls_of_head
from attnscope_yamamoto2023.arrays.rotation import Completion, check_completion


def completed(completion: str) -> Analysis:
    """The phase map with another completion, for ``attnscope.explain(analyses=...)``: ``phase_map=haar`` in text."""
    chosen = check_completion(completion)
    settings = {} if chosen == "minimal" else {"completion": chosen}
    return replace(phase_map, compute=partial(phase_map.alone, completion=chosen), settings=settings)


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
            "Single spots depend on the completion of the rotation; the offset by frequency does not.",
            draw="attnscope_yamamoto2023.figures:phase_maps",
            of="heads",
        ),
    ),
    of_arrays=True,
    configured=completed,
)
def phase_map(
    study: Study, *, completion: Completion = "minimal", band: tuple[int, int] | None = None, seed: Seed | None = None
) -> xr.Dataset:
    """Energy of queries by frequency and by the angle of the rotation R, for all heads.

    See mathematics.md, Phase map. On the means of X over texts.

    Parameters
    ----------
    completion, seed
        See `attnscope_yamamoto2023.arrays.phase_map.phase_map`.
    band
        Band of frequencies for the numbers without dimension: the first and the last, cycles per window.

    Returns
    -------
    xarray.Dataset
        As `attnscope_yamamoto2023.arrays.phase_map.phase_map`, with the dimensions ``layer, head``.
    """
    band, seed = band or study.frequencies, study.seed if seed is None else seed

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        offsets = layer.reach.offsets
        return map_of_head(*inputs_of(layer, head), completion=completion, band=band, offsets=offsets, seed=seed)

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
            draw="attnscope_yamamoto2023.figures:shift_controls",
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
        `attnscope_yamamoto2023.arrays.phase_map.shift_controls` over ``control``; ``completed_shift`` and
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
