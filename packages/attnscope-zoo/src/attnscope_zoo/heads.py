"""The parts of a head: the space that it reads and writes, its scores, and the information that it moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from attnscope.kernels.positions import rotation_rates

Rows = Float[np.ndarray, "row width"]

#: Norm of the direction that is the same for every token: it makes LayerNorm and RMSNorm multiply by about 1.
CONSTANT = 60.0


class Space:
    """Orthogonal parts of the residual stream; the remaining directions are ``junk``, which no head reads."""

    def __init__(self, width: int, **parts: int) -> None:
        self.width = width
        sizes = {"constant": 1, **parts}
        sizes["junk"] = width - sum(sizes.values())
        self._at = {
            name: slice(int(start), int(start) + size)
            for (name, size), start in zip(sizes.items(), np.cumsum([0, *sizes.values()])[:-1], strict=True)
        }

    def rows(
        self, part: str, which: Int[np.ndarray, " row"] | list[int] | None = None
    ) -> Float[np.ndarray, "row width"]:
        """Unit vectors of a part, all or by index."""
        at = np.arange(self.width)[self._at[part]]
        at = at if which is None else at[which]
        rows = np.zeros((len(at), self.width))
        rows[np.arange(len(at)), at] = 1.0
        return rows

    @property
    def one(self) -> Float[np.ndarray, "1 width"]:
        """A vector whose product with every token is 1."""
        return self.rows("constant") / CONSTANT


GAP = 10.0  # nats between the position that a sharp head attends to and the next best


@dataclass(frozen=True)
class Shift:
    """A preference for one offset (key minus query), or in a mirror for one sum of the two positions."""

    offset: int  # tokens; with `mirror` the sum of the two positions
    gap: float = GAP  # nats between this offset and the next best one
    # instead of `gap`: the bias at this offset; a negative number keeps the head away from it
    nats: float | None = None
    mirror: bool = False  # whether the head reads backwards


@dataclass(frozen=True, eq=False)
class ScoreRule:
    """Scores of a head, nats: the sum over rows of (x_query · query row) (x_key · key row), and its shifts."""

    queries: Rows
    keys: Rows
    shifts: tuple[Shift, ...] = ()

    def __add__(self, other: ScoreRule) -> ScoreRule:
        """Both preferences at once."""
        return ScoreRule(
            np.vstack([self.queries, other.queries]), np.vstack([self.keys, other.keys]), self.shifts + other.shifts
        )


def matching(queries: Rows, keys: Rows, nats: float) -> ScoreRule:
    """Attend to keys with the content of the query: row for row, a score of `nats`."""
    return ScoreRule(queries * abs(nats) ** 0.5, keys * (abs(nats) ** 0.5 * np.sign(nats)))


@dataclass(frozen=True, eq=False)
class Move:
    """The output of a head for a token that it attends to: the sum over rows of (x_key · read row) write row."""

    reads: Rows
    writes: Rows

    def __add__(self, other: Move) -> Move:
        """Both at once."""
        return Move(np.vstack([self.reads, other.reads]), np.vstack([self.writes, other.writes]))


def carry(reads: Rows, writes: Rows, gain: float = 1.0) -> Move:
    """Read row for row, and write `gain` times that."""
    return Move(reads * abs(gain) ** 0.5, writes * (np.sign(gain) * abs(gain) ** 0.5))


@dataclass(eq=False)
class Head:
    """One planted head."""

    role: str  # a description
    rule: ScoreRule  # its scores, and its output
    move: Move
    matters: bool  # whether removing it alone changes predictions
    backup: str = ""  # heads of the same name share a load
    index: tuple[int, int] = field(default=(-1, -1))  # (layer, head), once assigned


COLUMNS = 16  # of a table of waves at most: a cosine and a sine each
_MOST = COLUMNS // 2  # waves of a table, turning pairs of a head that serve positions
_TRIES = 60
_STILL = 0.25  # radians over a whole text: a pair that turns less carries content

Columns = Float[np.ndarray, "width column"]


class Positions(ABC):
    """The encoding of offsets in the scores of texts of one length."""

    length: int

    @abstractmethod
    def kernel(self, offset: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
        """The scores at other offsets of a head that attends to offset 0 with 1 nat."""

    def nats(self, shift: Shift) -> float:
        """The bias of a head at the offset that it attends to."""
        if shift.nats is not None:
            return shift.nats
        return shift.gap / (1.0 - float(self.kernel(np.arange(1.0, self.length)).max()))


class Waves(Positions):
    r"""Cosines and sines of whole frequencies: :math:`K(t) = \frac1F \sum_c \cos(2 \pi f_c t / T)`."""

    def __init__(self, length: int, rng: np.random.Generator) -> None:
        self.length = length
        possible = np.arange(1, (length - 1) // 2 + 1)
        count = min(_MOST, len(possible))
        tries = [np.sort(rng.choice(possible, count, replace=False)) for _ in range(_TRIES)]
        apart = np.arange(1, length)
        peaks = [np.cos(2 * np.pi * np.outer(apart, step) / length).mean(1).max() for step in tries]
        self.frequencies = tries[int(np.argmin(peaks))]

    def kernel(self, offset: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
        """Mean of the cosines."""
        return np.cos(2 * np.pi * offset[..., None] * self.frequencies / self.length).mean(-1)

    def table(self, space: Space) -> Float[np.ndarray, "position width"]:
        """Rows of norm 1."""
        angle = 2 * np.pi * np.outer(np.arange(self.length), self.frequencies) / self.length
        return (np.hstack([np.cos(angle), np.sin(angle)]) / len(self.frequencies) ** 0.5) @ self._directions(space)

    def projections(
        self, rule: ScoreRule, space: Space, head_width: int, rng: np.random.Generator
    ) -> tuple[Columns, Columns]:
        """Columns for content, then for positions."""
        own = self._directions(space)
        parts = [(rule.queries, rule.keys), *(self._rows(shift, own) for shift in rule.shifts)]
        query, key = (np.vstack([part[side] for part in parts]) for side in (0, 1))
        turn = turned(head_width, rng)[: len(query)]
        return query.T @ turn, key.T @ turn

    def _directions(self, space: Space) -> np.ndarray:
        return space.rows("position")[: 2 * len(self.frequencies)]

    def _rows(self, shift: Shift, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cosines, sines = np.split(directions, 2)
        turn = (2 * np.pi * self.frequencies * shift.offset / self.length)[:, None]
        mirror = -1.0 if shift.mirror else 1.0
        # cos(w (j - i - offset)) = cos(w (i + offset) - w j), and cos(w (i + j - sum)) = cos(w (sum - i) - w j)
        queries = np.vstack(
            [
                np.cos(turn) * cosines - mirror * np.sin(turn) * sines,
                np.sin(turn) * cosines + mirror * np.cos(turn) * sines,
            ]
        )
        nats = self.nats(shift)
        return queries * abs(nats) ** 0.5, directions * (abs(nats) ** 0.5 * np.sign(nats))


class Rotary(Positions):
    r"""RoPE: a constant query and key, turned, score :math:`K(t) = \frac1P \sum_c \cos(\omega_c t)`."""

    def __init__(self, length: int, head_width: int) -> None:
        self.length, self._pairs = length, head_width // 2
        rates = rotation_rates(self._pairs, head_width).numpy()
        apart = np.arange(1, length)
        peaks = [np.cos(np.outer(apart, rates[:count])).mean(1).max() for count in range(2, _MOST)]
        self._rates = rates[: 2 + int(np.argmin(peaks))]
        still = np.flatnonzero(rates * length < _STILL)
        self._still = np.concatenate([still, still + self._pairs])

    def kernel(self, offset: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
        """Mean of the cosines."""
        return np.cos(offset[..., None] * self._rates).mean(-1)

    def table(self, space: Space) -> None:
        """None: only the rotation encodes positions."""

    def projections(
        self, rule: ScoreRule, space: Space, head_width: int, rng: np.random.Generator
    ) -> tuple[Columns, Columns]:
        """Content in the columns without rotation, offsets in those with it."""
        query, key = np.zeros((space.width, head_width)), np.zeros((space.width, head_width))
        turn = turned(len(self._still), rng)[: len(rule.queries)]
        query[:, self._still] = rule.queries.T @ turn
        key[:, self._still] = rule.keys.T @ turn
        for shift in rule.shifts:
            size = (self.nats(shift) / len(self._rates)) ** 0.5
            phase = rng.uniform(0, 2 * np.pi, len(self._rates))  # scores depend on differences only
            query += space.one.T * self._wave(phase + self._rates * shift.offset, size, head_width)
            key += space.one.T * self._wave(phase, size, head_width)
        return query, key

    def _wave(self, phase: np.ndarray, size: float, head_width: int) -> np.ndarray:
        column = np.zeros(head_width)
        pairs = np.arange(len(phase))
        column[pairs], column[pairs + self._pairs] = size * np.cos(phase), size * np.sin(phase)
        return column


def turned(size: int, rng: np.random.Generator) -> Float[np.ndarray, "size size"]:
    """A random orthogonal matrix."""
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


START, ASK = 1, 2  # ids of every vocabulary
TEXTS = 32
GAIN = 6.5  # logits that a circuit adds to its answer


@dataclass(frozen=True, eq=False)
class Task:
    """Texts, and the tokens to predict."""

    ids: Int[np.ndarray, "text token"]  # ``(text, token)``; the source, if there are two texts
    labels: Int[np.ndarray, "text query"]  # ``(text, query)``; -100 without a query
    # ``(text, query, token)``: whether the answer at a query depends on this token; None if no single one decides
    depends: Bool[np.ndarray, "text query token"] | None = None
    # ``(text, query)``: input of the decoder of an encoder-decoder
    target: Int[np.ndarray, "text query"] | None = None


def marked(
    length: int, queries: Int[np.ndarray, "*text place"], keys: Int[np.ndarray, "*text place"]
) -> Bool[np.ndarray, "text query key"]:
    """True for a query and its key; positions are the same in every text, or given for each."""
    marks = np.zeros((TEXTS, length, length), dtype=bool)
    marks[np.arange(TEXTS)[:, None], queries, keys] = True
    return marks


def at_offset(
    queried: Bool[np.ndarray, "text query"], *offsets: int, mirror: int | None = None
) -> Bool[np.ndarray, "text query key"]:
    """The keys at these offsets from queries; with `mirror`, those whose sum with the query is that."""
    text, query = queried.nonzero()
    marks = np.zeros((*queried.shape, queried.shape[1]), dtype=bool)
    if mirror is not None:
        marks[text, query, mirror - query] = True
    for offset in offsets:
        marks[text, query, query + offset] = True
    return marks


def at_key(
    queried: Bool[np.ndarray, "text query"], where: Int[np.ndarray, " text"]
) -> Bool[np.ndarray, "text query key"]:
    """One key of each text, for every query."""
    return queried[:, :, None] & (np.arange(queried.shape[1]) == where[:, None])[:, None]
