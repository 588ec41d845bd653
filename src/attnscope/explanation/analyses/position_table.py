"""The position table: its waves, its dimensions, and how long hidden states keep the position."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
import xarray as xr

from attnscope.capture.load import Model
from attnscope.explanation.arrays.components import canonical_correlations, principal_components
from attnscope.explanation.arrays.spectrum import amplitude_spectrum
from attnscope.explanation.evidence import Layer
from attnscope.explanation.study import Analysis, Picture, Section, Study, analysis, lacks_table, table_of_model
from attnscope.store.arrays import stacked
from attnscope.support.checked import checked

_KEPT = (
    "mean", "lower_quartile", "upper_quartile", "power", "root_power", "local_ratio", "is_peak",
    "null_mean", "null_lower_quartile", "null_upper_quartile",
)  # fmt: skip


TABLE = Section(
    "table",
    "The position table",
    "The position table is the model's input before any attention. Does it contain waves, how many dimensions does it "
    "use, and how long do the layers keep it?",
)


@checked
def position_spectrum(
    model: Model | Study | None = None,
    *,
    part: str | None = None,
    detrend: Literal["none", "linear"] = "none",
    neighbours: int = 10,
    factor: float = 2.0,
    lowest: int = 3,
) -> xr.Dataset:
    """Amplitude spectrum of a model's position table (mathematics.md, Spectrum of the position table).

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
    """
    rows = table_of_model(model, part)
    return amplitude_spectrum(rows, detrend=detrend, neighbours=neighbours, factor=factor, lowest=lowest)


def _with_word_spectrum(study: Study) -> xr.Dataset:
    """Spectrum of the first position table and of the same number of words: dimension ``table``."""
    evidence = study.evidence
    kinds = {"positions": evidence.tables[0].rows}
    if len(evidence.words) == len(evidence.tables[0].rows):
        kinds["words"] = evidence.words
    return stacked([amplitude_spectrum(rows)[list(_KEPT)] for rows in kinds.values()], "table", list(kinds))


POSITION_SPECTRUM = Analysis(
    "position_spectrum",
    "Waves in the position table",
    "Spectrum of the position table",
    _with_word_spectrum,
    needs=(lacks_table,),
    section=TABLE,
    pictures=(
        Picture(
            "position-spectrum",
            "Waves in the position table",
            "A line above the grey band is a wave; noise stays within the band. Numbers are periods in tokens. The "
            "dashed line combines all columns, independent of the embedding's axes. Right: words, as a control.",
            draw="attnscope.results.figures.positions:position_spectrum",
        ),
        Picture(
            "position-models",
            "Waves in the tables of several models",
            "The same for each model, on its own scale. Periods in tokens are comparable between different lengths.",
            draw="attnscope.results.figures.explain:tables_of_models",
            of="tree",
        ),
    ),
    of_arrays=True,
)


@checked
def position_pca(model: Model | Study | None = None, *, part: str | None = None, centred: bool = True) -> xr.Dataset:
    """Principal components of a model's position table (mathematics.md, Principal components).

    Parameters
    ----------
    model, part
        As in `position_spectrum`.
    centred
        See `attnscope.explanation.arrays.components.principal_components`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.components.principal_components`: over ``component`` ``singular_value`` and
        ``cumulative_share``.
    """
    return principal_components(table_of_model(model, part), centred=centred)


POSITION_PCA = Analysis(
    "position_pca",
    "Dimensions of the position table",
    "Principal components",
    lambda study: principal_components(study.evidence.tables[0].rows),
    needs=(lacks_table,),
    section=TABLE,
    pictures=(
        Picture(
            "position-components",
            "Dimensions of the position table",
            "The share of the table's variance in its first principal components. For RoBERTa: 50.5% in 4 and 92.2% in "
            "12 (Yamamoto and Matsuzaki 2023).",
            draw="attnscope.results.figures.positions:position_components",
        ),
        Picture(
            "components-models",
            "Dimensions of several models' tables",
            "The share of each table's variance in its first principal components; 4 and 12 are marked.",
            draw="attnscope.results.figures.explain:components_of_models",
            of="tree",
        ),
    ),
    units="share",
    of_arrays=True,
)


_FLOAT32 = 1e-7  # relative error of covariances from float32 products


@analysis(
    "position_cca",
    "How long layers keep the position",
    "Canonical correlations",
    needs=(lacks_table,),
    section=TABLE,
    pictures=(
        Picture(
            "position-correlations",
            "How long layers keep the position",
            "Canonical correlations of each layer's input with the table: for the components with 99.9% of the "
            "variance, and for all. At the dashed line, noise does as well. Bars count correlations above 0.5 and "
            "above that line.",
            draw="attnscope.results.figures.positions:position_correlations",
        ),
    ),
    units="correlation",
    of_arrays=True,
)
def position_cca(study: Study, *, variance: float = 0.999) -> xr.Dataset:
    """Canonical correlations of each layer's input with the position table.

    See mathematics.md, Canonical correlations.

    Parameters
    ----------
    variance
        Share of the variance in the components of each side.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.components.canonical_correlations`, with the dimension ``layer``; names with
        ``raw_``: for all components above float32's rounding error.
    """
    evidence = study.evidence

    def of_layer(layer: Layer) -> xr.Dataset:
        table = evidence.table_of(layer).rows[: evidence.length]
        moments = layer.moments.position_mean, layer.moments.covariance, table, layer.moments.texts
        raw = canonical_correlations(*moments, variance=1.0, rounding=_FLOAT32)
        return canonical_correlations(*moments, variance=variance).merge(
            raw.rename({name: f"raw_{name}" for name in raw.data_vars}), join="outer", combine_attrs="override"
        )

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        layers = list(pool.map(of_layer, evidence.layers))
    return stacked(layers, "layer", [layer.site.index for layer in evidence.layers])
