"""The units of a scan in a process that measures those it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import xarray as xr

from attnscope.measure.pools import stretches
from attnscope.measure.questions import ScanSettings
from attnscope.measure.texts import TextReader, text_reader
from attnscope.store.by_ray import enter
from attnscope.store.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnscope.measure.questions import ResumePoint
    from attnscope.read.encoded import Sources
    from attnscope.read.windows import Window
    from attnscope.support.progress import Progress


@dataclass(frozen=True, eq=False)
class MeasuredUnit:
    """What was measured of one unit."""

    results: tuple[
        xr.Dataset, ...
    ]  # texts that follow each other; none where the run has all of them already
    share: float  # part of all work that the unit is
    windows: int  # how many it has
    following: UnitStart | None  # where the next unit begins; None where that cannot be told


@dataclass(frozen=True)
class UnitStart:
    """A unit, by its number from 0, and where it begins."""

    unit: int
    standing: ResumePoint


@dataclass(frozen=True, eq=False)
class Opened:
    """What a worker says of the scan when it is ready: see `TextReader`."""

    signature: Signature
    attributes: dict[str, str]
    kinds: Callable[[xr.Dataset], xr.Dataset] | None


class Units:
    """Batches of a scan, or its pools, some at a time."""

    def __init__(self, job: TextReader, said: Callable[[], float] = lambda: 0.0) -> None:
        self.job, self.size, self.said = job, job.unit, said
        self._start()

    def measure(
        self, unit: int, done: Callable[[range], bool] = lambda _: False, known: UnitStart | None = None
    ) -> MeasuredUnit | None:
        """What is not done of a unit, counted from 0; None where the texts end before."""
        if unit < self.following or (known is not None and known.unit > self.following):
            self._start(known)
        while self.following < unit:
            if not self._each(lambda _, batch: self.job.pass_over(batch)):
                return None
        before, windows = self.said(), 0
        batches: list[xr.Dataset] = []

        def measure(texts: range, batch: Sequence[Window]) -> None:
            nonlocal windows
            windows += len(batch)
            if done(texts):
                self.job.pass_over(batch)
            else:
                batches.append(self.job.measure(batch, texts.start))

        if not self._each(measure):
            return None
        standing = self.job.standing()
        following = None if standing is None else UnitStart(self.following, standing)
        return MeasuredUnit(tuple(stretches(batches)), max(0.0, self.said() - before), windows, following)

    def notes(self) -> dict[str, str]:
        """What is said of the scan when all texts are read."""
        while self._each(lambda _, batch: self.job.pass_over(batch)):
            pass
        return self.job.notes

    def _start(self, known: UnitStart | None = None) -> None:
        self.following = 0 if known is None else known.unit
        self.walk: Iterator[tuple[range, list[Window]]] = self.job.walk(known and known.standing)

    def _each(self, do: Callable[[range, list[Window]], object]) -> bool:
        """Do the same with each batch of the next unit; whether there was any."""
        count = 0
        for texts, batch in islice(self.walk, self.size):
            do(texts, batch)
            count += 1
        self.following += 1
        return count > 0


@dataclass(frozen=True, eq=False)
class Recipe:
    """All that a process needs to take part in a scan."""

    model: str | Path
    texts: Sources
    asked: ScanSettings
    folder: Path  # the one that names of files are relative to
    show: bool  # whether the attention over the first windows will be asked for

    def __call__(self) -> tuple[Units, Opened]:
        """Load the model and open the texts, on one thread."""
        enter(self.folder)
        torch.set_num_threads(1)
        shares = [0.0]

        def hear(progress: Progress) -> None:
            shares[0] = progress.share

        asked = replace(self.asked, progress=hear)
        reader = text_reader(self.model, self.texts, asked, show=self.show)
        units = Units(reader, lambda: shares[0])
        return units, Opened(reader.signature(), reader.attributes, reader.kinds())
