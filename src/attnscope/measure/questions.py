"""What a scan is asked for, whatever it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
import xarray as xr

from attnscope.capture.load import AS_SAVED, Loading
from attnscope.measure.forms import text_mean
from attnscope.measure.observer import LEAST_SHARE, MORE, OBSERVATION, beyond_chance, beyond_shared
from attnscope.measure.row_samples import RowSample
from attnscope.store.files import local_folder
from attnscope.store.signature import Signature
from attnscope.store.units import Task
from attnscope.support.checks import check_real
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attnscope.capture.processors import Processor
    from attnscope.read.encoded import Sources
    from attnscope.read.groups import Groups
    from attnscope.read.words import Words

BAND = 10  # tokens


@dataclass(frozen=True, kw_only=True)
class ScanSettings:
    """The arguments of `attnscope.scan`, whatever it reads; see there."""

    # what reads for the model: tokenizer, image processor, feature extractor, or a folder of them
    processor: Processor = None
    out: str | Path | Callable[[Signature], Path] | None = None
    repair: bool = False
    limit: int | None = None
    batch_size: int | None = None
    statistics: Sequence[str] | str | None = None
    band: int | None = None
    observation: int = OBSERVATION
    seed: int = 0
    task: Task | None = None
    pool: int | None = None
    until: float | None = None
    rows: int | None = None
    show: Sequence[tuple[int, int]] | None = None
    progress: Tell | None = None
    loading: Loading = AS_SAVED  # how the model is loaded
    targets: Sources = None
    window: int | None = None
    stride: int | None = None
    field: str | None = None
    by_line: bool = False
    clusters: int | None = None
    groups: Groups | None = None
    chat: bool = False
    chat_template: str | Path | None = None
    words: Words | None = None
    by: str | None = None
    offsets: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            RowSample(self.rows)
            if self.pool is not None:
                raise AttnscopeError("rows (--rows) are drawn of single windows: leave out rows or pool (--pool)")
        if self.until is not None:
            check_real(0.0, 1.0, until=self.until)
            if self.task is not None:
                raise AttnscopeError(
                    "until (--until) looks at all that is measured, and a task (--task) has a part of it: leave out one"
                )

    def band_within(self, reach: int, where: str) -> int:
        """Largest offset of the band, where `reach` is the largest that there is: the one asked for, or 10 at most."""
        if self.band is not None and self.band > reach:
            raise AttnscopeError(f"band (--band) is {self.band}; in {where} the largest offset is {reach}")
        return max(1, min(BAND, reach)) if self.band is None else self.band

    def folder(self, signature: Signature) -> Path | None:
        """Where the run is kept; None keeps none."""
        place = self.out(signature) if callable(self.out) else self.out
        return None if place is None else local_folder(place)


class RankedHead(TypedDict):
    """A head among those that a reader asks for first."""

    layer: int
    head: int
    value: float
    label: str
    attention: NotRequired[str]
    offset: NotRequired[int | str]


@dataclass(frozen=True, eq=False)
class Question:
    """What a reader asks of all heads."""

    name: str  # name of what heads do, more or less
    score: xr.DataArray  # how much each does it, ``(layer, head)``; NaN where it does not
    # where a head does it, from its layer and head; None where nothing is to be said
    place: Callable[[int, int], int | str] | None = None


def beyond(
    shares: xr.DataArray, equal: xr.DataArray | None, least: float, rows: xr.DataArray | None = None
) -> xr.DataArray:
    """Shares that are large, and larger than of equal weights and than by chance; NaN for others."""
    enough = shares >= least
    if equal is None:
        return shares.where(enough)
    enough &= shares >= MORE * equal
    if rows is not None:
        each = xr.broadcast(shares, equal, rows.astype(float))
        enough &= xr.apply_ufunc(beyond_chance, *each)
    return shares.where(enough)


def sink_like(results: xr.Dataset, names: Iterable[str]) -> list[Question]:
    """Which heads put most weight on one of these, where a scan has any: tokens that hold no place in particular."""
    sinks: list[xr.DataArray] = []
    for name in names:
        if name not in results:
            continue
        share, equal = text_mean(results[name]), _equal(results, name)
        enough = share >= LEAST_SHARE
        if equal is not None:
            enough &= xr.apply_ufunc(beyond_shared, *xr.broadcast(share, equal))
        sinks.append(share.where(enough))
    if not sinks:
        return []
    return [Question("sink-like", xr.concat(sinks, "kind", coords="minimal", compat="override").max("kind"))]


def _equal(results: xr.Dataset, name: str) -> xr.DataArray | None:
    return text_mean(results[f"equal_{name}"]) if f"equal_{name}" in results else None


def answered(questions: Iterable[Question], results: xr.Dataset, top: int) -> dict[str, list[RankedHead]]:
    """The first heads of each question, those that do it most first; none of those that do not."""
    names = majority_names(results)
    attention = results.layer_kind.values if "layer_kind" in results.coords else []
    ranking: dict[str, list[RankedHead]] = {}
    for question in questions:
        values = question.score.transpose("layer", "head").values
        order = np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=None, kind="stable")[:top]
        ranking[question.name] = []
        for at in order:
            layer, head = (int(i) for i in np.unravel_index(at, values.shape))
            if not np.isfinite(values[layer, head]):
                continue
            row = RankedHead(
                layer=layer,
                head=head,
                value=round(float(values[layer, head]), 6),
                label="" if names is None else names[layer][head],
            )
            if len(set(attention)) > 1:
                row["attention"] = str(attention[layer])
            if question.place is not None:
                row["offset"] = question.place(layer, head)
            ranking[question.name].append(row)
    return ranking


def majority_names(results: xr.Dataset) -> list[list[str]] | None:
    """The kind that each head is of in most texts, by layer and head; None where kinds are not known."""
    if "label_share" not in results:
        return None
    shares = results.label_share.transpose("layer", "head", "cluster")
    names = results.cluster.values
    return [[str(names[cluster]) for cluster in row] for row in shares.fillna(-1).argmax("cluster").values]
