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
    "previous": LEFT,
    "next": RIGHT,
    "self": "#009E73",
    "same position": "#009E73",
    "offset -": "#5B3FB5",
    "offset +": "#A6341B",
    "first token": "#B8A90A",
    "special tokens": "#8C564B",
    "no token": "#404040",
    "local": "#CC79A7",
    "local left": "#7CA6D8",
    "local right": "#F0A08A",
    "within": "#7A5195",
    "within left": "#3D7A9E",
    "within right": "#B5651D",
    "leftward": "#56B4E9",
    "rightward": "#E69F00",
    "uniform": "#C8C8C8",
    "uniform over the past": "#C8C8C8",
    "mixed": "#999999",
    "next-to-left": LEFT,  # the papers' names of clusters
    "next-to-right": RIGHT,
    "flat": "#C8C8C8",
}
_OTHERS = (
    "#882255",
    "#DDCC77",
    "#332288",
    "#CC79A7",
    LEFT,
    "#56B4E9",
    RIGHT,
    "#E69F00",
    "#009E73",
    "#C8C8C8",
)
_SYSTEMS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_NUMBER = re.compile(r"[\s_#(-]*\d+\)?")
_REMARK = re.compile(r"\s*\(.*\)$")


def cluster_colours(names: Sequence[str]) -> list[str]:
    """Give each kind or cluster a colour of its own: the one of its name, if none before has it.

    Parameters
    ----------
    names
        Such as ``"previous"`` or ``"leftward 2"``: a number does not change the name, nor does a remark in brackets.

    Returns
    -------
    list of str
        One ``#rrggbb`` colour per name.

    Examples
    --------
    >>> from attnscope.figures.palette import cluster_colours
    >>> cluster_colours(["leftward", "mixed", "leftward 2"])
    ['#56B4E9', '#999999', '#882255']
    """
    own: dict[str, int] = {}
    for index, name in enumerate(names):
        base = _base(str(name))
        if base in _BY_NAME:
            own.setdefault(base, index)
    taken = {index: _BY_NAME[base] for base, index in own.items()}
    others = cycle([colour for colour in _OTHERS if colour not in taken.values()] or _OTHERS)
    return [taken.get(index) or next(others) for index in range(len(names))]


def _base(name: str) -> str:
    """What kinds of one hue have in common."""
    name = _REMARK.sub("", name) or name
    if name.startswith("offset "):
        return name[: len("offset -")]
    return _NUMBER.sub("", name) or name


def system_colours(count: int) -> list[str]:
    """Colours for systems in their order, one for each; they come again after seven.

    Examples
    --------
    >>> from attnscope.figures.palette import system_colours
    >>> system_colours(2)
    ['#D55E00', '#0072B2']
    """
    return [_SYSTEMS[i % len(_SYSTEMS)] for i in range(count)]
