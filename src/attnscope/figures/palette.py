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
    "next-to-left": LEFT,
    "leftward": "#56B4E9",
    "next-to-right": RIGHT,
    "rightward": "#E69F00",
    "self": "#009E73",
    "flat": "#999999",
}
_OTHERS = ("#CC79A7", "#B8A90A", "#7A5195", "#8C564B")
_SYSTEMS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_TRAILING_NUMBER = re.compile(r"[\s_#(-]*\d+\)?$")


def cluster_colours(names: Sequence[str]) -> list[str]:
    """Give each cluster the colour of its name; a second cluster of the same name is darker.

    Parameters
    ----------
    names
        Cluster names, such as ``"next-to-left"`` or ``"leftward 2"``: a trailing number is ignored.

    Returns
    -------
    list of str
        One ``#rrggbb`` colour per name.

    Examples
    --------
    >>> from attnscope.figures.palette import cluster_colours
    >>> cluster_colours(["leftward", "flat", "leftward 2"])
    ['#56B4E9', '#999999', '#387597']
    """
    seen: dict[str, int] = {}
    unknown: dict[str, str] = {}
    colours = []
    for name in names:
        base = _TRAILING_NUMBER.sub("", str(name)) or str(name)
        if base not in _BY_NAME:
            unknown.setdefault(base, _OTHERS[len(unknown) % len(_OTHERS)])
        colour = _BY_NAME.get(base) or unknown[base]
        colours.append(_darker(colour, 0.65 ** seen.get(base, 0)))
        seen[base] = seen.get(base, 0) + 1
    return colours


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
