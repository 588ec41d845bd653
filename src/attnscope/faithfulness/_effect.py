"""A change with its interval, in words, and the largest of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        Whether it is significant, corrected for all that was tested together; None where that was not tested, with
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


def largest_said(effects: Sequence[Effect], said: Callable[[int, Effect], str], every: str) -> list[str]:
    """The largest effect and whether it is significant; where it is not, the largest that is, too.

    The largest of many is large by chance too: without significance it is named without its interval.

    Examples
    --------
    >>> effects = [Effect(9.0, 1.0, 20.0, False), Effect(-2.0, -2.1, -1.9, True), Effect(1.0, 0.9, 1.1, True)]
    >>> for sentence in largest_said(effects, lambda number, effect: f"{said_effect(effect)} ({number})", "heads"):
    ...     print(sentence)
    The largest change is +9.000 (0). It is not significant (corrected for all heads).
    The largest significant change is −2.000 (−2.100 to −1.900) (1).
    """
    order = sorted(range(len(effects)), key=lambda number: -abs(effects[number].mean))
    first = effects[order[0]]
    sentence = f"The largest change is {said(order[0], first if first.shown else first.alone)}."
    if first.shown is None:
        return [sentence]
    if first.shown:
        return [f"{sentence} It is significant (corrected for all {every})."]
    told = [number for number in order if effects[number].shown][:1]
    return [
        f"{sentence} It is not significant (corrected for all {every}).",
        *(f"The largest significant change is {said(number, effects[number])}." for number in told),
    ]
