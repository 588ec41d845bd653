"""Numbered work for workers that may be lost: an idle one takes the next, and what a lost one had is done again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from attnscope.errors import AttnscopeError
from attnscope.workers._engine import Answered, Engine, Ready, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attnscope.workers._engine import Event

AT_ONCE = (
    2  # what a worker has been asked for: one that it does, one that waits, so that it need not wait for us
)
TRIES = 8  # of one piece of work while nobody does any, before it is blamed for the end of those who did it


class Crew:
    """Workers of an engine, and what each of them was asked.

    Parameters
    ----------
    engine
        What starts, asks and hears them.
    size
        How many workers there shall be; where one is lost, another is started.
    greet
        Called with what each worker says of itself when it is ready; may refuse it by an error.

    Examples
    --------
    >>> class Here:  # an engine of one worker, in this process
    ...     def start(self):
    ...         self.events = [Ready(0, "ready")]
    ...         return 0
    ...
    ...     def ask(self, worker, ticket, request):
    ...         self.events.append(Answered(worker, ticket, request("tide")))
    ...
    ...     def wait(self):
    ...         return self.events.pop(0)
    >>> crew = Crew(Here(), 1)
    >>> list(crew.hand_out(lambda number: lambda held: held[number : number + 1] or None))
    ['t', 'i', 'd', 'e']
    """

    def __init__(self, engine: Engine, size: int, greet: Callable[[Any], None] = lambda _: None) -> None:
        self.engine, self.size, self.greet = engine, size, greet
        self._asked: dict[
            int, list[int]
        ] = {}  # tickets that each worker that is ready has not answered, in order
        self._reached: dict[int, int] = {}  # numbers from here on it can do without going back
        self._number: dict[int, int] = {}  # of each ticket of this round
        self._lost: set[int] = set()  # numbers that were lost in this round
        self._tickets = 0
        self._tries: Counter[int] = Counter()
        self._in_vain = 0  # workers that were lost, one after the other, before one was ready
        for _ in range(size):
            engine.start()

    @property
    def ready(self) -> int:
        """How many workers can be asked."""
        return len(self._asked)

    def first(self) -> Any:
        """Wait for a worker to be ready, and return what it says of itself.

        Raises
        ------
        AttnscopeError
            Workers are lost while they begin, and what beginning raises.
        """
        while True:
            event = self._heard()
            if isinstance(event, Ready):
                return event.said

    def hand_out(self, request: Callable[[int], Request], count: int | None = None) -> Iterator[Any]:
        """Have pieces of work done, 0, 1, 2, ...; answers come as they are ready, in any order, each once.

        Numbers that a worker is asked for rise, except where another was lost and nobody else can do what it had.

        Parameters
        ----------
        request
            The piece of work of a number.
        count
            How many there are; without it, until an answer is None.

        Raises
        ------
        AttnscopeError
            The same piece of work was lost again and again, with those who did it, and nobody did any other; and what
            the work raises.
        """
        self._number, self._lost, self._tries = {}, set(), Counter()
        following, end = 0, count
        while True:
            for worker in sorted(
                self._asked, key=lambda unit: (len(self._asked[unit]), -self._reached[unit])
            ):
                while len(self._asked[worker]) < AT_ONCE:
                    number = self._next(worker, following, end)
                    if number is None:
                        break
                    following = max(following, number + 1)
                    self._ask(worker, number, request(number))
            if end is not None and following >= end and not any(unit < end for unit in self._open()):
                return
            event = self._heard()
            if isinstance(event, Answered) and event.ticket in self._number:
                number = self._number.pop(event.ticket)
                if event.answer is None:
                    end = number if end is None else min(end, number)
                else:
                    self._tries.clear()  # workers can live here: those that were lost had bad luck, or still may have
                    yield event.answer

    def _next(self, worker: int, following: int, end: int | None) -> int | None:
        """The number that this worker does best."""
        lost = [number for number in self._lost if end is None or number < end]
        ahead = [number for number in lost if number >= self._reached[worker]]
        if ahead:
            return min(ahead)
        if end is None or following < end:
            return following
        return min(lost) if lost and not self._asked[worker] else None

    def _open(self) -> set[int]:
        """Numbers that were asked for, or lost, and are not answered."""
        return self._lost | {*self._number.values()}

    def _ask(self, worker: int, number: int, request: Request) -> None:
        self._tickets += 1
        self._number[self._tickets] = number
        self._lost.discard(number)
        self._asked[worker].append(self._tickets)
        self._reached[worker] = max(self._reached[worker], number + 1)
        self.engine.ask(worker, self._tickets, request)

    def _heard(self) -> Event:
        """The next thing that happens, noted."""
        event = self.engine.wait()
        if isinstance(event, Ready):
            self.greet(event.said)
            self._asked[event.worker], self._reached[event.worker] = [], 0
            self._in_vain = 0
        elif isinstance(event, Answered):
            self._asked[event.worker].remove(event.ticket)
        else:
            self._replace(event.worker)
        return event

    def _replace(self, worker: int) -> None:
        """Start another worker in place of a lost one, whose work is to be done again."""
        tickets = self._asked.pop(worker, None)
        if tickets is None:
            self._in_vain += 1
        for place, ticket in enumerate(tickets or ()):
            number = self._number.pop(ticket, None)
            if number is not None:
                self._lost.add(number)
                self._tries[number] += place == 0  # those that waited were not begun
        often = [number for number in self._lost if self._tries[number] >= TRIES]
        if often or self._in_vain >= self.size + TRIES:
            doing = f"do unit {often[0]}" if often else "load the model and open the texts"
            raise AttnscopeError(
                f"the workers that were to {doing} ended, one after the other: does memory run out? Try fewer "
                "(--workers), or a smaller --batch-size"
            )
        self.engine.start()
