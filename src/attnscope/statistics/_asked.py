"""What a scan is asked for, whatever it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.capture import AS_SAVED, Loading
from attnscope.checks import check_real, check_seed, check_whole
from attnscope.errors import AttnscopeError
from attnscope.progress import Tell
from attnscope.statistics._row_draws import RowSample
from attnscope.statistics._second_pass import OBSERVATION
from attnscope.store import Signature, local_folder
from attnscope.tasks import Task, task_in

if TYPE_CHECKING:
    from attnscope.capture import Processor

BAND = 10  # tokens


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `attnscope.scan` is asked for of texts, images and sounds alike; see there.

    Attributes
    ----------
    processor
        What reads for the model: tokenizer, image processor, feature extractor, or a folder of them.
    loading
        How the model is loaded.

    Raises
    ------
    AttnscopeError
        If a number is none that can be.

    Examples
    --------
    >>> Asked(limit=0)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: limit (--limit) is 0; expected a whole number of 1 or more
    """

    processor: Processor = None
    out: str | Path | Callable[[Signature], Path] | None = None
    repair: bool = False
    limit: int | None = None
    batch_size: int | None = None
    statistics: Sequence[str] | str | None = None
    band: int | None = None
    observation: int = OBSERVATION
    seed: int = 0
    task: str | Task | None = None
    pool: int | None = None
    until: float | None = None
    rows: int | None = None
    show: Sequence[tuple[int, int]] | None = None
    progress: Tell | None = None
    loading: Loading = AS_SAVED

    def __post_init__(self) -> None:
        check_whole(
            1,
            limit=self.limit,
            batch_size=self.batch_size,
            band=self.band,
            pool=self.pool,
            observation=self.observation,
        )
        check_seed(self.seed)
        if self.rows is not None:
            RowSample(self.rows)
            if self.pool is not None:
                raise AttnscopeError(
                    "rows (--rows) are drawn of single windows: leave out rows or pool (--pool)"
                )
        if self.until is not None:
            check_real(0.0, 1.0, until=self.until)
            if self.task is not None:
                raise AttnscopeError(
                    "until (--until) looks at all that is measured, and a task (--task) has a part of it: leave out one"
                )
            if self.loading.tp_plan is not None:
                raise AttnscopeError(
                    "until (--until) does not go with tp_plan (--tp-plan): leave out one of them"
                )
        task_in(self.task, self.out)

    def band_within(self, reach: int, where: str) -> int:
        """Largest offset of the band, where `reach` is the largest that there is: the one asked for, or 10 at most.

        Raises
        ------
        AttnscopeError
            If a larger one was asked for.

        Examples
        --------
        >>> Asked().band_within(30, "windows"), Asked().band_within(4, "windows")
        (10, 4)
        """
        if self.band is not None and self.band > reach:
            raise AttnscopeError(f"band (--band) is {self.band}; in {where} the largest offset is {reach}")
        return max(1, min(BAND, reach)) if self.band is None else self.band

    def folder(self, signature: Signature) -> Path | None:
        """Where the run is kept; None keeps none."""
        place = self.out(signature) if callable(self.out) else self.out
        return None if place is None else local_folder(place)


BY_DEFAULT = Asked()
