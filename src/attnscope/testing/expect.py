"""Expectations of heads, for test suites of models: an interval decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import significant


@dataclass(frozen=True, eq=False)
class Measured:
    """A mean over texts with its 95% interval; it is above or below a number if all of the interval is."""

    name: str  #: of the measured number
    mean: float  #: over texts
    #: lower end of its interval, by the bootstrap over documents (or windows, if there are fewer than 6 documents)
    low: float
    high: float  #: upper end
    units: str = "1"  #: units of all three
    #: units of the interval, such as ``20 windows``; intervals over windows of few documents do not cover others
    over: str = ""

    def __gt__(self, bound: float) -> bool:
        """Whether the whole interval is above."""
        return self._checked(self.low) > bound

    def __lt__(self, bound: float) -> bool:
        """Whether the whole interval is below."""
        return self._checked(self.high) < bound

    def __repr__(self) -> str:
        units = "" if self.units in {"1", "share"} else f" {self.units}"
        over = f" over {self.over}" if self.over else ""
        mean, low, high = (significant(value, 3) for value in (self.mean, self.low, self.high))
        return f"<{self.name}: {mean}{units}, 95% interval {low} to {high}{over}>"

    def _checked(self, end: float) -> float:
        if np.isnan(end):
            raise AttnscopeError(
                f"the {self.name} is {significant(self.mean, 3)} without an interval, which comparisons need: scan 6 "
                f"{self.over.partition(' ')[2] or 'windows'} or more"
            )
        return end


@dataclass(frozen=True, eq=False, repr=False)
class Expectation:
    """One head of a scan, for comparisons of its numbers with bounds."""

    run: xr.Dataset  #: the scan
    layer: int
    head: int

    def __repr__(self) -> str:
        return f"<head {self.layer}.{self.head} over {self.run.sizes['window']} texts>"

    def attends_to(self, offset: int | tuple[int, int]) -> Measured:
        """Mean weight at an offset, key position minus query position: -1 is the token before."""
        chosen = self._share_at(offset)
        if chosen is not None:
            return chosen
        of_images = "row_offset" in self.run.dims
        axes = ("row_offset", "column_offset") if of_images else ("offset",)
        steps = offset if isinstance(offset, tuple) else (offset,)
        if len(steps) != len(axes):
            form = "rows down and columns to the right, such as (0, -1)" if of_images else "one number, such as -1"
            raise AttnscopeError(f"the offset is {offset}; expected {form}")
        values = self._of("patch_profile" if of_images else "profile")
        for axis, step in zip(axes, steps, strict=True):
            if step not in values[axis].values:
                others = "" if of_images else f", or with --offsets {step}"
                raise AttnscopeError(
                    f"offset {offset} is outside the band of the scan, {int(values[axis][0])} to "
                    f"{int(values[axis][-1])}: scan with a larger --band{others}"
                )
        at = dict(zip(axes, steps, strict=True))
        return self._measured(f"mean weight of head {self.layer}.{self.head} at offset {offset}", values.sel(at))

    def _share_at(self, offset: int | tuple[int, int]) -> Measured | None:
        """Share of all weight at a chosen offset outside the band; None for other offsets."""
        if "weight_at" not in self.run or isinstance(offset, tuple):
            return None
        profiled = self.run.offset.values if "profile" in self.run else ()
        if offset in profiled or offset not in self.run.chosen_offset.values:
            return None
        name = f"share of the weight of head {self.layer}.{self.head} at offset {offset}"
        return self._measured(name, self._of("weight_at").sel(chosen_offset=offset))

    def group_weight(self, query: str, key: str) -> Measured:
        """Mean weight from the tokens of one group to all tokens of another, such as ``("text", "image")``."""
        values = self._of("group_weight")
        names = [str(name) for name in values.group_query.values]
        for name in (query, key):
            if name not in names:
                raise AttnscopeError(f"there is no group {name!r}; choose from {', '.join(names)}")
        return self._measured(
            f"weight of head {self.layer}.{self.head} from {query} to {key}",
            values.sel(group_query=query, group_key=key),
        )

    def statistic(self, name: str) -> Measured:
        """A statistic with one number a head, such as ``entropy`` or ``first_token``."""
        values = self._of(name)
        if values.dims != ("window",):
            raise AttnscopeError(
                f"{name} has several numbers a head: use attends_to for offsets, group_weight for groups"
            )
        return self._measured(f"{name} of head {self.layer}.{self.head}", values)

    @property
    def label(self) -> str:
        """The head's most frequent label over texts."""
        names, counts = np.unique(self._of("label").values, return_counts=True)
        return str(self.run.cluster.values[int(names[counts.argmax()])])

    def _of(self, name: str) -> xr.DataArray:
        if name not in self.run or not {"window", "layer", "head"} <= set(self.run[name].dims):
            names = [
                str(name) for name in self.run.data_vars if {"window", "layer", "head"} <= set(self.run[name].dims)
            ]
            raise AttnscopeError(f"the scan has no {name}; choose from {', '.join(names)}")
        return self.run[name].sel(layer=self.layer, head=self.head)

    def _measured(self, name: str, values: xr.DataArray) -> Measured:
        from attnscope.statistics.effects import by_document
        from attnscope.statistics.units import units_in

        finite = ~np.isnan(values.values)  # a short window has no such offset
        drawn, called = units_in(self.run)
        units = [document for document, has_value in zip(drawn, finite, strict=True) if has_value]
        if not units:
            raise AttnscopeError(f"no text has a {name}: scan longer windows")
        estimate = by_document(values.values[finite], units)
        mean, low, high = (float(end) for end in (estimate.mean, estimate.low, estimate.high))
        return Measured(name, mean, low, high, str(values.attrs.get("units", "1")), f"{len(set(units))} {called}")
