"""What a head is made of: where it looks, and what it moves from there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

Rows = Float[np.ndarray, "row width"]

GAP = 10.0  # nats between the place that a sharp head looks at and the next best


@dataclass(frozen=True)
class Shift:
    """A preference for one offset (key minus query), or in a mirror for one sum of the two positions.

    Attributes
    ----------
    offset
        Tokens; with `mirror` the sum of the two positions.
    gap
        Nats between this offset and the next best one.
    nats
        In place of `gap`: what is added at this offset; a negative number keeps the head away from it.
    mirror
        Whether the head reads backwards.
    """

    offset: int
    gap: float = GAP
    nats: float | None = None
    mirror: bool = False


@dataclass(frozen=True, eq=False)
class Look:
    """Scores of a head, nats: the sum over rows of (x_query · query row) (x_key · key row), and its shifts.

    Examples
    --------
    >>> sharp = Look(np.ones((1, 4)), np.ones((1, 4))) + at(-1, width=4)
    >>> len(sharp.queries), sharp.shifts[0].offset
    (1, -1)
    """

    queries: Rows
    keys: Rows
    shifts: tuple[Shift, ...] = ()

    def __add__(self, other: Look) -> Look:
        """Both preferences at once."""
        return Look(
            np.vstack([self.queries, other.queries]),
            np.vstack([self.keys, other.keys]),
            self.shifts + other.shifts,
        )


def anywhere(width: int) -> Look:
    """Look at all tokens alike.

    Examples
    --------
    >>> anywhere(4).queries.shape
    (0, 4)
    """
    return Look(np.zeros((0, width)), np.zeros((0, width)))


def at(offset: int, width: int, *, gap: float = GAP, nats: float | None = None, mirror: bool = False) -> Look:
    """Look at one offset, as in `Shift`.

    Examples
    --------
    >>> at(-1, width=4).shifts
    (Shift(offset=-1, gap=10.0, nats=None, mirror=False),)
    """
    return Look(np.zeros((0, width)), np.zeros((0, width)), (Shift(offset, gap, nats, mirror),))


def matching(queries: Rows, keys: Rows, nats: float) -> Look:
    """Look at keys that hold what the query holds: row for row, a score of `nats`.

    Examples
    --------
    >>> look = matching(np.eye(2), np.eye(2), 4.0)
    >>> (look.queries.T @ look.keys).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    return Look(queries * abs(nats) ** 0.5, keys * (abs(nats) ** 0.5 * np.sign(nats)))


@dataclass(frozen=True, eq=False)
class Move:
    """What a head writes of a token that it looks at: the sum over rows of (x_key · read row) write row."""

    reads: Rows
    writes: Rows

    def __add__(self, other: Move) -> Move:
        """Both at once."""
        return Move(np.vstack([self.reads, other.reads]), np.vstack([self.writes, other.writes]))


def carry(reads: Rows, writes: Rows, gain: float = 1.0) -> Move:
    """Read row for row, and write `gain` times that.

    Examples
    --------
    >>> move = carry(np.eye(2), np.eye(2)[::-1], 4.0)
    >>> (move.reads.T @ move.writes).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    return Move(reads * abs(gain) ** 0.5, writes * (np.sign(gain) * abs(gain) ** 0.5))


@dataclass(eq=False)
class Head:
    """One head as it is planted.

    Attributes
    ----------
    role
        What it does, in words.
    look, move
        Where it looks, what it takes from there.
    matters
        Whether taking it out alone changes what is predicted.
    backup
        Heads of the same name share a load.
    place
        (layer, head), once it has one.
    """

    role: str
    look: Look
    move: Move
    matters: bool
    backup: str = ""
    place: tuple[int, int] = field(default=(-1, -1))
