"""Statistics that are the same numbers, and count once: of texts whose only special token is the first, say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.difference._sizes import ROUNDING


def repeated_statistics(names: Sequence[str], values: Sequence[Sequence[np.ndarray]]) -> dict[str, str]:
    """Names of the statistics whose numbers an earlier one has everywhere, each with the earlier one's name.

    Parameters
    ----------
    names
        Names of the statistics.
    values
        For each statistic its numbers in every scan; shapes differ between scans alone.

    Examples
    --------
    >>> first, other = np.array([0.1, 0.2]), np.array([0.3, 0.4])
    >>> repeated_statistics(["first_token", "entropy", "special_tokens"], [[first], [other], [first + 1e-9]])
    {'special_tokens': 'first_token'}
    >>> repeated_statistics(["entropy", "outside"], [[np.full(2, np.nan)]] * 2)  # nothing is known of either
    {}
    """
    repeated: dict[str, str] = {}
    for number, name in enumerate(names):
        for earlier, known in zip(names[:number], values, strict=False):
            if earlier not in repeated and _same(values[number], known):
                repeated[name] = earlier
                break
    return repeated


def _same(values: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> bool:
    """Whether there are numbers, and the same ones everywhere."""
    return any(np.isfinite(own).any() for own in values) and all(
        np.allclose(own, other, rtol=ROUNDING, atol=ROUNDING**2, equal_nan=True)
        for own, other in zip(values, known, strict=True)
    )


def repeated_said(repeated: dict[str, str]) -> list[str]:
    """Which statistics count once, in a sentence for each; none where all differ.

    Examples
    --------
    >>> repeated_said({"special_tokens": "first_token"})
    ['special_tokens has the same numbers as first_token here, and is counted once, as first_token.']
    """
    return [
        f"{name} has the same numbers as {other} here, and is counted once, as {other}."
        for name, other in repeated.items()
    ]
