"""Forward passes that a caller runs, put together as one result: what `watch` and `measure_weights` return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.measure.labels import labelled
from attnscope.measure.passes import stacked
from attnscope.measure.places import NEEDED
from attnscope.measure.pools import joined
from attnscope.measure.quantities import EQUAL, STATISTICS
from attnscope.measure.summary import summarize

if TYPE_CHECKING:
    import xarray as xr
    from torch import Tensor

    from attnscope.capture.watch import Site


@dataclass(eq=False)
class MeasuredPass:
    """What was measured of the calls of one forward pass."""

    sites: list[Site] = field(default_factory=list)  # each call
    measured: list[dict[str, Tensor]] = field(default_factory=list)  # statistics of each call, from `measure_call`
    queries: list[Tensor] = field(default_factory=list)  # ``(batch,)`` for each call: its queries that are real tokens
    reach: int = 0  # the largest offset that there was

    def add(self, site: Site, measured: dict[str, Tensor], queries: Tensor, reach: int) -> None:
        """One more call."""
        self.sites.append(site)
        self.measured.append(measured)
        self.queries.append(queries.sum(1).cpu())
        self.reach = max(self.reach, reach)

    @property
    def texts(self) -> int:
        """How many texts were read at once."""
        return len(self.queries[0])


def collected(passes: Sequence[MeasuredPass], names: Sequence[str], band: int) -> xr.Dataset:
    """Passes as one Dataset, one text after the other; with kinds of heads where all is there that they need."""
    reach = max(run.reach for run in passes)
    layered = any(not torch.equal(own, run.queries[0]) for run in passes for own in run.queries)
    parts: list[xr.Dataset] = []
    first = 0
    for run in passes:
        sources = [(f"text {first + number + 1}", 0) for number in range(run.texts)]
        part = labelled(
            stacked(_alike([layer for each in passes for layer in each.measured], run.measured)),
            run.sites,
            band,
            reach,
            {"length": run.queries[0].numpy()},
            sources,
            first,
        )
        if layered:
            own = np.stack([counts.numpy() for counts in run.queries], axis=1)
            part["queries"] = (("window", "layer"), own, {"long_name": "Queries of a layer", "units": "tokens"})
        parts.append(part)
        first += run.texts
    results = joined(parts)
    if set(NEEDED) <= set(names):
        results = results.merge(summarize(results), combine_attrs="no_conflicts")
    return results


_SIDES = {"offset_bin", "every_offset"}


def _alike(every: Sequence[dict[str, Tensor]], own: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Layers with as many offsets, or bins, as the one that has most: what is missing lies outside, and is 0."""
    sided = [name for name in own[0] if _SIDES & {*STATISTICS[name.removeprefix(EQUAL)].along}]
    most = {name: max(layer[name].shape[-1] for layer in every) for name in sided}

    def widened(name: str, value: Tensor) -> Tensor:
        missing = (most[name] - value.shape[-1]) // 2 if name in most else 0
        return torch.nn.functional.pad(value, (missing, missing)) if missing else value

    return [{name: widened(name, value) for name, value in layer.items()} for layer in own]
