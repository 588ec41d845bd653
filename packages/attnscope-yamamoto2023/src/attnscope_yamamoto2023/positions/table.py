"""The position table: its waves, its dimensions, and how long hidden states keep the position."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from transformers import PreTrainedModel

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import Model, load_model
from attnscope.explanation.evidence import Layer
from attnscope.explanation.inputs import token_ids
from attnscope.explanation.study import Analysis, Picture, Section, Study, analysis, lacks_table
from attnscope.explanation.tables import position_table, word_table
from attnscope.store.arrays import stacked
from attnscope.support.checked import checked
from attnscope_yamamoto2023.arrays.components import canonical_correlations, principal_components
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum

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
        See `attnscope_yamamoto2023.arrays.spectrum.amplitude_spectrum`.

    Returns
    -------
    xarray.Dataset
        As `attnscope_yamamoto2023.arrays.spectrum.amplitude_spectrum`: over ``frequency`` (cycles in all rows of the
        table)
        ``mean``, ``lower_quartile`` and ``upper_quartile`` of the amplitudes, and ``is_peak``; over ``column``
        ``fisher_p``.
    """
    rows = _rows_of_model(model, part)
    return amplitude_spectrum(rows, detrend=detrend, neighbours=neighbours, factor=factor, lowest=lowest)


def _rows_of_model(model: Model | Study | None, part: str | None = None) -> Float[np.ndarray, "position column"]:
    """Rows of a model's position table; needs no text and no tokenizer."""
    if isinstance(model, (Study, LoadedModel)):
        model = model.model
    if not isinstance(model, PreTrainedModel):
        model = load_model("bundled" if model is None else model, need_tokenizer=False).model
    return position_table(model, part).rows


def _with_word_spectrum(study: Study) -> xr.Dataset:
    """Spectrum of the first position table and of the same number of words: dimension ``table``."""
    rows = study.evidence.tables[0].rows
    kinds = {"positions": rows}
    words = _words(study)[: len(rows)]
    if len(words) == len(rows):
        kinds["words"] = words
    return stacked([amplitude_spectrum(rows)[list(_KEPT)] for rows in kinds.values()], "table", list(kinds))


def _words(study: Study) -> np.ndarray:
    """Word vectors of the texts in order, the control for the table.

    Special tokens are left out: they repeat with every window and would look like a wave.
    """
    ids = token_ids(study.windows, least=2).ids
    special = [getattr(window, "special", None) or [False] * ids.shape[1] for window in study.windows]
    return word_table(study.model)[ids.numpy()[~np.array(special, dtype=bool)]]


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
            draw="attnscope_yamamoto2023.figures:position_spectrum",
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
        See `attnscope_yamamoto2023.arrays.components.principal_components`.

    Returns
    -------
    xarray.Dataset
        As `attnscope_yamamoto2023.arrays.components.principal_components`: over ``component`` ``singular_value`` and
        ``cumulative_share``.
    """
    return principal_components(_rows_of_model(model, part), centred=centred)


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
            draw="attnscope_yamamoto2023.figures:position_components",
        ),
    ),
    units="share",
    of_arrays=True,
)


@dataclass(frozen=True)
class OtherTable:
    """The position table of another model."""

    name: str
    identity: str  # of its weights, as JSON
    rows: Float[np.ndarray, "position column"]


def position_models(*models: Model, trust_remote_code: bool = False) -> Analysis:
    """Compare the position table of a model with those of others, for ``attnscope.explain(analyses=...)``.

    On the command line ``--analyses position_models=MODEL,MODEL``.

    Parameters
    ----------
    models
        See `attnscope.scan`; they read no text.
    trust_remote_code
        See `attnscope.scan`.

    Returns
    -------
    Analysis
        Its Dataset has the dimension ``model``, first the one that is explained, and the variables of
        `position_spectrum` and `position_pca`, NaN beyond a shorter table; ``positions`` is the number of rows.

    Raises
    ------
    AttnscopeError
        If a model has no table of absolute positions.

    Examples
    --------
    >>> import attnscope
    >>> tree = attnscope.explain(limit=2, window=16, analyses=[position_models("bundled:pronoun")])
    >>> tree["position_models"].model.values.tolist()
    ['small-mlm', 'pronoun']
    """
    others: list[OtherTable] = []
    for model in models:
        device = "cpu" if isinstance(model, str | Path) else None
        loaded = load_model(model, need_tokenizer=False, device=device, trust_remote_code=trust_remote_code)
        identity = json.dumps(loaded.identity, sort_keys=True)
        others.append(OtherTable(loaded.name, identity, position_table(loaded.model).rows))
    digest = hashlib.sha256("".join(other.identity for other in others).encode()).hexdigest()
    return replace(
        POSITION_MODELS,
        compute=partial(_tables_of_models, others=others),
        requested=lambda _: True,
        needs=(),
        settings={"position_models": digest},
    )


def _tables_of_models(study: Study, others: Sequence[OtherTable]) -> xr.Dataset:
    """Spectrum and principal components of each table: dimension ``model``, shorter tables padded with NaN."""
    tables = [(study.name, table.rows) for table in study.tables[:1]] + [(other.name, other.rows) for other in others]
    parts: list[xr.Dataset] = []
    names: list[str] = []
    for name, rows in tables:
        spectrum = amplitude_spectrum(rows)[list(_KEPT)].assign(positions=((), len(rows)))
        spectrum["is_peak"] = spectrum.is_peak.astype(float)  # NaN beyond a shorter table
        parts.append(spectrum.merge(principal_components(rows), combine_attrs="drop"))
        again = sum(other.split(" (")[0] == name for other in names)
        names.append(f"{name} ({again + 1})" if again else name)
    return stacked(parts, "model", names)


POSITION_MODELS = Analysis(
    "position_models",
    "Position tables of several models",
    "Spectrum of the position table",
    partial(_tables_of_models, others=()),
    requested=lambda _: False,
    needs=(lambda _: "it names no other model: use position_models=MODEL",),
    section=TABLE,
    pictures=(
        Picture(
            "position-models",
            "Waves in the tables of several models",
            "The same for each model, on its own scale. Periods in tokens are comparable between different lengths.",
            draw="attnscope_yamamoto2023.figures:tables_of_models",
        ),
        Picture(
            "components-models",
            "Dimensions of several models' tables",
            "The share of each table's variance in its first principal components; 4 and 12 are marked.",
            draw="attnscope_yamamoto2023.figures:components_of_models",
        ),
    ),
    of_arrays=True,
    configured=lambda names: position_models(*names.split(",")),
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
            draw="attnscope_yamamoto2023.figures:position_correlations",
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
        As `attnscope_yamamoto2023.arrays.components.canonical_correlations`, with the dimension ``layer``; names with
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
