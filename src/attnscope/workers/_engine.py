"""What an engine of workers does, whatever starts them: processes, threads, a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

#: Made in the worker, once: what its work needs (a model, a corpus), and what it says of itself when it is ready.
Begin: TypeAlias = Callable[[], tuple[Any, Any]]
#: One piece of work, of what the worker holds; None is the answer where there is no such piece.
Request: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Ready:
    """A worker has begun.

    Attributes
    ----------
    worker
        Its number.
    said
        What it says of itself.

    Examples
    --------
    >>> heard = [Ready(0, "torch 2.13"), Ready(1, "torch 2.12")]
    >>> len({event.said for event in heard})  # they do not say the same
    2
    """

    worker: int
    said: Any


@dataclass(frozen=True)
class Answered:
    """A worker has done what it was asked.

    Attributes
    ----------
    worker
        Its number.
    ticket
        Ticket of the request.
    answer
        What the request returned.

    Examples
    --------
    >>> heard = [Ready(0, "said"), Answered(0, 3, "length 9"), Lost(0)]
    >>> {event.ticket: event.answer for event in heard if isinstance(event, Answered)}
    {3: 'length 9'}
    """

    worker: int
    ticket: int
    answer: Any


@dataclass(frozen=True)
class Lost:
    """A worker is no more, with what it was asked and had not answered.

    Examples
    --------
    >>> asked = {0: [3, 4], 1: [5]}  # tickets by worker
    >>> asked.pop(Lost(0).worker)  # to be asked of another
    [3, 4]
    """

    worker: int


Event: TypeAlias = Ready | Answered | Lost


@runtime_checkable
class Engine(Protocol):
    """Starts workers, asks them and hears of them.

    A worker does what it is asked in the order in which it was asked. What a request raises is raised by `wait`.

    Examples
    --------
    >>> class Here:  # one worker, in this process
    ...     def start(self):
    ...         self.heard = [Ready(0, "begun")]
    ...         return 0
    ...     def ask(self, worker, ticket, request):
    ...         self.heard.append(Answered(worker, ticket, request("what it holds")))
    ...     def wait(self):
    ...         return self.heard.pop(0)
    >>> engine = Here()
    >>> worker = engine.start()
    >>> engine.ask(worker, 5, len)
    >>> isinstance(engine, Engine), engine.wait(), engine.wait()
    (True, Ready(worker=0, said='begun'), Answered(worker=0, ticket=5, answer=13))
    """

    def start(self) -> int:
        """Begin a worker, and return its number at once; no number comes twice."""
        ...

    def ask(self, worker: int, ticket: int, request: Request) -> None:
        """Ask a worker that is ready for one more piece of work."""
        ...

    def wait(self) -> Event:
        """The next thing that happens."""
        ...
