"""Waves in queries and keys, and the frequencies of layers."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.arrays.decomposition import append_one, reparametrize
from attnscope.explanation.evidence import Layer, over_heads
from attnscope.explanation.study import Picture, Section, Study, analysis, lacks_bilinear_scores
from attnscope.options import Natural, Seed
from attnscope.store.arrays import stacked
from attnscope_yamamoto2023.arrays.spectrum import maximum_spectrum
from attnscope_yamamoto2023.arrays.spectrum import query_key_waves as waves_of_head

WAVES_ALONG_TEXT = Section(
    "waves",
    "Waves in queries and keys",
    "A head can favour an offset only if its queries and keys carry the position. The figures show which of their "
    "columns are waves along the text, after the rotation that the scores determine.",
)


@analysis(
    "waves",
    "Waves in queries and keys",
    "Queries and keys as waves",
    needs=(lacks_bilinear_scores,),
    section=WAVES_ALONG_TEXT,
    pictures=(
        Picture(
            "wave-counts",
            "How many columns are waves",
            "Columns with a significant wave (Fisher's test on one text, corrected for all heads). Right: the largest "
            "count for the same head with the text's tokens shuffled.",
            draw="attnscope_yamamoto2023.figures:wave_counts",
        ),
        Picture(
            "wave-columns",
            "Which columns are waves",
            "Each row is a column, largest singular value first. Disc and ring: the strongest frequencies of query and "
            "key, green for waves. An arc joins a cosine and its sine. Bars: the column's share of the scores. Columns "
            "with nearly equal singular values may swap.",
            draw="attnscope_yamamoto2023.figures:wave_columns",
            of="heads",
        ),
        Picture(
            "wave-curves",
            "Queries and keys along the text",
            "The columns with the largest share of the scores, along the first tokens of one text. If both are waves, "
            "the key's wave is the query's, moved by the head's offset.",
            draw="attnscope_yamamoto2023.figures:wave_curves",
            of="heads",
        ),
    ),
    units="columns",
    of_arrays=True,
)
def query_key_waves(study: Study, *, permutations: Natural = 5, seed: Seed | None = None) -> xr.Dataset:
    """Waves in the columns of the queries and keys of all heads, re-parametrised by the SVD of W_Q W_K^T.

    See mathematics.md, Queries and keys as waves. On the X of the first text, with biases.

    Parameters
    ----------
    permutations, seed
        Number of orders in which the text's tokens are shuffled for the null, and their seed.

    Returns
    -------
    xarray.Dataset
        As `attnscope_yamamoto2023.arrays.spectrum.query_key_waves`, with the dimensions ``layer, head``.
    """
    evidence, settings = study.evidence, study.defaults(seed=seed) | {"permutations": permutations}
    # tests are corrected for all heads together
    tests = sum(2 * layer.heads * layer.matrices(0, affine=False)[0].shape[1] for layer in evidence.bilinear)

    def of_head(layer: Layer, head: int) -> xr.Dataset:
        return waves_of_head(append_one(layer.sample), *layer.matrices(head, affine=True), tests=tests, **settings)

    return over_heads(evidence, of_head)


@analysis(
    "spectra",
    "Frequencies by layer",
    "Queries and keys as waves",
    needs=(lacks_bilinear_scores,),
    section=WAVES_ALONG_TEXT,
    pictures=(
        Picture(
            "spectra-by-layer",
            "Frequencies by layer",
            "The largest amplitude over all columns, relative to white noise in the same number of columns. Red: "
            "larger; blue: smaller.",
            draw="attnscope_yamamoto2023.figures:spectra_by_layer",
        ),
    ),
    of_arrays=True,
)
def spectra_by_layer(study: Study) -> xr.Dataset:
    """Largest amplitude at each frequency over the columns of X, and of the queries and keys of all heads.

    See mathematics.md, Queries and keys as waves.

    Returns
    -------
    xarray.Dataset
        As `attnscope_yamamoto2023.arrays.spectrum.maximum_spectrum`, with the dimensions ``layer`` and ``side`` (X,
        query, key).
    """
    layers = study.evidence.bilinear
    return stacked([_of_layer(layer) for layer in layers], "layer", [layer.site.index for layer in layers])


def _of_layer(layer: Layer) -> xr.Dataset:
    sides: dict[str, list[np.ndarray]] = {"X": [layer.sample], "query": [], "key": []}
    states = append_one(layer.sample)
    for head in range(layer.heads):
        parts = reparametrize(*layer.matrices(head, affine=True))
        sides["query"].append(states @ parts.query)
        sides["key"].append(states @ parts.key)
    empty = [side for side, columns in sides.items() if not sum(part.shape[1] for part in columns)]
    if empty:
        raise NotDefinedError(f"every {empty[0]} of layer {layer.site.index} is equal: its weights are zero")
    return stacked([maximum_spectrum(np.hstack(columns)) for columns in sides.values()], "side", list(sides))
