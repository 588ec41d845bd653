"""What stands beside the table of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    >>> shares = {"alignment_diagonal": ("system", [0.6, 0.6]), "alignment_chance": ("system", [0.9, 0.92])}
    >>> print(error_rate_note(xr.Dataset(shares)))
    AER: links of the best head ... To compare: the diagonal 60.0%, random words 91.0%.
    """
    beside = [
        f"{name} {100 * float(shares.mean()):.1f}%"
        for name, shares in (
            ("the diagonal", scores["alignment_diagonal"]),
            ("random words", scores["alignment_chance"]),
        )
        if not shares.isnull().all()
    ]
    said = (
        "AER: links of the best head against the known ones, on sentences on which the head was not chosen."
    )
    return f"{said} To compare: {', '.join(beside)}." if beside else said
