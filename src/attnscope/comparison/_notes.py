"""What stands beside the table of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._numbers import percent

if TYPE_CHECKING:
    import xarray as xr


def error_rate_note(scores: xr.Dataset) -> str:
    """Say what the alignment error rates of a comparison are, and what needs no model to reach.

    Parameters
    ----------
    scores
        Node ``scores`` of `attnscope.compare`, on the generated task.

    Examples
    --------
    >>> import xarray as xr
    >>> from attnscope.comparison import error_rate_note
    >>> shares = {"diagonal": [0.6, 0.6], "chance": [0.9, 0.92], "chance_level": [0.88, 0.9]}
    >>> print(error_rate_note(xr.Dataset({f"alignment_{name}": ("system", of) for name, of in shares.items()})))
    AER: links of the best head ... To compare: the diagonal 60.0%, random words 91.0% (below 89.0% in 1 of 100).
    """
    said = (
        "AER: links of the best head against the known ones, on sentences on which the head was not chosen, with its "
        "95% interval over sentences."
    )
    diagonal, chance, level = (scores[f"alignment_{name}"] for name in ("diagonal", "chance", "chance_level"))
    if diagonal.isnull().all():
        return said
    return (
        f"{said} To compare: the diagonal {percent(float(diagonal.mean()))}, random words "
        f"{percent(float(chance.mean()))} (below {percent(float(level.mean()))} in 1 of 100)."
    )
