"""The position table: its waves, how many dimensions hold it, and how long hidden states keep the position."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import torch
import xarray as xr

from attnscope.explanation.arrays.components import canonical_correlations, principal_components
from attnscope.explanation.arrays.spectrum import amplitude_spectrum
from attnscope.explanation.study import POSITION_TABLE, Analysis, Picture, Section, analysis, table_of_model
from attnscope.store.arrays import stacked
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.evidence import Layer
    from attnscope.explanation.study import Study

_KEPT = (
    "mean", "lower_quartile", "upper_quartile", "power", "root_power", "local_ratio", "is_peak",
    "null_mean", "null_lower_quartile", "null_upper_quartile",
)  # fmt: skip


TABLE = Section(
    "table",
    "The position table",
    "What the model reads of positions before any attention: whether the table has waves that noise has not, how few"
    " dimensions hold it, and how long the layers keep it.",
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
    """Spectrum of the whole first position table beside that of as many words: dimension ``kind``."""
    evidence = study.evidence
    kinds = {"positions": evidence.tables[0].rows}
    if len(evidence.words) == len(evidence.tables[0].rows):
        kinds["words"] = evidence.words
    return stacked([amplitude_spectrum(rows)[list(_KEPT)] for rows in kinds.values()], "kind", list(kinds))


POSITION_SPECTRUM = Analysis(
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
            "A line above the grey band is a wave that noise would not give; the number is its period in tokens. The"
            " dashed line takes all columns together, whatever the axes of the embedding. Words, on the right, are "
            "the control.",
            draw="attnscope.results.figures.positions:position_spectrum",
        ),
        Picture(
            "position-models",
            "Waves in the tables of several models",
            "The same for each model, at its own height. Periods in tokens can be compared where lengths differ.",
            draw="attnscope.results.figures.explain:tables_of_models",
            of="tree",
        ),
    ),
    of_arrays=True,
)


@validated
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
    "Dimensions that hold the position table",
    "Principal components",
    lambda study: principal_components(study.evidence.tables[0].rows),
    needs=(POSITION_TABLE,),
    section=TABLE,
    pictures=(
        Picture(
            "position-components",
            "Dimensions that hold it",
            "How much of the table's variance its first principal components hold. RoBERTa's 4 hold 50.5%, its 12 "
            "hold 92.2% (Yamamoto and Matsuzaki 2023).",
            draw="attnscope.results.figures.positions:position_components",
        ),
        Picture(
            "components-models",
            "Dimensions that hold the tables",
            "The share of each table's variance that its first principal components hold; 4 and 12 are marked.",
            draw="attnscope.results.figures.explain:components_of_models",
            of="tree",
        ),
    ),
    units="share",
    of_arrays=True,
)


_FLOAT32 = 1e-7  # relative error of the covariances, whose products are summed in float32


@analysis(
    "position_cca",
    "How long layers keep the position",
    "Canonical correlations",
    needs=(POSITION_TABLE,),
    section=TABLE,
    pictures=(
        Picture(
            "position-correlations",
            "How long layers keep it",
            "Canonical correlations of each layer's input with the table, of the components that hold 99.9% of the "
            "variance and of all. A curve that falls to the dashed line tells no more about positions than noise "
            "would. Counted are those above 0.5 and above that line.",
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
        Share of the variance that the components of either side hold.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.components.canonical_correlations`, with the dimension ``layer``; with
        ``raw_`` before their names, the same of all components that float32 tells from rounding.
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
