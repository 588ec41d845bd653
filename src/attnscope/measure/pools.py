"""Windows in pools: what is kept of a corpus of which all windows in full would not fit on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from scipy import special

from attnscope.measure.documents import FEW, LEAST, interval, mean_by_document, units_of
from attnscope.measure.offset_shares import pairs_of, profile_of, rows_of
from attnscope.measure.places import with_rows
from attnscope.measure.quantities import BY_GROUP, EQUAL, GROUP_ROWS, OF_GROUPS, OF_OFFSETS, wording
from attnscope.measure.ranking import queries
from attnscope.store.arrays import in_a_row
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.read.windows import Window
    from attnscope.store.runs import RunFolder

DRAWN = "drawn_"  # begins the names of what is kept in full of one window of each pool
VARIANCE = "_variance"  # ends the name of a statistic's variance over the windows of a pool
IN_FULL = ("band_sum", "bin_sum")
GROUP_PAIR_ROWS = "group_pair_rows"
OF_WINDOW = "window_"  # begins the names of what is kept of every window
_SUMS = "_sum"
_WAITING = 8  # pools of windows that wait, at most, in those of all values that are not full
_SIZES = ("length", "target_length")


def in_pools(numbered: Iterable[tuple[int, Window]], size: int) -> Iterator[dict[int, Window]]:
    """Windows, by their numbers, in pools of `size` at least and fewer than three times as many, cut at documents."""
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
    """The windows of a pool as one entry of ``window``."""
    rows = rows_of(results).variable
    drawn = int(np.random.default_rng([seed, number]).integers(results.sizes["window"]))
    results = _with_columns_left(results)
    variables: dict[str, xr.Variable] = {}  # without coordinates, which xarray would align in every step
    for given in results.data_vars:
        name, values = str(given), results.variables[given]
        if name in _SIZES or name.endswith(_SUMS) or name.removeprefix(EQUAL) == GROUP_ROWS:
            variables[name] = values.sum("window", skipna=False, keep_attrs=True)
        elif name.endswith(BY_GROUP) or name.removeprefix(EQUAL) in OF_GROUPS:
            of = results.variables[f"{EQUAL}{GROUP_ROWS}" if name.startswith(EQUAL) else GROUP_ROWS]
            variables[name] = _weighted_nanmean(values, of)
        elif name.removeprefix(EQUAL) in OF_OFFSETS:  # over all queries: those of windows that have none are at 0
            variables[name] = _weighted(values.fillna(0), rows).where(values.notnull().any("window"))
            variables[name].attrs = values.attrs
        elif name == "profile":
            pairs = pairs_of(results).variable
            variables["pairs"] = pairs.sum("window")
            variables[name] = _weighted(values.fillna(0), pairs).where(values.notnull().any("window"))
            variables[name].attrs = values.attrs
        elif "window" in values.dims:
            mean = _weighted(values, rows)
            variables[name] = mean
            if values.dims == ("window", "layer", "head") and not name.startswith(EQUAL):
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
                    ("pooled_window", *values.dims[1:]), alone.data, values.attrs
                )
        else:
            variables[name] = values
    if "group_weight" in results:
        counted = results.variables[GROUP_ROWS]
        known = _where(results.variables["group_weight"].notnull(), counted).sum("window")
        of = known.where(counted.notnull().all("window")).transpose(*variables["group_weight"].dims)
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
    of_first = {
        name: ("window", results.variables[name].values[:1])
        for name in ("source", "start", "by")
        if name in results.coords
    }
    coordinates |= {"window": [number], **of_first, "pooled_window": results.window.values}
    pool = xr.Dataset(whole, coordinates)
    if {"profile", "band_sum"} <= set(pool):
        pool["profile"] = profile_of(pool)
    return pool


def _weighted(values: xr.Variable, weights: xr.Variable) -> xr.Variable:
    """Mean over windows; NaN stays where it is in any of them."""
    mean = (values * weights).sum("window", skipna=False) / weights.sum("window")
    return _like(mean, values)


def _weighted_nanmean(values: xr.Variable, weights: xr.Variable) -> xr.Variable:
    """Mean over the windows that have it; NaN where none has."""
    known = _where(values.notnull(), weights)
    total = known.sum("window")
    return _like((values.fillna(0) * known).sum("window") / total.where(total > 0), values)


def _where(condition: xr.Variable, values: xr.Variable) -> xr.Variable:
    """Values where the condition holds, and 0 elsewhere."""
    return values.where(condition, 0)  # pyright: ignore[reportArgumentType] it takes numbers too


def _like(mean: xr.Variable, values: xr.Variable) -> xr.Variable:
    """The mean with the dimensions in order, and the attributes, of `values`."""
    mean = mean.transpose(*(dim for dim in values.dims if dim != "window"))
    mean.attrs = values.attrs
    return mean


def _with_columns_left(results: xr.Dataset) -> xr.Dataset:
    """What `with_rows` finds of each window cannot be found of their mean: it is kept."""
    if "mean_offset" not in results:
        return results
    left = with_rows(results, queries(results)).columns_left
    return results.assign(columns_left=left.assign_attrs(long_name="", units=""))


def windows_alone(results: xr.Dataset) -> xr.Dataset:
    """What is kept of every window, along ``pooled_window``."""
    return results[[name for name, values in results.data_vars.items() if "pooled_window" in values.dims]]


def pools_alone(results: xr.Dataset) -> xr.Dataset:
    """What is kept of each pool, or of each window where there are no pools, along ``window``."""
    return results.drop_vars([name for name, values in results.variables.items() if "pooled_window" in values.dims])


def windows_of_pools(windows: xr.Dataset, pools: xr.Dataset, chosen: slice) -> xr.Dataset:
    """What is kept of the windows of some pools of a piece."""
    ends = np.concatenate([[0], np.cumsum(pools.window_count.values)])
    return windows.isel(pooled_window=slice(int(ends[chosen.start]), int(ends[chosen.stop])))


def joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """Batches, or pools, as one Dataset."""
    whole = in_a_row([pools_alone(part) for part in parts])
    if "pooled_window" not in parts[0].dims:
        return whole
    return whole.merge(in_a_row([windows_alone(part) for part in parts], "pooled_window"))


def in_order(parts: Iterable[xr.Dataset]) -> list[xr.Dataset]:
    """Batches, or pools, one text after the other."""
    return sorted(parts, key=lambda pool: int(pool.window[0]))


def stretches(parts: Iterable[xr.Dataset]) -> Iterator[xr.Dataset]:
    """Batches, or pools, in any order: those that follow each other as one Dataset."""
    waiting: list[xr.Dataset] = []
    for part in in_order(parts):
        if waiting and part.window[0] != waiting[-1].window[-1] + 1:
            yield joined(waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield joined(waiting)


_FIRST = 4  # batches before the first look; each look is at twice as many, so that looking costs little


def widest_interval(results: xr.Dataset) -> float:
    """Width of the widest 95% interval of the mean of any head, over all statistics that are shares."""
    shares = [
        values.transpose("window", "layer", "head").values.reshape(results.sizes["window"], -1)
        for values in _shares(results).data_vars.values()
    ]
    units, _ = units_of(results.source.values.tolist())
    values = np.concatenate(shares, 1)
    _, error, count = mean_by_document(values, units)
    if count < LEAST:
        return float("inf")
    width = float(2 * special.stdtrit(count - 1, 0.975) * np.nanmax(error))
    if count >= FEW:
        return width
    low, high = interval(values, units)  # which is wider where documents are skewed
    return max(width, float(np.nanmax(high - low)))


def is_check(batches: int) -> bool:
    """Whether intervals are looked at after so many batches."""
    return batches >= _FIRST and batches & (batches - 1) == 0


class Enough:
    """Looks at what is measured so far now and then, and ends the scan where it is enough."""

    def __init__(self, until: float, run: RunFolder | None) -> None:
        self.until, self.batches, self.texts = until, 0, 0
        self.parts = [] if run is None or not run.pieces else [_shares(run.results())]

    def before(self, done: Callable[[range], bool]) -> Callable[[range], bool]:
        """Look before a batch is measured."""

        def look(texts: range) -> bool:
            if is_check(self.batches) and self._is_enough(texts.start):
                self.texts = texts.start
                raise EnoughError
            self.batches += 1
            return done(texts)

        return look

    def over(self, batches: Iterator[xr.Dataset]) -> Iterator[xr.Dataset]:
        """Batches until it is enough."""
        try:
            for results in batches:
                self.parts.append(_shares(results))
                yield results
        except EnoughError:
            return

    def note(self, each: str) -> dict[str, str]:
        """What a reader has to know of how wide intervals are, and of a scan that ended before its texts did."""
        whole = in_a_row(self.parts)
        if self.texts:
            whole = whole.isel(window=whole.window.values < self.texts)
        read, width = whole.sizes["window"], widest_interval(whole)
        found = f"the widest 95% interval of a head's mean share is {width:.2g} wide"
        if np.isinf(width):
            found = f"fewer than {LEAST} {each} have no 95% interval"
        if self.texts:
            return {
                "until": f"Stopped after {read} {each}, the first of the corpus: {found}, and {self.until:g} was asked "
                "for. The rest was not read: these intervals tell of it only if texts come in no order."
            }
        first = ", ".join(str(_FIRST << power) for power in range(3))
        looks = f"it is looked at after {first}, ... {'pools' if each == 'pools' else 'batches'}"
        return {
            "until": f"Not stopped, all {read} {each} were read: {found}, and {self.until:g} was asked for ({looks})."
        }

    def _is_enough(self, texts: int) -> bool:
        whole = in_a_row(self.parts)
        return widest_interval(whole.isel(window=whole.window.values < texts)) <= self.until


class EnoughError(Exception):
    """Enough is measured."""


def _shares(results: xr.Dataset) -> xr.Dataset:
    """The statistics that are shares, one a head."""
    names = [
        name
        for name, values in results.data_vars.items()
        if set(values.dims) == {"window", "layer", "head"} and values.attrs.get("units") == "share"
    ]
    if not names:
        raise AttnscopeError(
            "until (--until) is of statistics that are shares of weight, such as first_token or outside: name one with "
            "statistics (--statistics)"
        )
    return results[names]


@dataclass(frozen=True, eq=False)
class HostCopy:
    """Tensors that leave a device: on CUDA behind what it was told to do before, and nobody waits until they are
    read.
    """

    copies: dict[str, Tensor]  # on the host, in pinned memory; not to be read before they have arrived
    done: torch.cuda.Event | None  # comes to pass when they are whole; None where they are

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> HostCopy:
        """Tell the device of `tensors`, one for all of them, to send copies."""
        device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        if device is None:
            return cls({name: tensor.cpu() for name, tensor in tensors.items()}, None)
        with torch.cuda.device(device):  # whose stream the copies and the event are in
            copies = {name: tensor.to("cpu", non_blocking=True) for name, tensor in tensors.items()}
            done = torch.cuda.Event()
            done.record()
        return cls(copies, done)

    def arrived(self) -> dict[str, Tensor]:
        """The copies, once they are whole."""
        if self.done is not None:
            self.done.synchronize()
        return self.copies


class HostOffloader(Mapping[int, "dict[str, Tensor]"]):
    """Tensors of each layer by its index: they leave the device when they are put here, and are waited for when
    read.
    """

    def __init__(self) -> None:
        self._leaving: dict[int, HostCopy] = {}

    def __setitem__(self, layer: int, tensors: Mapping[str, Tensor]) -> None:
        self._leaving[layer] = HostCopy.of(tensors)

    def __getitem__(self, layer: int) -> dict[str, Tensor]:
        return self._leaving[layer].arrived()

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._leaving))

    def __len__(self) -> int:
        return len(self._leaving)
