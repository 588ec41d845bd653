"""What is measured one at a time: texts with images, sounds, videos."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from attnscope.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import xarray as xr

    from attnscope.progress import Tell

T = TypeVar("T")


def one_by_one(
    items: Iterable[T],
    measure: Callable[[T, int], xr.Dataset],
    done: Callable[[range], bool],
    tell: Tell,
    *,
    count: int,
    called: str = "windows",
) -> Iterator[xr.Dataset]:
    """Measure each of `count` items, by itself and its number, but those that are done; tell how far it has come.

    Examples
    --------
    >>> import xarray as xr
    >>> told, of = [], lambda word, number: xr.Dataset({"length": len(word)})
    >>> measured = one_by_one(["a", "tide", "is"], of, lambda texts: 1 in texts, told.append, count=3)
    >>> [int(results.length) for results in measured], [progress.told for progress in told]
    ([1, 2], [{'windows': 1}, {'windows': 2}, {'windows': 3}])
    """
    for number, item in enumerate(items):
        if not done(range(number, number + 1)):
            yield measure(item, number)
        tell(Progress("scan", (number + 1) / count, {called: number + 1}))
