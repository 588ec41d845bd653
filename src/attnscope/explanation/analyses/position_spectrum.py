"""Waves in the position table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import xarray as xr

from attnscope.explanation.arrays.spectrum import amplitude_spectrum
from attnscope.explanation.study import POSITION_TABLE, Analysis, Picture, Section, table_of_model
from attnscope.store.arrays import stacked
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study

_KEPT = (
    "mean", "lower_quartile", "upper_quartile", "power", "root_power", "local_ratio", "is_peak",
    "null_mean", "null_lower_quartile", "null_upper_quartile",
)  # fmt: skip

TABLE = Section(
    "table",
    "The position table",
    (
        "What the model reads of positions before any attention: whether the table has waves that noise has not,"
        " how few dimensions hold it, and how long the layers keep it."
    ),
)


@validated
def position_spectrum(
    model: Model | Study | None = None,
    *,
    part: str | None = None,
    detrend: Literal["none", "linear"] = "none",
    neighbours: int = 10,
    factor: float = 2.0,
    lowest: int = 3,
) -> xr.Dataset:
    """Amplitude spectrum of a model's position table (docs/mathematics.md, Spectrum of the position table).

    Parameters
    ----------
    model
        See `attnscope.explanation.study.study`; no text is read.
    part
        Part of the table's name where a model has several, such as ``"decoder"``.
    detrend, neighbours, factor, lowest
        See `attnscope.explanation.arrays.spectrum.amplitude_spectrum`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.spectrum.amplitude_spectrum`: over ``frequency`` (cycles in all rows of the
        table)
        ``mean``, ``lower_quartile`` and ``upper_quartile`` of the amplitudes, and ``is_peak``; over ``column``
        ``fisher_p``.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions: the scheme that it has instead is named.

    Examples
    --------
    >>> from attnscope.explanation.analyses.position_spectrum import position_spectrum
    >>> spectra = position_spectrum("bundled")
    >>> spectra["mean"].dims, spectra.sizes["frequency"]
    (('frequency',), 65)
    """
    rows = table_of_model(model, part)
    return amplitude_spectrum(rows, detrend=detrend, neighbours=neighbours, factor=factor, lowest=lowest)


def _with_word_spectrum(study: Study) -> xr.Dataset:
    """Spectrum of the whole first position table beside that of as many words: dimension ``kind``."""
    evidence = study.evidence
    kinds = {"positions": evidence.tables[0].rows}
    if len(evidence.words) == len(evidence.tables[0].rows):
        kinds["words"] = evidence.words
    return stacked([amplitude_spectrum(rows)[list(_KEPT)] for rows in kinds.values()], "kind", list(kinds))


ANALYSIS = Analysis(
    "position_spectrum",
    "Waves in the position table",
    "Spectrum of the position table",
    _with_word_spectrum,
    needs=(POSITION_TABLE,),
    section=TABLE,
    pictures=(
        Picture(
            "position-spectrum",
            "Waves in the position table",
            (
                "A line above the grey band is a wave that noise would not give; the number is its "
                "period in tokens. The dashed line takes all columns together, whatever the axes of the"
                " embedding. Words, on the right, are the control."
            ),
            draw="attnscope.results.figures.positions:position_spectrum",
        ),
        Picture(
            "position-models",
            "Waves in the tables of several models",
            (
                "The same for each model, at its own height. Periods in tokens can be compared where "
                "lengths differ."
            ),
            draw="attnscope.results.figures.explain:tables_of_models",
            of="tree",
        ),
    ),
    of_arrays=True,
)
