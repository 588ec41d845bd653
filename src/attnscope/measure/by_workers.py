"""One scan by workers that may be lost: each is handed the next unit, and results come here to be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import xarray as xr

from attnscope.measure.units import MeasuredUnit, Opened, Recipe, Units, UnitStart
from attnscope.measure.writing import measured
from attnscope.read.sources import as_list
from attnscope.store.by_ray import Agreed, check_sent
from attnscope.store.workers import Crew, RayEngine, Request
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.measure.questions import ScanSettings
    from attnscope.read.encoded import Sources
    from attnscope.store.workers import Cluster


def scan_by_workers(model: object, texts: Sources, asked: ScanSettings, cluster: Cluster) -> xr.Dataset:
    """Measure by workers of Ray's; this process loads no model."""
    texts, targets = as_list(texts), as_list(asked.targets)
    check_sent(model, asked.processor, asked.loading.device, texts, targets)
    recipe = Recipe(
        str(model),
        texts,
        replace(asked, out=None, progress=None, task=None, targets=targets),
        Path.cwd(),
        show=asked.show is not None,
    )
    tell = asked.progress or no_progress
    tell(Progress("start workers", 0.0))
    with RayEngine(cluster, recipe) as engine:
        return measured_by(Crew(engine, engine.size, _agreeing()), asked, tell)


def measured_by(crew: Crew, asked: ScanSettings, tell: Tell) -> xr.Dataset:
    """The results of a scan whose units a crew measures."""
    opened: Opened = crew.first()
    return measured(ByWorkers(crew, tell), asked, opened.signature, opened.kinds, opened.attributes)


class ByWorkers:
    """The forward passes of one scan, done by others: a `Job`."""

    def __init__(self, crew: Crew, tell: Tell) -> None:
        self.crew, self.tell = crew, tell
        self.notes: dict[str, str] = {}
        self.unit = 1  # what the crew hands out is a unit already

    def batches(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset]:
        """Units as they are measured, but those that are done, which must be told by what can be sent."""
        share, windows = 0.0, 0
        begins: dict[int, UnitStart] = {}

        def request(number: int) -> Request:
            nearest = max((unit for unit in begins if unit <= number), default=None)
            return partial(_measure, number, done, None if nearest is None else begins[nearest])

        for unit in self.crew.hand_out(request):
            if unit.following is not None:
                begins[unit.following.unit] = unit.following
            yield from unit.results
            share, windows = min(1.0, share + unit.share), windows + unit.windows
            self.tell(Progress("scan", share, {"windows": windows, "workers": self.crew.ready}))
        (self.notes,) = self.crew.hand_out(lambda _: Units.notes, 1)

    def sample(self, results: xr.Dataset, asked: Sequence[tuple[int, int]]) -> xr.Dataset | None:
        """The attention over the first texts."""
        (sampled,) = self.crew.hand_out(lambda _: partial(_sample, results, tuple(asked)), 1)
        self.tell(Progress("scan", 1.0))
        return sampled


def _agreeing() -> Callable[[Opened], None]:
    """All workers must read the same."""
    agreed = Agreed()
    return lambda opened: agreed(opened.signature)


def _measure(
    number: int, done: Callable[[range], bool], known: UnitStart | None, units: Units
) -> MeasuredUnit | None:
    return units.measure(number, done, known)


def _sample(results: xr.Dataset, asked: Sequence[tuple[int, int]], units: Units) -> xr.Dataset | None:
    return units.job.sample(results, asked)
