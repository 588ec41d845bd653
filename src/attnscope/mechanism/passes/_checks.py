"""What passes that change a model ask of their settings before any text is read."""

from __future__ import annotations

import numpy as np

from attnscope.checks import DRAWS, check_seed, check_whole
from attnscope.errors import AttnscopeError


def check_measured(*, band: int, draws: int, seed: int) -> None:
    """Refuse a band or a bootstrap that cannot be had.

    Parameters
    ----------
    band
        Largest offset of the profiles.
    draws, seed
        Number of draws and seed of the bootstrap over texts.

    Raises
    ------
    AttnscopeError
        Names the one that is out of range.

    Examples
    --------
    >>> check_measured(band=10, draws=0, seed=0)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: draws is 0; expected a whole number from 1 to 10000
    """
    check_whole(1, band=band)
    check_whole(1, DRAWS, draws=draws)
    check_seed(seed)


def check_frequencies(frequencies: tuple[int, int], length: int) -> None:
    """Refuse frequencies that windows of so many tokens do not have.

    Examples
    --------
    >>> check_frequencies((5, 2), 16)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: found frequencies 5 to 2; expected two between 0 and 8, half of a window's ...
    """
    first, last = frequencies
    if not 0 <= first <= last <= length // 2:
        raise AttnscopeError(
            f"found frequencies {first} to {last}; expected two between 0 and {length // 2}, half of a window's "
            "tokens, the smaller first"
        )


def check_target(target: np.ndarray, shape: tuple[int, ...], band: int) -> None:
    """Refuse offsets to follow that are not one for each head, or lie beyond the band.

    Parameters
    ----------
    target
        Offsets, ``(layer, head)``.
    shape
        How many layers and heads there are.
    band
        Largest offset of the profiles.

    Examples
    --------
    >>> check_target(np.array([[3, -2]]), (1, 2), 4)
    """
    if target.shape != shape or target.dtype.kind not in "iu" or int(np.abs(target).max(initial=0)) > band:
        highest = f" up to {np.abs(target).max()}" if target.size and target.dtype.kind in "biuf" else ""
        raise AttnscopeError(
            f"found targets of shape {target.shape}{highest} ({target.dtype}); expected whole numbers of shape "
            f"{shape}, layer by head, within the band of {band}"
        )
