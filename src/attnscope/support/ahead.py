"""Make items in a thread while the caller works on those before."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
_END: Any = object()


def ahead(items: Iterator[T], most: int = 2) -> Iterator[T]:
    """The same items in their order, up to `most` of them made in advance by one thread.

    An error of an item is raised in its turn. Whoever stops early leaves at most one item to be waited for.
    """
    pool = ThreadPoolExecutor(1, "attnscope reading")

    def begin() -> Future[T]:
        return pool.submit(next, items, _END)

    try:
        waiting = deque(begin() for _ in range(most))
        item = waiting.popleft().result()
        while item is not _END:
            waiting.append(begin())
            yield item
            item = waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
