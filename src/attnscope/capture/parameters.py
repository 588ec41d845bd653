"""Settings of `attnscope.scan` for its readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.options import OBSERVATION

if TYPE_CHECKING:
    from attnscope.capture.placement import Placement
    from attnscope.capture.processors import Processor
    from attnscope.read.encoded import Sources
    from attnscope.read.groups import Groups
    from attnscope.read.words import Words
    from attnscope.report.signature import Signature
    from attnscope.store.units import Task
    from attnscope.support.progress import Tell


@dataclass(frozen=True)
class Loading:
    """Options of `attnscope.capture.load.load_model`."""

    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    placement: Placement | None = None


AS_SAVED = Loading()


@dataclass(frozen=True, kw_only=True)
class ScanSettings:
    """The arguments of `attnscope.scan` for all modalities, under the names of `ScanReading`."""

    # tokenizer, image processor or feature extractor, or a folder of them
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
