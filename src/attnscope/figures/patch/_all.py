"""The figures of patching, all at once, and how each is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnscope._returned import reads
from attnscope.figures.patch._estimates import estimate_points
from attnscope.figures.patch._maps import recovered_intervals, recovered_map

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

#: By name of the figure: its title, and how to read it.
READINGS = {
    "recovered-map": (
        "How far the prediction goes to the other run",
        (
            "Orange: the patched run goes towards the run that the activation is from; blue: away from it. 1 is all of "
            "the way. A dot: told from 0 with all places looked at together."
        ),
    ),
    "recovered-by-position": (
        "How far the prediction goes, by position",
        (
            "Orange: the patched run goes towards the run that the activation is from; blue: away from it. 1 is all of "
            "the way. A dot: told from 0 with all places looked at together. Of heads, the 24 that carry most are "
            "drawn. A token with … stands for others in other pairs; a/b is a in the clean text, b in the other."
        ),
    ),
    "recovered-intervals": (
        "The places that carry most",
        (
            "Each point is the share of the way over all pairs, each line its 95% interval over pairs, where there are "
            "6 or more. Filled: told from 0 with all places looked at together."
        ),
    ),
    "estimates": (
        "Estimates beside what was measured",
        (
            "A point for each place. On the grey line the estimate equals the change that was measured. A rank "
            "correlation near 1: the estimate puts the places in the right order."
        ),
    ),
}


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
