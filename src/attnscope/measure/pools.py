"""Windows in pools, and means over texts: with errors by documents, and the variance between documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
import xarray as xr

from attnscope.measure.labels import with_rows
from attnscope.measure.means import queries
from attnscope.measure.offset_shares import pairs_of, profile_of, rows_of, with_profile
from attnscope.measure.quantities import BY_GROUP, EQUAL, GROUP_ROWS, OF_GROUPS, OF_OFFSETS, wording
from attnscope.measure.stored import WINDOWS
from attnscope.report.reads import reads
from attnscope.store.arrays import in_a_row

if TYPE_CHECKING:
    from attnscope.read.windows import Window
    from attnscope.store.runs import RunFolder


DRAWN = "drawn_"  # prefix of variables stored in full for one window of each pool
VARIANCE = "_variance"  # suffix of a statistic's variance over the windows of a pool
IN_FULL = ("band_sum", "bin_sum")
GROUP_PAIR_ROWS = "group_pair_rows"
OF_WINDOW = "window_"  # prefix of variables stored for every window
_SUMS = "_sum"
_WAITING = 8  # pools' worth of waiting windows, at most, over all values with unfinished pools
_SIZES = ("length", "target_length")


def in_pools(numbered: Iterable[tuple[int, Window]], size: int) -> Iterator[dict[int, Window]]:
    """Windows, by number, in pools of at least `size` and fewer than three times as many, cut at documents."""
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


def _parts_of_documents(numbered: Iterable[tuple[int, Window]], size: int) -> Iterator[tuple[dict[int, Window], bool]]:
    """Documents as they end, and earlier parts of `size` windows before the last; and whether it is the end."""
    document: dict[int, Window] = {}
    source = ""
    for number, window in numbered:
        if document and window.source != source:
            yield document, True
            document = {}
        source = window.source
        document[number] = window
        if len(document) == 2 * size:
            waiting = [*document.items()]
            yield dict(waiting[:size]), False
            document = dict(waiting[size:])
    if document:
        yield document, True


def pooled(results: xr.Dataset, number: int, seed: int) -> xr.Dataset:
    """The windows of a pool as one entry of ``window``."""
    rows = rows_of(results).variable
    drawn = int(np.random.default_rng([seed, number]).integers(results.sizes["window"]))
    results = _with_columns_left(results)
    variables: dict[str, xr.Variable] = {}  # without coordinates, which xarray would align in every step
    for variable in results.data_vars:
        name, values = str(variable), results.variables[variable]
        if name in _SIZES or name.endswith(_SUMS) or name.removeprefix(EQUAL) == GROUP_ROWS:
            variables[name] = values.sum("window", skipna=False, keep_attrs=True)
        elif name.endswith(BY_GROUP) or name.removeprefix(EQUAL) in OF_GROUPS:
            of = results.variables[f"{EQUAL}{GROUP_ROWS}" if name.startswith(EQUAL) else GROUP_ROWS]
            variables[name] = _weighted_nanmean(values, of)
        elif name == "profile" or name.removeprefix(EQUAL) in OF_OFFSETS:  # 0 in windows without the offset
            of = pairs_of(results).variable if name == "profile" else rows
            variables |= {"pairs": of.sum("window")} if name == "profile" else {}
            variables[name] = _weighted(values.fillna(0), of).where(values.notnull().any("window"))
            variables[name].attrs = values.attrs
        elif "window" in values.dims:
            mean = _weighted(values, rows)
            variables[name] = mean
            if values.dims == ("window", "layer", "head") and not name.startswith(EQUAL):
                apart = _weighted((values - mean) ** 2, rows)
                unit = values.attrs.get("units", "")
                meaning = f"{wording(name).long_name}, variance over windows"
                apart.attrs = values.attrs | {"long_name": meaning, "units": f"{unit}²" if unit else ""}
                variables[f"{name}{VARIANCE}"] = apart
                variables[f"{OF_WINDOW}{name}"] = xr.Variable(
                    ("pooled_window", *values.dims[1:]), values.astype(np.float32).data, values.attrs
                )
        else:
            variables[name] = values
    if "group_weight" in results:
        counted = results.variables[GROUP_ROWS]
        present = _where(results.variables["group_weight"].notnull(), counted).sum("window")
        of = present.where(counted.notnull().all("window")).transpose(*variables["group_weight"].dims)
        of.attrs = {"long_name": "Queries of a group in windows that have the group of keys", "units": "tokens"}
        variables[GROUP_PAIR_ROWS] = of
    for name in IN_FULL:
        if name in results:
            variables[f"{DRAWN}{name}"] = results.variables[name].isel(window=drawn)
    variables[f"{DRAWN}length"] = results.variables["length"][drawn]
    variables["window_count"] = xr.Variable((), results.sizes["window"])
    whole = {
        name: values if "pooled_window" in values.dims else values.set_dims(("window", *values.dims))
        for name, values in variables.items()
    } | {
        f"{OF_WINDOW}{name}": xr.Variable("pooled_window", results.variables[name].values)
        for name in ("length", "source", "start", "by")
        if name in results.variables
    }
    coordinates = {name: values for name, values in results.coords.items() if "window" not in values.dims}
    named = [name for name in ("source", "start", "by") if name in results.coords]
    of_first = {name: ("window", results.variables[name].values[:1]) for name in named}
    coordinates |= {"window": [number], **of_first, "pooled_window": results.window.values}
    pool = xr.Dataset(whole, coordinates)
    if {"profile", "band_sum"} <= set(pool):
        pool["profile"] = profile_of(pool)
    return pool


def _weighted(values: xr.Variable, weights: xr.Variable) -> xr.Variable:
    """Mean over windows; NaN if any of them is NaN."""
    return _like((values * weights).sum("window", skipna=False) / weights.sum("window"), values)


def _weighted_nanmean(values: xr.Variable, weights: xr.Variable) -> xr.Variable:
    """Mean over windows without NaN; NaN if all are."""
    present = _where(values.notnull(), weights)
    total = present.sum("window")
    return _like((values.fillna(0) * present).sum("window") / total.where(total > 0), values)


def _where(condition: xr.Variable, values: xr.Variable) -> xr.Variable:
    """Values if the condition holds, else 0."""
    return values.where(condition, 0)  # pyright: ignore[reportArgumentType] it takes numbers too


def _like(mean: xr.Variable, values: xr.Variable) -> xr.Variable:
    """The mean with the dimensions in order, and the attributes, of `values`."""
    mean = mean.transpose(*(dim for dim in values.dims if dim != "window"))
    mean.attrs = values.attrs
    return mean


def _with_columns_left(results: xr.Dataset) -> xr.Dataset:
    """Add the results of `with_rows` for each window, which cannot be computed from their mean."""
    if "mean_offset" not in results:
        return results
    left = with_rows(results, queries(results)).columns_left
    return results.assign(columns_left=left.assign_attrs(long_name="", units=""))


def windows_alone(results: xr.Dataset) -> xr.Dataset:
    """The variables of every window, along ``pooled_window``."""
    return results[[name for name, values in results.data_vars.items() if "pooled_window" in values.dims]]


def pools_alone(results: xr.Dataset) -> xr.Dataset:
    """The variables of each pool, or of each window without pools, along ``window``."""
    return results.drop_vars([name for name, values in results.variables.items() if "pooled_window" in values.dims])


def part_rows(part: RunFolder, piece: range, chosen: slice) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
    """Some texts of a piece; for pools, with their windows."""
    whole, windows = part.piece(piece), part.apart(WINDOWS, piece)
    if windows is None:
        return whole.isel(window=chosen), {}
    # windows of a pool are in a row: pools' ends in them are cumulative counts
    ends = np.concatenate([[0], np.cumsum(whole.window_count.values)])
    of_pools = slice(int(ends[chosen.start]), int(ends[chosen.stop]))
    return whole.isel(window=chosen), {WINDOWS: windows.isel(pooled_window=of_pools)}


def joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Batches, or pools, as one Dataset."""
    whole = in_a_row([pools_alone(part) for part in parts])
    if "pooled_window" not in parts[0].dims:
        return whole
    return whole.merge(in_a_row([windows_alone(part) for part in parts], "pooled_window"))


ERROR, BETWEEN, WITHIN = "_error", "_between", "_within"  # suffixes of a statistic
ICC, ICC_CHANCE = "_intraclass", "_intraclass_by_chance"
_COUNTS = (GROUP_ROWS, GROUP_PAIR_ROWS)
_LEVEL = 0.95  # of the null


class DocumentSums:
    """Sums over texts and documents of many columns, from consecutive pieces, with documents in a row."""

    def __init__(self) -> None:
        self._shift = np.zeros(0)
        self._open: tuple[str, np.ndarray, np.ndarray] | None = None  # an unfinished document: sum, count
        self.documents = self.texts = 0

    def add(self, values: np.ndarray, documents: Iterable[object]) -> None:
        """Count some texts, ``(text, column)``, each of a document."""
        names = [str(name) for name in documents]
        if not self.texts:
            self._begin(values)
        finite = np.isfinite(values)
        apart = np.where(finite, values - self._shift, 0.0)
        self.texts += len(names)
        self._count += finite.sum(0)
        self._sum = _one_by_one(self._sum, apart)
        self._squares = _one_by_one(self._squares, apart**2)
        starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
        for start, stop in pairwise([*starts, len(names)]):
            if self._open is None or self._open[0] != names[start]:
                self._close()
                self._open = names[start], np.zeros(values.shape[1]), np.zeros(values.shape[1])
            _, total, count = self._open
            total = _one_by_one(total, apart[start:stop])
            self._open = names[start], total, count + finite[start:stop].sum(0)

    def _begin(self, values: np.ndarray) -> None:
        # near the mean, so that squares lose no digits, and independent of pieces
        self._shift = np.where(np.isfinite(values[0]), values[0], 0.0)
        nothing = np.zeros(values.shape[1])
        self._count, self._sum, self._squares = nothing.copy(), nothing.copy(), nothing.copy()
        # over documents with a sum S of n texts: their number, n^2, S^2 / n, S^2, S n
        self._groups, self._n2, self._s2_n, self._s2, self._sn = (nothing.copy() for _ in range(5))

    def _close(self) -> None:
        """Count the unfinished document."""
        if self._open is None:
            return
        _, total, count = self._open
        self._open = None
        self.documents += 1
        self._groups += count > 0
        self._n2 += count**2
        self._s2_n += total**2 / np.maximum(1, count)
        self._s2 += total**2
        self._sn += total * count

    def mean(self) -> np.ndarray:
        """Mean over texts, ``(column,)``; NaN without texts."""
        self._close()
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._sum / self._count + self._shift

    def error(self) -> np.ndarray:
        """Standard error of the mean by documents, as in `attnscope.statistics.intervals.mean_by_document`."""
        self._close()
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self._sum / self._count
            apart = np.maximum(0.0, self._s2 - 2 * mean * self._sn + mean**2 * self._n2)
            return np.sqrt(self._groups / (self._groups - 1) * apart) / self._count

    def components(self) -> dict[str, np.ndarray]:
        """Variance between and within documents, and the intraclass correlation; see `over_documents`."""
        self._close()
        with np.errstate(invalid="ignore", divide="ignore"):
            free, rest = self._groups - 1, self._count - self._groups
            means = self._s2_n - self._sum**2 / self._count  # sum of squares between documents
            between, within = means / free, (self._squares - self._s2_n) / rest
            size = (self._count - self._n2 / self._count) / free
            apart = (between - within) / size
            most = scipy.special.fdtri(np.where(free > 0, free, np.nan), np.where(rest > 0, rest, np.nan), _LEVEL)
            share, chance = apart / (apart + within), (most - 1) / (most - 1 + size)
            return {BETWEEN: apart, WITHIN: within, ICC: share, ICC_CHANCE: chance}


def _one_by_one(sums: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Add rows to sums one by one, so that the result does not depend on pieces."""
    first = rows[0].copy()
    rows[0] += sums
    # NumPy adds rows in order, but the numbers of a single column in pairs
    total = rows.sum(0) if rows.shape[1] > 1 else np.add.accumulate(rows)[-1]
    rows[0] = first
    return total


_SAYS = {
    ERROR: "standard error of the mean by documents",
    BETWEEN: "variance between documents",
    WITHIN: "variance within documents",
    ICC: "share of the variance between documents",
    ICC_CHANCE: "that share by chance: exceeded in 5% of cases if documents do not matter",
}


@reads("scan")
def over_documents(results: xr.Dataset) -> xr.Dataset:
    r"""Mean of every statistic over the texts of a scan, with errors by documents and the variance between documents.

    One-way random-effects model: a text's value is the head's mean plus effects of its document and of the text. With
    D documents, N texts, mean squares :math:`MS_B` between and :math:`MS_W` within documents, and :math:`n_0 = (N
    - \sum n_d^2 / N) / (D - 1)`, the variances are :math:`\sigma_B^2 = (MS_B - MS_W) / n_0` and :math:`MS_W` (analysis
    of variance of unequal groups; Searle, Casella and McCulloch, Variance Components, 1992, section 3.6). The first may
    be below 0 if documents differ less than by chance. See "Between and within documents" in mathematics.md.

    Parameters
    ----------
    results
        Results of a scan, in memory, with the windows of each document in a row.

    Returns
    -------
    xarray.Dataset
        For each statistic its mean under its name, and ``..._error``; with one number a head also ``..._between``,
        ``..._within``, ``..._intraclass`` (the share of the first in both), and ``..._intraclass_by_chance`` (exceeded
        in 5% of cases if documents do not matter, by the F distribution). NaN if no document has two texts. Attributes
        ``texts`` and ``documents``.

    Examples
    --------
    >>> values = xr.Dataset(
    ...     {"entropy": (("window", "layer", "head"), np.array([0.0, 2, 4, 6]).reshape(4, 1, 1))},
    ...     {"source": ("window", ["a", "a", "b", "b"])},
    ... )
    >>> means = over_documents(values)
    >>> [float(means[name].squeeze()) for name in ("entropy", "entropy_between", "entropy_within")]
    [3.0, 7.0, 2.0]
    """
    gathered = _Gathered()
    gathered.add(results, results.source.values.tolist())
    return gathered.dataset(components=True)


def heads_of_run(run: RunFolder) -> xr.Dataset:
    """`over_documents` of a run, piece by piece; means and errors from pools, variances from their windows."""
    texts, windows = _Gathered(), _Gathered()
    names = (run.signature.settings or {}).get("statistics", ())
    for piece_texts in run.pieces:
        piece, short = run.piece(piece_texts), run.apart(WINDOWS, piece_texts)
        piece = with_profile(piece) if "band_sum" in piece and "profile" in names else piece
        texts.add(piece, piece.source.values.tolist())
        if short is not None:
            windows.add(_of_windows(short), short[f"{OF_WINDOW}source"].values.tolist())
    whole = texts.dataset(components=not windows.parts)
    if windows.parts:
        of_windows = windows.dataset(components=True)
        ends = (BETWEEN, WITHIN, ICC, ICC_CHANCE)
        components = [name for name in of_windows.data_vars if str(name).endswith(ends)]
        whole = whole.merge(of_windows[components], compat="override", combine_attrs="override")
        whole.attrs["windows"] = of_windows.attrs["texts"]
    return whole


def _of_windows(short: xr.Dataset) -> xr.Dataset:
    """Statistics of windows under their names in pools."""
    names = {
        str(name): str(name).removeprefix(OF_WINDOW)
        for name, variable in short.data_vars.items()
        if variable.dims == ("pooled_window", "layer", "head")
    }
    return short[[*names]].rename(names | {"pooled_window": "window"})


class _Gathered:
    """Sums of each statistic, with their names and coordinates."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[DocumentSums, xr.DataArray]] = {}
        self.coords: dict[Any, xr.DataArray] = {}

    def add(self, piece: xr.Dataset, documents: list[str]) -> None:
        """Count the texts of a piece."""
        for name, statistic in _statistics(piece):
            sums, _ = self.parts.setdefault(name, (DocumentSums(), statistic.isel(window=0, drop=True)))
            values = statistic.transpose("window", ...).values
            sums.add(values.reshape(len(values), -1).astype(np.float64), documents)
        self.coords = {name: coordinate for name, coordinate in piece.coords.items() if "window" not in coordinate.dims}

    def dataset(self, *, components: bool) -> xr.Dataset:
        """The means, and on request the variances between documents."""
        means: dict[str, xr.DataArray] = {}
        texts = documents = 0
        for name, (sums, like) in self.parts.items():
            numbers = {"": sums.mean(), ERROR: sums.error()}
            if components and like.dims == ("layer", "head"):
                numbers |= sums.components()
            texts, documents = sums.texts, sums.documents
            for end, values in numbers.items():
                means[name + end] = like.copy(data=values.reshape(like.shape)).assign_attrs(_words_of(like, end))
        whole = xr.Dataset(means, attrs={"texts": texts, "documents": documents})
        return whole.assign_coords(
            {k: coordinate for k, coordinate in self.coords.items() if set(coordinate.dims) <= set(whole.dims)}
        )


def _statistics(piece: xr.Dataset) -> Iterator[tuple[str, xr.DataArray]]:
    """The statistics of every head and text."""
    for key, values in piece.data_vars.items():
        name = str(key)
        of_heads = {"window", "layer", "head"} <= set(values.dims) and values.dtype.kind == "f"
        if of_heads and not name.startswith((DRAWN, EQUAL)) and not name.endswith((VARIANCE, *_COUNTS)):
            yield name, values


def _words_of(like: xr.DataArray, end: str) -> dict[str, Any]:
    if not end:
        return like.attrs
    unit = like.attrs.get("units", "")
    squared = {ERROR: unit, ICC: "share", ICC_CHANCE: "share"}.get(end, f"{unit}²" if unit else "")
    return {"long_name": f"{like.attrs.get('long_name', like.name)}: {_SAYS[end]}", "units": squared}
