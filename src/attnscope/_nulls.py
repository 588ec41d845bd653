"""Values as JSON has them, which knows no NaN and no infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def with_nulls(value: Any) -> Any:
    """The same with None for each number that is not finite, however deep it lies; arrays as lists.

    Examples
    --------
    >>> with_nulls({"share": np.array([0.5, np.nan]), "ends": (1, math.inf), "name": "nan"})
    {'share': [0.5, None], 'ends': (1, None), 'name': 'nan'}
    """
    given: Any = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(given, dict):
        return {name: with_nulls(inner) for name, inner in given.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(given, list | tuple):
        return type(given)(with_nulls(inner) for inner in given)  # pyright: ignore[reportUnknownVariableType, reportCallIssue]
    return None if isinstance(given, float) and not math.isfinite(given) else given
