"""How long hidden states keep the position."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Unpack

import torch

from attnscope.explanation.analyses.position_spectrum import TABLE
from attnscope.explanation.arrays.components import canonical_correlations
from attnscope.explanation.study import POSITION_TABLE, Analysis, Picture, Reading, studied
from attnscope.store.arrays import stacked
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.explanation.evidence import Evidence, Layer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

_FLOAT32 = 1e-7  # relative error of the covariances, whose products are summed in float32


@validated
def position_cca(
    model: Model | Study | None = None, texts: Sources = None, *, variance: float = 0.999, **reading: Unpack[Reading]
) -> xr.Dataset:
    """Canonical correlations of each layer's input with the position table.

    See docs/mathematics.md, Canonical correlations.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.
    variance
        Share of the variance that the components of either side hold.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.arrays.components.canonical_correlations`, with the dimension ``layer``; with
        ``raw_`` before their names, the same of all components that float32 tells from rounding.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions; if `variance` is not in (0, 1], or there are fewer than two
        full windows.
    """
    with studied(ANALYSIS, model, texts, reading) as study:
        return by_layer(study.evidence, variance=variance)


def by_layer(evidence: Evidence, *, variance: float = 0.999) -> xr.Dataset:
    """`canonical_correlations` of the components that hold this share of the variance of either side."""

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


ANALYSIS = Analysis(
    "position_cca",
    "How long layers keep the position",
    "Canonical correlations",
    lambda study: by_layer(study.evidence),
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
