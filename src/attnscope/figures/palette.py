"""Colours that mean the same in every figure and page, and that colour-blind readers can tell apart.

The hues are those of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/. Blue is left, orange is right.
"""

from __future__ import annotations

import re
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
    "uniform": "#CCCCCC",
    "uniform over the past": "#CCCCCC",
    "mixed": "#999999",
    "next-to-left": LEFT,  # the papers' names of clusters
    "next-to-right": RIGHT,
    "flat": "#999999",
}
_OTHERS = ("#CC79A7", "#B8A90A", "#7A5195", "#8C564B")
_SYSTEMS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_NUMBER = re.compile(r"[\s_#(-]*\d+\)?")
_REMARK = re.compile(r"\s*\(.*\)$")


def cluster_colours(names: Sequence[str]) -> list[str]:
    """Give each cluster the colour of its name; a second cluster of the same name is darker.

    Parameters
    ----------
    names
        Names of kinds, such as ``"previous"``, ``"within 16"`` or ``"leftward 2"``: numbers and what stands in brackets
        at the end make shades of one colour.

    Returns
    -------
    list of str
        One ``#rrggbb`` colour per name.

    Examples
    --------
    >>> from attnscope.figures.palette import cluster_colours
    >>> cluster_colours(["leftward", "mixed", "leftward 2"])
    ['#56B4E9', '#999999', '#387597']
    """
    seen: dict[str, int] = {}
    unknown: dict[str, str] = {}
    colours = []
    for name in names:
        base = _base(str(name))
        if base not in _BY_NAME:
            unknown.setdefault(base, _OTHERS[len(unknown) % len(_OTHERS)])
        colour = _BY_NAME.get(base) or unknown[base]
        colours.append(_darker(colour, 0.65 ** seen.get(base, 0)))
        seen[base] = seen.get(base, 0) + 1
    return colours


def _base(name: str) -> str:
    """What kinds of one hue have in common."""
    name = _REMARK.sub("", name) or name
    if name.startswith("offset "):
        return name[: len("offset -")]
    return _NUMBER.sub("", name) or name


def _darker(colour: str, factor: float) -> str:
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel * factor):02X}" for channel in channels)


def system_colours(count: int) -> list[str]:
    """Colours for systems in their order, one for each; they come again after seven.

    Examples
    --------
    >>> from attnscope.figures.palette import system_colours
    >>> system_colours(2)
    ['#D55E00', '#0072B2']
    """
    return [_SYSTEMS[i % len(_SYSTEMS)] for i in range(count)]
