"""Sums of a unit of texts as labelled arrays, for the parts of a run that tasks keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.mechanism.arrays import StateMoments
from attnscope.mechanism.evidence._evidence import LayerSums

if TYPE_CHECKING:
    from collections.abc import Mapping

_BANDS, _MEANS, _SCATTER = "band_sums_", "position_mean_", "scatter_"  # and the number of the layer


def labelled_sums(sums: Mapping[int, LayerSums], texts: range) -> xr.Dataset:
    """Sums of each layer over some texts, in variables of their own, as layers may differ in heads and width.

    Parameters
    ----------
    sums
        Sums of each layer, by its number.
    texts
        Numbers of the texts that they are over.

    Examples
    --------
    >>> sums = {3: LayerSums(StateMoments(2, np.ones((4, 5)), np.ones((5, 5))), [np.ones((1, 7))] * 2, has_bias=True)}
    >>> made = labelled_sums(sums, range(6, 8))
    >>> made.band_sums_3.sizes["text"], sums_of(made)[3].moments.texts, sums_of(made)[3].has_bias
    (2, 2, True)
    """
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for index, layer in sums.items():
        head, place, width = (f"{name}_{index}" for name in ("head", "position", "width"))
        variables[f"{_BANDS}{index}"] = (("text", head, f"offset_{index}"), np.stack(layer.band_sums))
        variables[f"{_MEANS}{index}"] = ((place, width), layer.moments.position_mean)
        variables[f"{_SCATTER}{index}"] = ((width, f"column_{index}"), layer.moments.scatter)
    biased = [index for index, layer in sums.items() if layer.has_bias]
    return xr.Dataset(variables, {"text": np.arange(texts.start, texts.stop)}, {"has_bias": biased})


def sums_of(labelled: xr.Dataset) -> dict[int, LayerSums]:
    """The sums that `labelled_sums` made arrays of.

    Examples
    --------
    >>> sums = {3: LayerSums(StateMoments(1, np.ones((4, 5)), np.ones((5, 5))), [np.full((1, 7), 0.5)], has_bias=False)}
    >>> found = sums_of(labelled_sums(sums, range(6, 7)))
    >>> list(found), found[3].band_sums[0].tolist(), found[3].has_bias
    ([3], [[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]], False)
    """
    indices = sorted(
        int(str(name).removeprefix(_BANDS)) for name in labelled.data_vars if str(name).startswith(_BANDS)
    )
    texts = labelled.sizes["text"]
    return {
        index: LayerSums(
            StateMoments(texts, labelled[f"{_MEANS}{index}"].values, labelled[f"{_SCATTER}{index}"].values),
            list(labelled[f"{_BANDS}{index}"].values),
            index in labelled.attrs["has_bias"],
        )
        for index in indices
    }
