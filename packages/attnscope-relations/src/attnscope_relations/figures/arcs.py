"""Sentences with arcs: above the words what belongs together, below them what heads choose."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Polygon
from matplotlib.path import Path

from attnscope.results.figures import style

RIGHT, WRONG, GOLD = "#0072B2", "0.5", "0.3"  # orange is a value above 0 in maps
_SIZE, _LETTER, _GAP = 8, 5.0, 10  # points: of words, of a letter on average, between words
_WORD = 7  # points from the middle of a line of words to its arcs
_STEP, _LABEL = 18, 9  # points by which an arc is higher than those below it; of its label beyond it
_HIGH = 110  # points of all arcs of a side, about, at most
_HANDLE = 4 / 3  # of its height, where the handles of a Bézier curve are
_THIN, _THICK = 0.7, 2.4  # points: lines of weights 0 and 1
_MARGIN, _BETWEEN, _KEY = 6, 12, 16  # points: around the figure, between sentences, of a line of text
_INCH = 72


@dataclass(frozen=True)
class Arc:
    """An arc from a query to a key, by numbers of words, which may be several side by side."""

    query: Sequence[int]
    key: Sequence[int]
    is_right: bool | None = None  # None: of the data
    weight: float = 1.0
    label: str = ""
    is_faint: bool = False  # its weight is near that of uniform attention


@dataclass(frozen=True)
class Sentence:
    """Words, and the arcs above and below them."""

    words: Sequence[str]
    above: Sequence[Arc]
    below: Sequence[Arc]


def side_by_side(words: Sequence[int]) -> list[list[int]]:
    """Numbers of words, those of adjacent words together."""
    runs: list[list[int]] = []
    for word in words:
        if runs and runs[-1][-1] == word - 1:
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def levels(arcs: Sequence[Arc]) -> list[int]:
    """How high each arc is, from 1, so that short ones are below long ones, and equal ones apart."""
    ends = [(min(*arc.query, *arc.key), max(*arc.query, *arc.key)) for arc in arcs]
    heights: dict[int, int] = {}
    for at in sorted(range(len(arcs)), key=lambda at: ends[at][1] - ends[at][0]):
        first, last = ends[at]
        below = [height for other, height in heights.items() if ends[other][0] < last and ends[other][1] > first]
        heights[at] = 1 + max(below, default=0)
    return [heights[at] for at in range(len(arcs))]


def fitting(widths: Sequence[float], ends: Iterable[int], room: float) -> list[int | None]:
    """The words that fit into a width: those with arcs, and the nearest to them; None where some are left out."""
    if sum(widths) <= room:
        return [*range(len(widths))]
    kept = {*ends}
    distance = [min((abs(word - end) for end in kept), default=0) for word in range(len(widths))]
    used = sum(widths[word] for word in kept) + _wide("…") * (len(kept) + 1)
    for word in sorted(range(len(widths)), key=lambda word: (distance[word], word)):
        if word not in kept:
            used += widths[word]
            if used > room:
                break
            kept.add(word)
    line: list[int | None] = []
    for word in range(len(widths)):
        if word in kept:
            line.append(word)
        elif not line or line[-1] is not None:
            line.append(None)
    return line


@style.figure_style()
def sentence_arcs(title: str, sentences: Sequence[Sentence], *, several: bool = False) -> style.Figure:
    """Draw sentences below each other: links of the data above the words, the choices of heads below.

    A right choice is solid with a tick, a wrong one dashed with a cross; the line is as thick as its weight, and grey
    where this is near uniform attention. With `several`, arcs below are labelled by their heads.
    """
    names = [[style.drawable(word, longest=18) for word in sentence.words] for sentence in sentences]
    widths = [[_wide(word) for word in words] for words in names]
    width = max((sum(line) for line in widths), default=0) + 2 * _MARGIN
    figure = style.Figure(figsize=(width / _INCH, 1.0))
    room = figure.get_figwidth() * _INCH - 2 * _MARGIN
    heights = [
        [_step(levels(arcs)) * max(levels(arcs), default=0) for arcs in (one.above, one.below)] for one in sentences
    ]
    parts = [above + below + 2 * _WORD for above, below in heights]
    keys = _keys(sentences, several=several)
    columns = style.legend_columns(figure, [str(key.get_label()) for key in keys], most=len(keys))
    total = sum(parts) + _BETWEEN * len(parts) + (1 + math.ceil(len(keys) / columns)) * _KEY + 2 * _MARGIN
    figure.set_figheight(total / _INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, room + 2 * _MARGIN), ylim=(0, total))
    axes.set_axis_off()
    axes.text(_MARGIN, total - _MARGIN, title, fontsize=8, fontweight="bold", va="top", parse_math=False)
    top = total - _MARGIN - _KEY
    for sentence, written, wide, (above, _), height in zip(sentences, names, widths, heights, parts, strict=True):
        _draw(axes, sentence, written, wide, (room, top - above - _WORD))
        top -= height + _BETWEEN
    axes.legend(handles=keys, loc="lower left", ncols=columns, borderaxespad=0.3)
    return figure


def _wide(word: str) -> float:
    """About the width of a word in points, with the space after it."""
    return _GAP + sum(_SIZE if unicodedata.east_asian_width(letter) in "WF" else _LETTER for letter in word)


def _step(heights: Sequence[int]) -> float:
    """Points between arcs, fewer where many are above each other."""
    return min(_STEP, max(_LABEL + 2.0, _HIGH / max(heights, default=1)))


def _draw(
    axes: Axes, sentence: Sentence, words: Sequence[str], widths: Sequence[float], at: tuple[float, float]
) -> None:
    """One sentence, in a width, with the middle of its words at a height."""
    room, height = at
    arcs = [*sentence.above, *sentence.below]
    linked = {end for arc in arcs for end in (*arc.query, *arc.key)}
    line = fitting(widths, linked, room)
    middle: dict[int, float] = {}
    x = float(_MARGIN)
    for word in line:
        wide = _wide("…") if word is None else widths[word]
        text = "…" if word is None else words[word]
        colour = "black" if word in linked else "0.45"
        axes.text(x + wide / 2, height, text, fontsize=_SIZE, ha="center", va="center", color=colour, parse_math=False)
        if word is not None:
            middle[word] = x + wide / 2
        x += wide
    for side, drawn in ((1, sentence.above), (-1, sentence.below)):
        heights = levels(drawn)
        for arc, level in zip(drawn, heights, strict=True):
            ends = [
                (middle[words[0]] - (widths[words[0]] - _GAP) / 2, middle[words[-1]] + (widths[words[-1]] - _GAP) / 2)
                for words in (arc.query, arc.key)
            ]
            _arc(axes, arc, ends, height + side * _WORD, side * (_step(heights) * level - _LABEL))


def _arc(axes: Axes, arc: Arc, ends: Sequence[tuple[float, float]], start: float, rise: float) -> None:
    colour = GOLD if arc.is_right is None else RIGHT if arc.is_right and not arc.is_faint else WRONG
    for side, words in zip(ends, (arc.query, arc.key), strict=True):
        if len(words) > 1:
            axes.plot(side, [start, start], color=colour, linewidth=1.2)
    first, last = (sum(side) / 2 for side in ends)
    first += 2.0 if last > first else -2.0  # a word's own arc begins beside those that end there
    tip = 3.0 if rise > 0 else -3.0
    points = [(first, start), (first, start + _HANDLE * rise), (last, start + _HANDLE * rise), (last, start + tip)]
    path = Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
    width = 0.9 if arc.is_right is None else _THIN + (_THICK - _THIN) * arc.weight
    dashes = (0, (3, 1.6)) if arc.is_right is False else "-"
    axes.add_patch(PathPatch(path, fill=False, edgecolor=colour, linewidth=width, linestyle=dashes))
    head = [(last, start), (last - 2, start + 1.5 * tip), (last + 2, start + 1.5 * tip)]
    axes.add_patch(Polygon(head, closed=True, facecolor=colour, linewidth=0))
    if arc.label:
        axes.text(
            (first + last) / 2,
            start + rise - 2.0 - width / 2,
            arc.label,
            fontsize=6,
            ha="center",
            va="top",
            color=colour,
        )


def _keys(sentences: Sequence[Sentence], *, several: bool) -> list[Line2D]:
    """The entries of the legend that the sentences need."""
    drawn = {arc.is_right for sentence in sentences for arc in sentence.below}
    keys = [Line2D([], [], color=GOLD, linewidth=0.9, label="Above: links of the data")]
    if True in drawn:
        name = "Below: heads, with weights" if several else "Below: largest weight, on the linked word"
        keys.append(Line2D([], [], color=RIGHT, linewidth=1.6, label=name))
    if False in drawn:
        keys.append(
            Line2D(
                [],
                [],
                color=WRONG,
                linewidth=1.6,
                linestyle=(0, (3, 1.6)),
                label="Below: largest weight, on another word",
            )
        )
    if any(arc.is_faint for sentence in sentences for arc in sentence.below):
        keys.append(Line2D([], [], color=WRONG, linewidth=0.9, label="Grey: at most twice uniform attention"))
    return keys
