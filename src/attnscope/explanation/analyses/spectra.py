"""Frequencies of queries, keys and inputs, by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np

from attnscope.explanation.analyses.waves import WAVES_ALONG_TEXT
from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.arrays.decomposition import append_one, reparametrize
from attnscope.explanation.arrays.waves import maximum_spectrum
from attnscope.explanation.study import BILINEAR_SCORES, Analysis, Picture, Reading, studied
from attnscope.store.arrays import stacked
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.evidence import Evidence, Layer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@validated
def spectra_by_layer(
    model: Model | Study | None = None, texts: Sources = None, **reading: Unpack[Reading]
) -> xr.Dataset:
    """Largest amplitude at each frequency over the columns of X, and of the queries and keys of all heads.

    See docs/mathematics.md, Queries and keys as waves.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.waves.maximum_spectrum`, with the dimensions ``layer`` and ``side`` (X,
        query, key).

    Raises
    ------
    AttnscopeError
        If no layer has scores that are bilinear in X (under RoPE none has); if there are fewer than two full windows.
    """
    with studied(ANALYSIS, model, texts, reading) as study:
        return of_layers(study.evidence)


def of_layers(evidence: Evidence) -> xr.Dataset:
    """All layers with bilinear scores."""
    layers = evidence.bilinear
    return stacked([_of_layer(layer) for layer in layers], "layer", [layer.site.index for layer in layers])


def _of_layer(layer: Layer) -> xr.Dataset:
    sides: dict[str, list[np.ndarray]] = {"X": [layer.sample], "query": [], "key": []}
    states = append_one(layer.sample)
    for head in range(layer.heads):
        parts = reparametrize(*layer.matrices(head, affine=True))
        sides["query"].append(states @ parts.query)
        sides["key"].append(states @ parts.key)
    if empty := [side for side, columns in sides.items() if not sum(part.shape[1] for part in columns)]:
        raise NotDefinedError(f"layer {layer.site.index} gives every {empty[0]} the same: its weights are zero")
    return stacked([maximum_spectrum(np.hstack(columns)) for columns in sides.values()], "side", list(sides))


ANALYSIS = Analysis(
    "spectra",
    "Frequencies by layer",
    "Queries and keys as waves",
    lambda study: of_layers(study.evidence),
    needs=(BILINEAR_SCORES,),
    section=WAVES_ALONG_TEXT,
    pictures=(
        Picture(
            "spectra-by-layer",
            "Frequencies by layer",
            "The largest amplitude over all columns, against what white noise gives in as many: red is more, blue "
            "less.",
            draw="attnscope.results.figures.waves:spectra_by_layer",
        ),
    ),
    of_arrays=True,
)
