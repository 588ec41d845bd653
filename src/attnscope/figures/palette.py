"""Colours that mean the same in every figure and page, and that colour-blind readers can tell apart.

The hues are those of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/, and two of Tol's. Blue is left, orange
is right.
"""

from __future__ import annotations

import re
from itertools import cycle
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEFT, RIGHT, MARK = "#0072B2", "#D55E00", "#D62728"

_BY_NAME = {
    "next-to-left": LEFT,
    "leftward": "#56B4E9",
    "next-to-right": RIGHT,
    "rightward": "#E69F00",
    "self": "#009E73",
    "flat": "#C8C8C8",
}
_COLOURS = (*_BY_NAME.values(), "#882255", "#DDCC77", "#332288", "#CC79A7")
_SYSTEMS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_TRAILING_NUMBER = re.compile(r"[\s_#(-]*\d+\)?$")


def cluster_colours(names: Sequence[str]) -> list[str]:
    """Give each cluster a colour of its own: the one of its name, if no cluster before has it.

    Parameters
    ----------
    names
        Cluster names, such as ``"next-to-left"`` or ``"leftward 2"``: a trailing number is ignored.

    Returns
    -------
    list of str
        One ``#rrggbb`` colour per name; after ten they come again.

    Examples
    --------
    >>> from attnscope.figures.palette import cluster_colours
    >>> cluster_colours(["leftward", "flat", "leftward 2"])
    ['#56B4E9', '#C8C8C8', '#882255']
    """
    own: dict[str, int] = {}
    for index, name in enumerate(names):
        base = _TRAILING_NUMBER.sub("", str(name))
        if base in _BY_NAME:
            own.setdefault(base, index)
    taken = {index: _BY_NAME[base] for base, index in own.items()}
    free = [
        colour for colour in (*_COLOURS[len(_BY_NAME) :], *_BY_NAME.values()) if colour not in taken.values()
    ]
    others = cycle(free or _COLOURS)
    return [taken.get(index) or next(others) for index in range(len(names))]


def system_colours(count: int) -> list[str]:
    """Colours for systems in their order, one for each; they come again after seven.

    Examples
    --------
    >>> from attnscope.figures.palette import system_colours
    >>> system_colours(2)
    ['#D55E00', '#0072B2']
    """
    return [_SYSTEMS[i % len(_SYSTEMS)] for i in range(count)]
