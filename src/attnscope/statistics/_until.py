"""When enough of a corpus is read: intervals of all heads are as narrow as was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from scipy import stats

from attnscope._documents import FEW, LEAST, interval, mean_by_document, units_of
from attnscope.errors import AttnscopeError
from attnscope.store import in_a_row

if TYPE_CHECKING:
    from attnscope.store import RunFolder

_FIRST = 4  # batches before the first look; each look is at twice as many, so that looking costs little


def widest_interval(results: xr.Dataset) -> float:
    """Width of the widest 95% interval of the mean of any head, over all statistics that are shares.

    By documents (by texts where there are fewer than 6): see `attnscope._documents.mean_by_document`. Infinite with
    fewer than 6 texts.

    Raises
    ------
    AttnscopeError
        No statistic is a share.

    Examples
    --------
    >>> import xarray as xr
    >>> share = ("text", "layer", "head"), np.tile([[0.2, 0.3]], (8, 1, 1)), {"units": "share"}
    >>> widest_interval(xr.Dataset({"first_token": share}, {"source": ("text", np.arange(8))})) < 1e-12
    True
    """
    shares = [
        values.transpose("text", "layer", "head").values.reshape(results.sizes["text"], -1)
        for values in _shares(results).data_vars.values()
    ]
    units, _ = units_of(results.source.values.tolist())
    values = np.concatenate(shares, 1)
    _, error, count = mean_by_document(values, units)
    if count < LEAST:
        return float("inf")
    width = float(2 * stats.t.ppf(0.975, count - 1) * np.nanmax(error))
    if count >= FEW:
        return width
    low, high = interval(values, units)  # which is wider where documents are skewed
    return max(width, float(np.nanmax(high - low)))


def is_look(batches: int) -> bool:
    """Whether intervals are looked at after so many batches.

    Examples
    --------
    >>> [batches for batches in range(1, 40) if is_look(batches)]
    [4, 8, 16, 32]
    """
    return batches >= _FIRST and batches & (batches - 1) == 0


class Enough:
    """Looks at what is measured so far now and then, and ends the scan where it is enough.

    The looks are after the same batches however often the scan was stopped and went on, so that it ends at the same.

    Parameters
    ----------
    until
        Width of the widest interval at which to end.
    run
        What holds the results of earlier calls, if something does.
    """

    def __init__(self, until: float, run: RunFolder | None) -> None:
        self.until, self.batches, self.texts = until, 0, 0
        self.parts = [] if run is None or not run.pieces else [_shares(run.results())]

    def before(self, done: Callable[[range], bool]) -> Callable[[range], bool]:
        """Look before a batch is measured."""

        def look(texts: range) -> bool:
            if is_look(self.batches) and self._is_enough(texts.start):
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
        """What a reader has to know of how wide intervals are, and of a scan that ended before its texts did.

        Parameters
        ----------
        each
            What entries of ``text`` are called, in the plural.
        """
        whole = in_a_row(self.parts)
        if self.texts:
            whole = whole.isel(text=whole.text.values < self.texts)
        read, width = whole.sizes["text"], widest_interval(whole)
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
        return widest_interval(whole.isel(text=whole.text.values < texts)) <= self.until


class EnoughError(Exception):
    """Enough is measured."""


def _shares(results: xr.Dataset) -> xr.Dataset:
    """The statistics that are shares, one a head."""
    names = [
        name
        for name, values in results.data_vars.items()
        if set(values.dims) == {"text", "layer", "head"} and values.attrs.get("units") == "share"
    ]
    if not names:
        raise AttnscopeError(
            "until (--until) is of statistics that are shares of weight, such as first_token or outside: name one with "
            "statistics (--statistics)"
        )
    return results[names]
