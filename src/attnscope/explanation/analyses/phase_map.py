"""The rotation from queries to keys, by frequency and angle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from attnscope.explanation.analyses.cross_spectrum import SHIFT
from attnscope.explanation.arrays.phase_map import phase_map as map_of_head
from attnscope.explanation.ranking import inputs_of, over_heads
from attnscope.explanation.study import BILINEAR_SCORES, Analysis, Picture, Reading, studied
from attnscope.support.arguments import Seed, validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.arrays.decomposition import Completion
    from attnscope.explanation.evidence import Evidence
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@validated
def phase_map(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    completion: Completion = "minimal",
    band: tuple[int, int] | None = None,
    seed: Seed = 0,
    **reading: Unpack[Reading],
) -> xr.Dataset:
    """Energy of queries by frequency and by the angle of the rotation R, for all heads.

    See docs/mathematics.md, Phase map. On the means of X over texts.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.
    completion, seed
        See `attnscope.explanation.arrays.phase_map.phase_map`.
    band
        Band of frequencies for the numbers without dimension: the first and the last, cycles per window.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.phase_map.phase_map`, with the dimensions ``layer, head``.

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has); if the completion is unknown or the band
        empty; if there are fewer than two full windows.
    """
    with studied(ANALYSIS, model, texts, reading) as study:
        return of_heads(study.evidence, completion=completion, band=band, seed=seed)


def of_heads(evidence: Evidence, *, completion: Completion, band: tuple[int, int] | None, seed: int) -> xr.Dataset:
    """`map_of_head` of every head."""
    return over_heads(
        evidence,
        lambda layer, head: map_of_head(
            *inputs_of(layer, head), offsets=layer.reach.offsets, completion=completion, band=band, seed=seed
        ),
    )


ANALYSIS = Analysis(
    "phase_map",
    "The rotation from queries to keys",
    "Phase map",
    lambda study: of_heads(study.evidence, completion=study.completion, band=study.frequencies, seed=study.seed),
    needs=(BILINEAR_SCORES,),
    section=SHIFT,
    pictures=(
        Picture(
            "phase-maps",
            "The rotation from queries to keys",
            "Dark spots are where its eigenvectors have their energy. Spots along a line through 0 are a shift by "
            "that many tokens; the line that gathers most, wrapped lines too, is named in red. Single spots depend "
            "on how the rotation is completed; the figure above does not.",
            draw="attnscope.results.figures.shifts:phase_maps",
            of="heads",
        ),
    ),
    of_arrays=True,
)
