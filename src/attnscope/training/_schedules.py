"""Learning rates over a training."""

from __future__ import annotations

import math


def learning_rate(
    step: int, schedule: str, *, peak: float, warmup: int, last: int, width: int = 1, cooldown: int = 0
) -> float:
    r"""Rate of an update.

    With :math:`s` the step and :math:`w` the warm-up, ``noam`` is
    :math:`\text{peak}\cdot d^{-1/2}\min(s^{-1/2}, s\,w^{-3/2})`
    (Vaswani et al. 2017, equation 3), so that `peak` is a factor there. The others grow linearly to `peak` until w;
    then ``inverse_sqrt`` is :math:`\text{peak}\sqrt{w/s}`, ``cosine`` falls to 0 at `last`, ``constant`` stays.

    Parameters
    ----------
    step
        Update, from 1.
    schedule
        Name.
    peak
        The largest rate.
    warmup
        Updates until it is reached.
    last
        Updates in all.
    width
        Width d of the model, for ``noam``.
    cooldown
        Updates at the end over which any rate also falls linearly to 0.

    Examples
    --------
    >>> [learning_rate(s, "inverse_sqrt", peak=1.0, warmup=4, last=100) for s in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    >>> [learning_rate(s, "constant", peak=1.0, warmup=0, last=100, cooldown=4) for s in (96, 97, 98, 99, 100)]
    [1.0, 1.0, 0.75, 0.5, 0.25]
    """
    left = min(1.0, (last + 1 - step) / cooldown) if cooldown else 1.0
    return left * _before_cooldown(step, schedule, peak, warmup, last, width)


def _before_cooldown(step: int, schedule: str, peak: float, warmup: int, last: int, width: int) -> float:
    if schedule == "noam":
        return peak * width**-0.5 * min(step**-0.5, step * max(1, warmup) ** -1.5)
    if step < warmup:
        return peak * step / warmup
    match schedule:
        case "inverse_sqrt":
            return peak * math.sqrt(max(1, warmup) / step)
        case "cosine":
            done = (step - warmup) / max(1, last - warmup)
            return peak * (1 + math.cos(math.pi * min(1.0, done))) / 2
        case _:
            return peak
