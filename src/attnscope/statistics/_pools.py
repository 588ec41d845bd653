"""Windows in pools: what is kept of a corpus of which all windows in full would not fit on a disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.statistics._catalogue import BY_GROUP, EQUAL, GROUP_ROWS, OF_GROUPS, OF_OFFSETS, wording
from attnscope.statistics._places import with_rows
from attnscope.statistics._profile import pairs_of, profile_of, rows_of
from attnscope.statistics._ranking import queries
from attnscope.store import in_a_row

if TYPE_CHECKING:
    from attnscope.corpus import Window

DRAWN = "drawn_"  # begins the names of what is kept in full of one window of each pool
VARIANCE = "_variance"  # ends the name of a statistic's variance over the windows of a pool
IN_FULL = ("band_sum", "bin_sum")
GROUP_PAIR_ROWS = "group_pair_rows"
OF_WINDOW = "window_"  # begins the names of what is kept of every window
_SUMS = "_sum"
_WAITING = 8  # pools of windows that wait, at most, in those of all values that are not full
_SIZES = ("length", "target_length")


def in_pools(numbered: Iterable[tuple[int, Window]], size: int) -> Iterator[dict[int, Window]]:
    """Windows, by their numbers, in pools of `size` at least and fewer than three times as many, cut at documents.

    A pool is of whole documents, or a part of one, so that documents tell which pools are independent of each other.
    Documents that are held apart by a field (`Window.by`) are in a pool of their own value, which stays open while
    those of other values are read. Fewer windows are in the pool before a document that makes pools of its own, in the
    last of each value, and where windows of 8 pools wait in those that are open: then the fullest is closed, so that
    memory does not grow with the number of values.

    Parameters
    ----------
    numbered
        Windows and their numbers, those of a document one after the other.
    size
        Number of windows in a pool at least.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> def pools(documents, values):
    ...     windows = [SimpleNamespace(source=name, by=values[name]) for name in documents]
    ...     return ["".join(window.source for window in pool.values()) for pool in in_pools(enumerate(windows), 3)]
    >>> pools("aabccccccdeeee", dict.fromkeys("abcde", ""))
    ['aab', 'ccc', 'ccc', 'deeee']
    >>> pools("aabcdeef", dict(a="en", b="ja", c="en", d="ja", e="en", f="ja"))
    ['aac', 'bdf', 'ee']
    """
    unfilled: dict[str, dict[int, Window]] = {}
    for part, whole in _parts_of_documents(numbered, size):
        value = next(iter(part.values())).by
        if not whole and value in unfilled:
            yield unfilled.pop(value)
        pool = unfilled.pop(value, {}) | part
        if not whole or len(pool) >= size:
            yield pool
        else:
            unfilled[value] = pool
        while sum(map(len, unfilled.values())) > _WAITING * size:
            yield unfilled.pop(max(unfilled, key=lambda value: len(unfilled[value])))
    yield from unfilled.values()


def _parts_of_documents(
    numbered: Iterable[tuple[int, Window]], size: int
) -> Iterator[tuple[dict[int, Window], bool]]:
    """Documents as they end, and before that what is `size` windows before the last; and whether it is the end."""
    document: dict[int, Window] = {}
    source = ""
    for number, window in numbered:
        if document and window.source != source:
            yield document, True
            document = {}
        source = window.source
        document[number] = window
        if len(document) == 2 * size:
            begun = [*document.items()]
            yield dict(begun[:size]), False
            document = dict(begun[size:])
    if document:
        yield document, True


def pooled(results: xr.Dataset, number: int, seed: int) -> xr.Dataset:
    """The windows of a pool as one entry of ``text``.

    Sums are summed, and means over rows are means over the rows of all windows. ``..._variance`` is the variance of a
    statistic over the windows, each weighted by its rows; ``window_...`` are the statistics of every window, float32,
    and ``drawn_...`` sums of one window, drawn by the seed, alone. What is of the queries of a group of tokens is a
    mean over those of all windows that have the groups: ``group_rows`` counts the queries of each group, and
    ``group_pair_rows`` those of windows that have the group of keys too.

    Parameters
    ----------
    results
        The windows of the pool, as `Measurement` gives them.
    number
        Number of the pool.
    seed
        Seed of the drawing.

    Examples
    --------
    >>> windows = xr.Dataset(
    ...     {"length": ("text", [2, 6]), "entropy": (("text", "layer", "head"), [[[1.0]], [[2.0]]])},
    ...     {"text": [4, 5], "source": ("text", ["a", "a"]), "layer": [0], "layer_kind": ("layer", ["self"])},
    ... )
    >>> pool = pooled(windows, 2, seed=0)
    >>> pool.entropy.values.tolist(), pool.entropy_variance.values.tolist()  # of 2 and 6 rows
    ([[[1.75]]], [[[0.1875]]])
    >>> pool.text.values.tolist(), pool.window_entropy.values.ravel().tolist()
    ([2], [1.0, 2.0])
    """
    rows = rows_of(results).variable
    drawn = int(np.random.default_rng([seed, number]).integers(results.sizes["text"]))
    results = _with_columns_left(results)
    variables: dict[str, xr.Variable] = {}  # without coordinates, which xarray would align in every step
    for given in results.data_vars:
        name, values = str(given), results.variables[given]
        if name in _SIZES or name.endswith(_SUMS) or name.removeprefix(EQUAL) == GROUP_ROWS:
            variables[name] = values.sum("text", skipna=False, keep_attrs=True)
        elif name.endswith(BY_GROUP) or name.removeprefix(EQUAL) in OF_GROUPS:
            of = results.variables[f"{EQUAL}{GROUP_ROWS}" if name.startswith(EQUAL) else GROUP_ROWS]
            variables[name] = _weighted_where_known(values, of)
        elif (
            name.removeprefix(EQUAL) in OF_OFFSETS
        ):  # over all queries: those of windows that have none are at 0
            variables[name] = _weighted(values.fillna(0), rows).where(values.notnull().any("text"))
            variables[name].attrs = values.attrs
        elif name == "profile":
            pairs = pairs_of(results).variable
            variables["pairs"] = pairs.sum("text")
            variables[name] = _weighted(values.fillna(0), pairs).where(values.notnull().any("text"))
            variables[name].attrs = values.attrs
        elif "text" in values.dims:
            mean = _weighted(values, rows)
            variables[name] = mean
            if values.dims == ("text", "layer", "head") and not name.startswith(EQUAL):
                apart = _weighted((values - mean) ** 2, rows)
                unit = values.attrs.get("units", "")
                apart.attrs = {
                    **values.attrs,
                    "long_name": f"{wording(name).long_name}, variance over windows",
                    "units": f"{unit}²" if unit else "",
                }
                variables[f"{name}{VARIANCE}"] = apart
                alone = values.astype(np.float32)
                variables[f"{OF_WINDOW}{name}"] = xr.Variable(
                    ("window", *values.dims[1:]), alone.data, values.attrs
                )
        else:
            variables[name] = values
    if "group_weight" in results:
        counted = results.variables[GROUP_ROWS]
        known = _where(results.variables["group_weight"].notnull(), counted).sum("text")
        of = known.where(counted.notnull().all("text")).transpose(*variables["group_weight"].dims)
        of.attrs = {
            "long_name": "Queries of a group in windows that have the group of keys",
            "units": "tokens",
        }
        variables[GROUP_PAIR_ROWS] = of
    for name in IN_FULL:
        if name in results:
            variables[f"{DRAWN}{name}"] = results.variables[name].isel(text=drawn)
    variables[f"{DRAWN}length"] = results.variables["length"][drawn]
    variables["window_count"] = xr.Variable((), results.sizes["text"])
    whole = {
        name: values if "window" in values.dims else values.set_dims(("text", *values.dims))
        for name, values in variables.items()
    } | {
        f"{OF_WINDOW}{name}": xr.Variable("window", results.variables[name].values)
        for name in ("length", "source", "start", "by")
        if name in results.variables
    }
    coordinates = {name: values for name, values in results.coords.items() if "text" not in values.dims}
    of_first = {
        name: ("text", results.variables[name].values[:1])
        for name in ("source", "start", "by")
        if name in results.coords
    }
    coordinates |= {"text": [number], **of_first, "window": results.text.values}
    pool = xr.Dataset(whole, coordinates)
    if {"profile", "band_sum"} <= set(pool):
        pool["profile"] = profile_of(pool)
    return pool


def _weighted(values: xr.Variable, weights: xr.Variable) -> xr.Variable:
    """Mean over windows; NaN stays where it is in any of them."""
    mean = (values * weights).sum("text", skipna=False) / weights.sum("text")
    return _like(mean, values)


def _weighted_where_known(values: xr.Variable, weights: xr.Variable) -> xr.Variable:
    """Mean over the windows that have it; NaN where none has."""
    known = _where(values.notnull(), weights)
    total = known.sum("text")
    return _like((values.fillna(0) * known).sum("text") / total.where(total > 0), values)


def _where(condition: xr.Variable, values: xr.Variable) -> xr.Variable:
    """Values where the condition holds, and 0 elsewhere."""
    return values.where(condition, 0)  # pyright: ignore[reportArgumentType] it takes numbers too


def _like(mean: xr.Variable, values: xr.Variable) -> xr.Variable:
    """The mean with the dimensions in order, and the attributes, of `values`."""
    mean = mean.transpose(*(dim for dim in values.dims if dim != "text"))
    mean.attrs = values.attrs
    return mean


def _with_columns_left(results: xr.Dataset) -> xr.Dataset:
    """What `with_rows` finds of each window cannot be found of their mean: it is kept."""
    if "mean_offset" not in results:
        return results
    left = with_rows(results, queries(results)).columns_left
    return results.assign(columns_left=left.assign_attrs(long_name="", units=""))


def windows_alone(results: xr.Dataset) -> xr.Dataset:
    """What is kept of every window, along ``window``."""
    return results[[name for name, values in results.data_vars.items() if "window" in values.dims]]


def pools_alone(results: xr.Dataset) -> xr.Dataset:
    """What is kept of each pool, or of each window where there are no pools, along ``text``."""
    return results.drop_vars([name for name, values in results.variables.items() if "window" in values.dims])


def windows_of_pools(windows: xr.Dataset, pools: xr.Dataset, chosen: slice) -> xr.Dataset:
    """What is kept of the windows of some pools of a piece."""
    ends = np.concatenate([[0], np.cumsum(pools.window_count.values)])
    return windows.isel(window=slice(int(ends[chosen.start]), int(ends[chosen.stop])))


def joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Batches, or pools, as one Dataset."""
    whole = in_a_row([pools_alone(part) for part in parts])
    if "window" not in parts[0].dims:
        return whole
    return whole.merge(in_a_row([windows_alone(part) for part in parts], "window"))


def in_order(parts: Iterable[xr.Dataset]) -> list[xr.Dataset]:
    """Batches, or pools, one text after the other."""
    return sorted(parts, key=lambda pool: int(pool.text[0]))


def stretches(parts: Iterable[xr.Dataset]) -> Iterator[xr.Dataset]:
    """Batches, or pools, in any order: those that follow each other as one Dataset.

    Examples
    --------
    >>> parts = [xr.Dataset(coords={"text": texts}) for texts in ([4, 5], [0, 1], [2], [6])]
    >>> [part.text.values.tolist() for part in stretches(parts)]
    [[0, 1, 2], [4, 5, 6]]
    """
    waiting: list[xr.Dataset] = []
    for part in in_order(parts):
        if waiting and part.text[0] != waiting[-1].text[-1] + 1:
            yield joined(waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield joined(waiting)
