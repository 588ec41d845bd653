"""Is the shift real? The clearest heads, with the cause of their shift taken away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.explanation.arrays.controls import shift_controls as controls_of_head
from attnscope.explanation.arrays.phase_map import completion_range
from attnscope.explanation.not_defined import NotDefinedError
from attnscope.explanation.ranking import best_heads, inputs_of
from attnscope.explanation.study import BILINEAR_SCORES, Analysis, Picture, Section, studied, study
from attnscope.support.arguments import validated
from attnscope.support.checks import DRAWS, check_seed, check_some, check_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.evidence import Evidence
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

_HEADS = 4  # the first in the ranking

CONTROLLED = Section(
    "controls",
    "Is the shift real?",
    (
        "A way to read off a shift may find one in anything. So the clearest heads are read again with "
        "the cause of their shift taken away: it must then be lost."
    ),
)


@validated
def shift_controls(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    heads: Sequence[tuple[int, int]] = ((0, 0),),
    band: tuple[int, int] | None = None,
    draws: int = 3,
    seed: int = 0,
) -> xr.Dataset:
    """The shift of a few heads, and what is left of it under controls that must lose it.

    See docs/mathematics.md, Controls. On the means of X over texts.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    heads
        Pairs (layer, head).
    band
        Band of frequencies in which the shift is read off: the first and the last, cycles per window.
    draws, seed
        Number of draws of each random control and of the completion, and their seed.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head`` (those of the heads; NaN for pairs that were not asked for). The variables of
        `attnscope.explanation.arrays.controls.shift_controls` over ``control``; ``completed_shift`` and
        ``completed_share``, those
        of `completion_range`, over ``completion``.

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has); if the band holds no frequency of
        the windows; if there is no such head or none is asked for, or there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.controls import shift_controls
    >>> controls = shift_controls("bundled", limit=2, heads=[(0, 1)], draws=1)
    >>> controls.sizes["layer"], controls.sizes["head"]
    (1, 1)
    """
    check_some("pairs (layer, head)", heads=heads)
    check_whole(0, DRAWS, draws=draws)
    check_seed(seed)
    given = study(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_heads(given.evidence, heads, band=band, draws=draws, seed=seed)


def of_heads(
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
        kept = completion_range(*inputs, **where, draws=draws, seed=seed)
        kept = kept.rename(line_shift="completed_shift", share_near="completed_share")
        return lost.merge(kept).expand_dims(layer=[pair[0]], head=[head])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return xr.merge(pool.map(of_head, heads), join="outer", compat="no_conflicts", combine_attrs="drop")


def _of_best_heads(study: Study) -> xr.Dataset:
    verdict = study.result("verdict")
    if verdict is None:
        raise NotDefinedError("there is no verdict to choose heads by")
    shifted = np.isfinite(verdict.offset_of_spectrum)
    ranked = best_heads(xr.DataTree.from_dict({"verdict": verdict}), count=None)
    places = [place for place in ranked if shifted.sel(layer=place[0], head=place[1])]
    if not places:
        raise NotDefinedError("the scores of no head favour one offset beyond what random phases would")
    return of_heads(study.evidence, places[:_HEADS], band=study.frequencies, seed=study.seed)


ANALYSIS = Analysis(
    "controls",
    "The shift and its controls",
    "Controls",
    _of_best_heads,
    needs=(BILINEAR_SCORES,),
    section=CONTROLLED,
    pictures=(
        Picture(
            "shift-controls",
            "The shift and its controls",
            (
                "Blue should lie at the right above, and orange near 0, off the red line below. A disc "
                "is one draw. In shuffled text a word still matches itself, at offset 0. Green is the "
                "offset by the rotation's angles, its free part chosen in four ways: where that misses "
                "the line, do not rely on the map of the rotation."
            ),
            draw="attnscope.results.figures.explain:shift_controls",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
