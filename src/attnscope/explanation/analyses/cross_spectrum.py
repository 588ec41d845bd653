"""The shift between queries and keys, by frequency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from attnscope.explanation.arrays.correlation import cross_spectrum as spectrum_of_head
from attnscope.explanation.ranking import inputs_of, over_heads
from attnscope.explanation.study import BILINEAR_SCORES, Analysis, Picture, Reading, Section, studied
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.evidence import Evidence
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

SHIFT = Section(
    "shift",
    "The shift between queries and keys",
    "If keys are the queries moved by a fixed number of tokens, the head looks at a fixed offset. Three views of "
    "that shift, for the heads named. All are of the scores before any mask; offsets that the mask forbids are grey,"
    " and no peak is looked for there.",
)


@validated
def cross_spectrum(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    band: tuple[int, int] | None = None,
    **reading: Unpack[Reading],
) -> xr.Dataset:
    """Shift between queries and keys by frequency, free of any completion of R, for all heads.

    See docs/mathematics.md, Cross-spectrum. On the means of X over texts; biases change none of it, as their columns
    are constant and have no frequency.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.
    band
        Band of frequencies in which the shift is read off: the first and the last, cycles per window.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.correlation.cross_spectrum`, with the dimensions ``layer, head``.

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has); if the band holds no frequency of the
        windows; if there are fewer than two full windows.
    """
    with studied(ANALYSIS, model, texts, reading) as study:
        return of_heads(study.evidence, band)


def of_heads(evidence: Evidence, band: tuple[int, int] | None) -> xr.Dataset:
    """`spectrum_of_head` of every head."""
    return over_heads(
        evidence, lambda layer, head: spectrum_of_head(*inputs_of(layer, head), band=band, offsets=layer.reach.offsets)
    )


ANALYSIS = Analysis(
    "cross_spectrum",
    "Offset by frequency",
    "Cross-spectrum",
    lambda study: of_heads(study.evidence, study.frequencies),
    needs=(BILINEAR_SCORES,),
    section=SHIFT,
    pictures=(
        Picture(
            "cross-spectrum",
            "Offset by frequency",
            "Discs on one height are frequencies that favour one offset; large, dark discs count most. Beyond the "
            "dashed curves a phase tells the offset only up to whole periods.",
            draw="attnscope.results.figures.shifts:cross_spectrum_offsets",
            of="heads",
        ),
    ),
    units="tokens",
    of_arrays=True,
)
