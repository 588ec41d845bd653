"""Progress reports of long commands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """One report of how far the work has come.

    Attributes
    ----------
    name
        What is being done: an analysis, a system, ``"train"``.
    share
        Part of all work that is done, between 0 and 1.
    details
        More to show, by name: windows, loss, tokens per second, ...

    Examples
    --------
    >>> Progress("reading the texts", 0.5, {"windows": 8}).details["windows"]
    8
    """

    name: str
    share: float
    details: Mapping[str, float | int | str] = field(default_factory=dict[str, "float | int | str"])


Tell = Callable[[Progress], None]


def share_of_layers(done: int, layers: int) -> float:
    """The part of a sweep over layers that is done, in which the passes of a layer begin at that layer.

    >>> share_of_layers(1, 2)
    0.75
    """
    return 1 - (1 - done / layers) ** 2


def no_progress(_: Progress) -> None:
    """The default: reports nothing."""
