"""What one task has to do of all that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr

TEXTS, STARTS = (
    "texts",
    "units",
)  # in the state of a part that is done: texts in all, and the first of each unit


@runtime_checkable
class Part(Protocol):
    """What takes the results of some texts: a folder, or memory.

    Examples
    --------
    >>> from pathlib import Path
    >>> from attnscope.store import RunFolder
    >>> isinstance(RunFolder(Path("runs/all"), {"command": "scan"}), Part)
    True
    """

    def holds(self, texts: range) -> bool:
        """Whether the results of these texts are there."""
        ...

    def append(self, results: xr.Dataset, first: int) -> None:
        """Add the results of some texts, numbered from `first`."""
        ...


class Share:
    """What one task has to do: told of each batch in turn, it says which are not its own or done already.

    Parameters
    ----------
    does
        Whether a unit, counted from 0, is its own.
    run
        Its part of the run.
    unit
        How many batches are a unit.

    Examples
    --------
    >>> class Third:  # a part that has the third batch
    ...     def holds(self, texts):
    ...         return texts.start == 4
    ...     def append(self, results, first):
    ...         raise NotImplementedError
    >>> share = Share(lambda unit: unit % 2 == 0, Third())
    >>> [share(texts) for texts in (range(2), range(2, 4), range(4, 6))]  # another's is passed over, and what is there
    [False, True, True]
    >>> share.state()
    {'texts': 6, 'units': [0, 2, 4]}
    """

    def __init__(self, does: Callable[[int], bool], run: Part, unit: int = 1) -> None:
        self.does, self.run, self.unit = does, run, unit
        self.batches = self.texts = 0
        self.starts: list[int] = []

    def __call__(self, texts: range) -> bool:
        """Whether to pass over the next batch."""
        if self.batches % self.unit == 0:
            self.starts.append(texts.start)
        mine = self.does(self.batches // self.unit)
        self.batches += 1
        self.texts = texts.stop
        return not mine or self.run.holds(texts)

    def state(self) -> dict[str, Any]:
        """What is noted of it when all of it is measured."""
        return {TEXTS: self.texts, STARTS: self.starts}
