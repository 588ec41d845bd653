"""A change with its interval, in words, and which of many is named: one that is told from 0, if there is any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnscope._arguments import typed
from attnscope._numbers import places


@dataclass(frozen=True)
class Effect:
    """What one ablation of one head changes.

    Attributes
    ----------
    mean, low, high
        Change of the loss, nats, and its 95% interval; NaN bounds where there are too few texts for one.
    shown
        Whether it is told from 0, all heads looked at together; None where that was not tested, of
        fewer than 6 windows.

    Examples
    --------
    >>> told = Effect(0.5, 0.25, 0.75, shown=True)
    >>> said_effect(told), said_effect(told.alone)
    ('+0.500 (+0.250 to +0.750)', '+0.500')
    """

    mean: float
    low: float
    high: float
    shown: bool | None

    @property
    def digits(self) -> int:
        """Digits after the point: 3, or as many as show a small change that is told from 0.

        Examples
        --------
        >>> Effect(0.00012, 0.00010, 0.00014, True).digits, Effect(0.00012, -0.001, 0.001, False).digits
        (5, 3)
        """
        return places(self.mean, 3) if self.shown else 3

    @property
    def alone(self) -> Effect:
        """Without interval: that of the largest of many is not about the largest."""
        return Effect(self.mean, np.nan, np.nan, self.shown)


@typed
def said_effect(effect: Effect) -> str:
    """A change with its interval.

    Examples
    --------
    >>> said_effect(Effect(0.5, 0.25, 0.75, True)), said_effect(Effect(-0.002, float("nan"), float("nan"), False))
    ('+0.500 (+0.250 to +0.750)', '−0.002')
    """
    digits = effect.digits
    text = f"{effect.mean:+.{digits}f}"
    if np.isfinite(effect.low):
        text += f" ({effect.low:+.{digits}f} to {effect.high:+.{digits}f})"
    return text.replace("-", "−")


def largest_told(effects: Sequence[Effect]) -> int:
    """Place of the largest effect that is told from 0; of the largest of all where none is.

    The largest of many is large by chance too, and its own interval does not know of the others.

    Examples
    --------
    >>> largest_told([Effect(9.0, 1.0, 20.0, False), Effect(-2.0, -2.1, -1.9, True), Effect(1.0, 0.9, 1.1, True)])
    1
    >>> largest_told([Effect(1.0, -1.0, 3.0, False), Effect(-2.0, -5.0, 1.0, False)])
    1
    """
    told = [place for place, effect in enumerate(effects) if effect.shown]
    return max(told or range(len(effects)), key=lambda place: abs(effects[place].mean))
