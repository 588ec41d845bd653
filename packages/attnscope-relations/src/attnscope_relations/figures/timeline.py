"""A sound: its words by time, and where heads put them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnscope.results.figures import style

_LINE = 0.34  # inches
_SECONDS = 4.5  # of sound in a row, at most
_RIGHT, _WRONG = "#0072B2", "0.45"


@style.figure_style()
def timeline(
    words: Sequence[tuple[str, float, float]], times: Mapping[str, Sequence[float]], tolerance: float = 0.1
) -> style.Figure:
    """Draw the words of a sound as boxes, and below them when each head starts them.

    Parameters
    ----------
    words
        A word, its start and its end in seconds, in order.
    times
        Name of a head, or of a set of heads, to the start of each word in seconds; NaN for a word without one.
    tolerance
        Seconds within which a start is right: a filled mark. Others are crosses, with a line to the true start.
    """
    end = max(last for *_, last in words)
    rows = max(1, int(np.ceil(end / _SECONDS)))
    # a row ends where a word begins, so that no word is cut
    begins_of_words = np.array([first for _, first, _ in words])
    cuts = [float(begins_of_words[np.abs(begins_of_words - at * end / rows).argmin()]) for at in range(1, rows)]
    starts_of_rows = [0.0, *dict.fromkeys(cut for cut in cuts if cut > 0)]
    ends_of_rows = [*starts_of_rows[1:], end]
    rows, seconds = len(starts_of_rows), max(np.subtract(ends_of_rows, starts_of_rows))
    lines = len(times) + 1
    figure = style.Figure(figsize=(style.PAGE, rows * (_LINE * lines + 0.3) + 0.3), layout="constrained")
    panels = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for axes, begin, finish in zip(panels, starts_of_rows, ends_of_rows, strict=True):
        for word, first, last in words:
            if begin <= first < finish:
                axes.broken_barh(
                    [(first, last - first)], (-0.38, 0.76), facecolor="0.9", edgecolor="0.55", linewidth=0.6
                )
                name = style.drawable(word, longest=16)
                axes.text(
                    (first + last) / 2, 0, name, ha="center", va="center", fontsize=6, clip_on=True, parse_math=False
                )
        for line, starts in enumerate(times.values(), start=1):
            gold = np.array([first for _, first, _ in words])
            begins = np.asarray(starts, dtype=float)
            right = np.abs(begins - gold) <= tolerance
            axes.plot(begins[right], np.full(right.sum(), line), "o", color=_RIGHT, markersize=4, mew=0)
            wrong = np.isfinite(begins) & ~right
            axes.plot(begins[wrong], np.full(wrong.sum(), line), "x", color=_WRONG, markersize=4, mew=1.0)
            axes.hlines(np.full(wrong.sum(), line), begins[wrong], gold[wrong], color=_WRONG, linewidth=0.8)
        axes.vlines([first for _, first, _ in words], 0.38, lines - 0.5, color="0.85", linewidth=0.6, zorder=0)
        axes.set_yticks(range(lines), ["words", *times], parse_math=False)
        axes.set(xlim=(begin - 0.02 * seconds, begin + 1.02 * seconds), ylim=(lines - 0.5, -0.6))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    panels[-1].set_xlabel(f"Seconds; filled: within {1000 * tolerance:.0f} ms of the start of the word, else a cross")
    return figure
