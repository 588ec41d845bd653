"""Which heads turn from the prompt to the model's own output while it generates, beside what grows by itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope._documents import LEAST
from attnscope._nulls import with_nulls
from attnscope.faithfulness.arrays import above_zero, by_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

_LEAST_TURN = (
    0.02  # of a row's weight: places are known in bins, which alone turns an untrained ALiBi head by 0.006
)
_SHORTEST = 6  # new tokens of a text that tells of its beginning and its end
_OWN = "own output"

#: What a reader of the turns has to know.
CAUTION = (
    "Own output: the weight on what the model has said so far, means over the first and the last third of the new "
    "tokens. It grows by itself: equal weights over the same keys grow too (equal), and so does a head with the same "
    "weight at each distance and on the first token, whatever stands there (places). Turn: by how much more it grows "
    "than the larger of the two. Chance is that of texts: heads of untrained models that look at certain positions "
    "turn too."
)


@dataclass(frozen=True)
class Turn:
    """How far a head turns to what the model itself has said.

    Attributes
    ----------
    layer, head
        The head.
    own, equal, places
        The share of its weight on the model's own output, that of equal weights over the same keys, and that by its
        places alone: in the first third of the new tokens and in the last, means over texts.
    turn
        How much more its own share grows than the larger of the other two.
    low, high
        95% interval of the turn, by the bootstrap over texts; NaN with fewer than 6. It is of this head by itself.
    texts
        How many there are.
    beyond_chance
        Whether it turns by 0.02 or more, and more than by chance: if no head did, one would be called so in at most 5%
        of results. None with fewer than 6 texts, where that is not known.
    """

    layer: int
    head: int
    own: tuple[float, float]
    equal: tuple[float, float]
    places: tuple[float, float]
    turn: float
    low: float
    high: float
    texts: int
    beyond_chance: bool | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return with_nulls(asdict(self))


def turns(results: xr.Dataset) -> list[Turn]:
    """How far each head of the decoder's self-attention turns to the model's own output; the furthest first.

    Chance is that of texts: were there nothing, the turn in a text would be as likely to lie below 0. The largest t of
    all heads, over 1,000 choices of signs, says what there is by chance (Winkler et al. 2014).

    Parameters
    ----------
    results
        From `attnscope.generate`, or from `attnscope.watch` around ``generate()``. Texts of fewer than 6 new tokens and
        layers that cannot see the model's own output, are left out.

    Examples
    --------
    >>> import xarray as xr
    >>> own = np.linspace(0, 0.9, 9).reshape(1, 9, 1, 1, 1)
    >>> dims = ("sequence", "step", "layer", "head", "span")
    >>> results = xr.Dataset(
    ...     {
    ...         "span_weight": (dims, own),
    ...         "place_span_weight": (dims, own / 2),
    ...         "equal_span_weight": ([name for name in dims if name != "head"], own[..., 0] / 3),
    ...         "length": ("sequence", [9]),
    ...     },
    ...     {"span": ["own output"], "layer": [0], "head": [0]},
    ... )
    >>> [turn] = turns(results)
    >>> round(turn.own[0], 4), round(turn.own[1], 4), round(turn.turn, 4), turn.beyond_chance
    (0.1125, 0.7875, 0.3375, None)
    """
    long = np.flatnonzero(results.length.values >= _SHORTEST)
    own, places, equal = (
        _thirds(results, name, long) for name in ("span_weight", "place_span_weight", "equal_span_weight")
    )
    known = np.isfinite(own).all((0, 1)) if len(long) else np.zeros(own.shape[2:], dtype=bool)
    grown = [np.diff(values, axis=1)[:, 0] for values in (own, places, np.broadcast_to(equal, own.shape))]
    larger = np.where(grown[1].mean(0) >= grown[2].mean(0), grown[1], grown[2]) if len(long) else grown[1]
    each = grown[0] - larger  # (text, layer, head)
    told = above_zero([each[:, known]], len(long))[0] if len(long) >= LEAST else None
    heads = [tuple(int(place) for place in at) for at in np.argwhere(known)]
    rows: list[Turn] = []
    for number, (layer, head) in enumerate(heads):
        interval = by_document(each[:, layer, head], range(len(long)))
        rows.append(
            Turn(
                int(results.layer[layer]),
                int(results["head"][head]),
                _pair(own[:, :, layer, head]),
                _pair(equal[:, :, layer, 0]),
                _pair(places[:, :, layer, head]),
                float(each[:, layer, head].mean()),
                float(interval.low),
                float(interval.high),
                len(long),
                None if told is None else bool(told[number] and each[:, layer, head].mean() >= _LEAST_TURN),
            )
        )
    return sorted(rows, key=lambda row: -row.turn)


def said_of_turns(rows: Sequence[Turn]) -> str:
    """How many heads turn to the model's own output, as far as that is known.

    Examples
    --------
    >>> said_of_turns([])
    "No text has 6 new tokens or more, so nothing is said of heads that turn to the model's own output"
    """
    if not rows:
        return (
            f"No text has {_SHORTEST} new tokens or more, so nothing is said of heads that turn to the model's own "
            "output"
        )
    if rows[0].beyond_chance is None:
        return (
            f"With fewer than {LEAST} texts chance is not known, which alone makes some head turn to the model's own "
            "output"
        )
    turning = sum(row.beyond_chance is True for row in rows)
    told = {0: "No head turns", 1: f"1 head of {len(rows)} turns"}.get(
        turning, f"{turning} heads of {len(rows)} turn"
    )
    return (
        f"{told} to the model's own output by more than its size and the head's places, by {_LEAST_TURN:.0%} of the "
        "weight or more and beyond chance (were there nothing, one would be found in at most 5% of such tables)"
    )


def _thirds(results: xr.Dataset, name: str, texts: np.ndarray) -> np.ndarray:
    """Means over the first and the last third of each text's new tokens, ``(text, 2, layer, head)``."""
    values = results[name].sel(span=_OWN)
    values = values.expand_dims(head=[0]) if "head" not in values.dims else values
    values = values.transpose("sequence", "step", "layer", "head").values
    means = np.full((len(texts), 2, *values.shape[2:]), np.nan)
    for row, text in enumerate(texts):
        length = int(results.length.values[text])
        third = length // 3
        means[row] = values[text, :third].mean(0), values[text, length - third : length].mean(0)
    return means


def _pair(values: np.ndarray) -> tuple[float, float]:
    first, last = values.mean(0)
    return float(first), float(last)
