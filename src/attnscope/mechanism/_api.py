"""Each analysis as one function: of arrays, or of a model and texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture import LoadedModel, borrowing, load_model
from attnscope.corpus import Sources, texts_of
from attnscope.errors import AttnscopeError
from attnscope.mechanism import _over_heads as heads
from attnscope.mechanism._explain import equal_windows
from attnscope.mechanism.arrays import amplitude_spectrum, principal_components
from attnscope.mechanism.arrays import cross_correlation as correlation_of_arrays
from attnscope.mechanism.arrays import cross_spectrum as spectrum_of_arrays
from attnscope.mechanism.arrays import phase_map as map_of_arrays
from attnscope.mechanism.arrays import query_key_waves as waves_of_arrays
from attnscope.mechanism.evidence import (
    Evidence,
    Projections,
    gather,
    model_inputs,
    position_table,
    token_ids,
)
from attnscope.mechanism.evidence import projections as projections_of_model
from attnscope.mechanism.passes import position_content as content_of_model
from attnscope.statistics import window_length

if TYPE_CHECKING:
    from attnscope.capture import Site


@borrowing
def evidence_of(
    source: Any, texts: Sources = None, *, window: int | None = None, limit: int = 100, **load: Any
) -> Evidence:
    """Collect what the analyses of a model need, once for all of them.

    Parameters
    ----------
    source
        A folder, a hub id, or a loaded model with ``tokenizer=``.
    texts
        As in `attnscope.scan`; by default the bundled sample.
    window, limit
        Tokens of a window, and how many windows.
    **load
        See `attnscope.capture.load_model`.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> evidence_of(MODEL, limit=3).texts
    3
    """
    if isinstance(source, Evidence):
        return source
    loaded = source if isinstance(source, LoadedModel) else load_model(source, **load)
    windows = equal_windows(texts_of(texts), loaded, window_length(loaded, window), limit)
    return gather(loaded.model, windows)


def position_spectrum(source: Any, *, part: str | None = None, **options: Any) -> xr.Dataset:
    """Amplitude spectrum of a position table (docs/mathematics.md, Spectrum of the position table).

    Parameters
    ----------
    source
        A model (folder, id or object), or the table itself, ``(position, column)``.
    part
        Part of the table's name where a model has several, such as ``"decoder"``.
    **options
        See `attnscope.mechanism.arrays.amplitude_spectrum`, which also describes the result.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions: the scheme it has instead is named.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> found = position_spectrum(MODEL)
    >>> found["mean"].dims, found.sizes["frequency"]
    (('frequency',), 65)
    """
    return amplitude_spectrum(_table(source, part), **options)


def position_pca(source: Any, *, part: str | None = None, **options: Any) -> xr.Dataset:
    """Principal components of a position table (docs/mathematics.md, Principal components).

    `source`, `part` as in `position_spectrum`; the result as in `principal_components`.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> float(position_pca(MODEL).cumulative_share[-1].round(6))
    1.0
    """
    return principal_components(_table(source, part), **options)


def position_cca(
    source: Any, texts: Sources = None, *, variance: float = 0.999, **options: Any
) -> xr.Dataset:
    """Canonical correlations of each layer's input with the position table: dimension ``layer``.

    See docs/mathematics.md, Canonical correlations.

    Parameters
    ----------
    source, texts, **options
        See `evidence_of`.
    variance
        Share of variance kept on either side before the correlations.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> position_cca(MODEL, limit=4).correlation.dims
    ('layer', 'component')
    """
    evidence = evidence_of(source, texts, **options)
    if not evidence.tables:
        raise AttnscopeError(
            "the model has no table of absolute positions to correlate its states with: choose another analysis"
        )
    return heads.correlations_by_layer(evidence, variance=variance)


@borrowing
def projections(source: Any, texts: Sources = None, **options: Any) -> dict[Site, Projections]:
    """Query, key, value and output matrices of every head, found and verified on a window of text.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> found = projections(MODEL)
    >>> {one.form for one in found.values()}
    {'bilinear'}
    """
    loaded = source if isinstance(source, LoadedModel) else load_model(source, **options)
    length = min(32, window_length(loaded, None))
    windows = equal_windows(texts_of(texts), loaded, length, 2)
    return projections_of_model(loaded.model, model_inputs(loaded.model, token_ids(windows[:1])))


def query_key_waves(source: Any, second: Any = None, key: Any = None, **options: Any) -> xr.Dataset:
    """Waves in the columns of queries and keys, re-parametrised by the SVD of W_Q W_K^T.

    See docs/mathematics.md, Queries and keys as waves.

    Parameters
    ----------
    source, second, key
        Either X ``(position, width)``, W_Q and W_K ``(width, r)``: one head, see
        `attnscope.mechanism.arrays.query_key_waves`. Or a model or evidence, and texts: all heads, with the
        dimensions ``layer, head``.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> query_key_waves(MODEL, limit=2).periodic_columns.dims
    ('layer', 'head')
    """
    if isinstance(source, np.ndarray):
        return waves_of_arrays(source, second, key, **options)
    return heads.waves(evidence_of(source, second, **options))


def cross_spectrum(source: Any, second: Any = None, key: Any = None, **options: Any) -> xr.Dataset:
    """Shift between queries and keys by frequency, free of any completion of R (docs/mathematics.md, Cross-spectrum).

    Arguments as in `query_key_waves`; the result as in `attnscope.mechanism.arrays.cross_spectrum`.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> cross_spectrum(MODEL, limit=2).band_offset.dims
    ('layer', 'head')
    """
    if isinstance(source, np.ndarray):
        return spectrum_of_arrays(source, second, key, **options)
    return heads.cross_spectra(evidence_of(source, second, **options))


def phase_map(source: Any, second: Any = None, key: Any = None, **options: Any) -> xr.Dataset:
    """Energy of queries by frequency and by the angle of the rotation R (docs/mathematics.md, Phase map).

    Arguments as in `query_key_waves`; the result as in `attnscope.mechanism.arrays.phase_map`.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> phase_map(MODEL, limit=2).energy.dims
    ('layer', 'head', 'frequency', 'angle')
    """
    if isinstance(source, np.ndarray):
        return map_of_arrays(source, second, key, **options)
    completion = options.pop("completion", "minimal")
    return heads.phase_maps(evidence_of(source, second, **options), completion=completion)


def cross_correlation(source: Any, second: Any = None, values: Any = None, **options: Any) -> xr.Dataset:
    """Cross-correlation of query and key columns over offsets, and its weighted sum.

    See docs/mathematics.md, Cross-correlation.

    Parameters
    ----------
    source, second, values
        Either Q and K ``(position, column)`` and the singular values: one head, see
        `attnscope.mechanism.arrays.cross_correlation`. Or a model or evidence, and texts: all heads.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> cross_correlation(MODEL, limit=2).trace.dims
    ('layer', 'head', 'offset')
    """
    if isinstance(source, np.ndarray):
        return correlation_of_arrays(source, second, values, **options)
    mode = options.pop("mode", "centre_k")
    return heads.cross_correlations(evidence_of(source, second, **options), mode=mode)


@borrowing
def position_content(
    source: Any, texts: Sources = None, *, window: int | None = None, limit: int = 8, **options: Any
) -> xr.Dataset:
    """Split the scores of every head into position and content (docs/mathematics.md, Position and content).

    Parameters
    ----------
    source
        A folder, a hub id or a `LoadedModel`; or a model object, and then windows in place of texts.
    texts, window, limit
        As in `evidence_of`.
    **options
        See `attnscope.mechanism.passes.position_content`, which also describes the result.

    Examples
    --------
    >>> from attnscope.bundled import MODEL
    >>> position_content(MODEL, limit=2, layers=[0]).share.dims
    ('layer', 'head', 'term')
    """
    loaded = source if isinstance(source, LoadedModel) else load_model(source)
    windows = equal_windows(texts_of(texts), loaded, window_length(loaded, window), limit)
    return content_of_model(loaded.model, windows, **options)


def _table(source: Any, part: str | None) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, Evidence):
        return source.tables[0].rows
    model = source.model if isinstance(source, LoadedModel) else source
    if isinstance(model, (str, Path)):
        model = load_model(model, need_tokenizer=False).model
    return position_table(model, part).rows
