"""The figures of patching, all at once, and how each is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnscope._returned import reads
from attnscope.figures.patch._estimates import estimate_points
from attnscope.figures.patch._maps import recovered_intervals, recovered_map
from attnscope.figures.reading import readings_of

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

_DOT = "A dot: told from 0 with all places looked at together."

#: By name of the figure: its title, how to read it, and what is so only where effects are tested against 0.
_READINGS = {
    "recovered-map": (
        "How far the prediction goes to the other run",
        (
            "Orange: the patched run goes towards the run that the activation is from; blue: away from it. 1 is all of "
            "the way."
        ),
        _DOT,
    ),
    "recovered-by-position": (
        "How far the prediction goes, by position",
        (
            "Orange: the patched run goes towards the run that the activation is from; blue: away from it. 1 is all of "
            "the way. Of heads, the 24 that carry most are drawn. A token with … stands for others in other pairs; a/b "
            "is a in the clean text, b in the other."
        ),
        _DOT,
    ),
    "recovered-intervals": (
        "The places that carry most",
        "Each point is the share of the way over all pairs.",
        (
            "Each line is a 95% interval over pairs. Filled points have an effect that is told from 0 with all places "
            "looked at together, rings have not."
        ),
    ),
    "estimates": (
        "Estimates beside what was measured",
        (
            "A point for each place. On the grey line the estimate equals the change that was measured. A rank "
            "correlation near 1: the estimate puts the places in the right order."
        ),
        "",
    ),
}


@reads("patch")
def patch_readings(tree: xr.DataTree) -> dict[str, tuple[str, str]]:
    """By name of each figure: its title, and how to read it.

    Parameters
    ----------
    tree
        From `attnscope.patch`.

    Examples
    --------
    >>> from attnscope.faithfulness import patch
    >>> from attnscope.figures.patch import patch_readings
    >>> patch_readings(patch(steps=0))["recovered-map"][1][-54:]
    'A dot: told from 0 with all places looked at together.'
    """
    return readings_of(_READINGS, tested=bool(tree["patched"].tested.any()), of="pairs")


@reads("patch")
def patch_figures(tree: xr.DataTree) -> Iterator[tuple[str, Figure]]:
    """Every figure that the result has values for, with its name.

    Parameters
    ----------
    tree
        From `attnscope.patch`.

    Examples
    --------
    >>> from attnscope.faithfulness import patch
    >>> from attnscope.figures.patch import patch_figures
    >>> [name for name, _ in patch_figures(patch(steps=0))]
    ['recovered-map', 'recovered-intervals']
    """
    by_position = "position" in tree["patched"].dims
    yield "recovered-by-position" if by_position else "recovered-map", recovered_map(tree)
    yield "recovered-intervals", recovered_intervals(tree)
    if "agreement" in tree.children:
        yield "estimates", estimate_points(tree)
