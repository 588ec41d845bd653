"""What intervals are over: documents, whose windows are not independent, or windows where there are too few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import xarray as xr

LEAST = 6  # of fewer, no mean can be told from 0: all have one sign in more than 5% of cases
LEVEL = 0.95  # of intervals, and of what is told from 0
DRAWS = 1000  # of documents, for an interval


def units_of(documents: Sequence[Hashable]) -> tuple[Sequence[Hashable], str]:
    """What the bootstrap draws: documents; windows where there are fewer than 6 documents.

    An interval over windows is about more windows of these documents, and says nothing of others.

    Examples
    --------
    >>> units_of(["a", "a", "b"]), units_of(list("abcdef"))[1]
    ((range(0, 3), 'windows'), 'documents')
    """
    if len(set(documents)) >= LEAST:
        return documents, "documents"
    return range(len(documents)), "windows"


def units_in(results: xr.Dataset, known: np.ndarray | None = None) -> tuple[Sequence[Hashable], str]:
    """What the bootstrap draws of results along ``text``, and what it is called in them.

    Of a scan in pools that is pools, or those with different first documents: no more is kept of documents.

    Parameters
    ----------
    results
        With the document of each text as ``source``; each is one where it is not there.
    known
        Which texts count, all by default, ``(text,)``.

    Examples
    --------
    >>> import xarray as xr
    >>> pools = xr.Dataset({"window_count": ("text", [4] * 7)}, {"source": ("text", list("abcdefg"))})
    >>> units_in(pools)[1], units_in(pools.drop_vars("window_count"))[1]
    ('pools', 'documents')
    """
    sources = (
        results.source.values.tolist() if "source" in results.coords else list(range(results.sizes["text"]))
    )
    if known is not None:
        sources = [source for source, there in zip(sources, known, strict=True) if there]
    drawn, unit = units_of(sources)
    if "window_count" in results:
        return drawn, "pools" if len(set(drawn)) == len(drawn) else "pools of different documents"
    return drawn, called_in(results.attrs)[unit]


def called_in(attributes: Mapping[str, Any]) -> dict[str, str]:
    """What documents and windows are called in results that have these attributes.

    Examples
    --------
    >>> called_in({"reads": "images"})["documents"], called_in({})["windows"]
    ('images', 'windows')
    """
    return _CALLED.get(str(attributes.get("reads")), _OF_TEXTS)


_OF_TEXTS = {"documents": "documents", "windows": "windows"}
_CALLED = {
    "images": {"documents": "images", "windows": "images"},
    "videos": {"documents": "videos", "windows": "videos"},
    "sounds": {"documents": "sounds", "windows": "windows"},
    "pools": {"documents": "pools of different documents", "windows": "pools"},
    "texts with images": {"documents": "texts", "windows": "texts"},
}


def mean_by_document(values: np.ndarray, documents: Sequence[Hashable]) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean over texts, ``(column,)``, its standard error by documents, and how many of these there are.

    A ratio of sums, as documents have different numbers of texts (Cochran 1977, section 2.11).

    Examples
    --------
    >>> mean, error, count = mean_by_document(np.array([[1.0], [3.0], [5.0]]), ["a", "a", "b"])
    >>> mean.tolist(), error.round(3).tolist(), count
    ([3.0], [1.333], 2)
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    member = np.array([numbers[name] for name in documents])
    count = len(numbers)
    sizes = np.bincount(member).astype(float)
    sums = np.zeros((count, values.shape[1]))
    np.add.at(sums, member, values)
    mean = sums.sum(0) / sizes.sum()
    apart = sums - mean * sizes[:, None]
    error = np.sqrt(count / max(1, count - 1) * (apart**2).sum(0)) / sizes.sum()
    return mean, error, count
