"""How many batches one of several processes measures before the next has its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

UNIT = (
    16  # batches, at least: a piece of the run, which has its own cost to be written, read and put together
)
OPERATIONS = (
    2e12  # of a forward pass, at most, where that is more: some 10 s on one core, less on anything larger
)
TURNS = 32  # at least, so that none of some processes waits long for another


def turn_of(model: nn.Module, *, windows: float, length: int, each: int, least: int = UNIT) -> int:
    """How many batches (or pools) of `each` windows are a unit, the same in every process.

    Parameters
    ----------
    model
        What measures, with two operations a parameter and token.
    windows
        About how many there are in all.
    length
        Tokens of a window.
    each
        Windows of a batch.
    least
        The fewest batches.

    Examples
    --------
    >>> import torch
    >>> small, large = torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1000_000, device="meta")
    >>> [turn_of(model, windows=1e6, length=1000, each=16) for model in (small, large)]
    [62, 16]
    >>> turn_of(small, windows=16e3, length=1000, each=16)
    31
    """
    operations = 2.0 * length * sum(parameter.numel() for parameter in model.parameters())
    wanted = min(OPERATIONS / operations, windows / TURNS)
    return max(least, int(wanted // each))
