"""One style for all figures, independent of the user's matplotlib settings.

A figure is laid out for its letters, and the same result is to give the same file on every machine: so the settings of
matplotlib (``matplotlibrc``, ``plt.style.use``) are left aside, and `restyled` sets others.
"""

import io
import logging
import re
import unicodedata
import warnings
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import cycle, filterfalse
from pathlib import Path
from textwrap import fill
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import regex
from fontTools.ttLib import TTFont
from matplotlib import font_manager, rc_context, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as AnyFigure
from matplotlib.text import Text

from attnscope.report.language import language, translate, wrapped
from attnscope.report.schema import with_marked_spaces
from attnscope.store.files import explained, write_output
from attnscope.support.checks import FORMATS, check_formats

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
SIGNS = (RIGHT, LEFT, "#882255", "#E69F00", "#009E73", "#332288", "#56B4E9", "#DDCC77")  # more, less, others
_OTHERS = ("#882255", "#DDCC77", "#332288", "#CC79A7", LEFT, "#56B4E9", RIGHT, "#E69F00", "#009E73", "#C8C8C8")
_SYSTEMS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195")
_NUMBER = re.compile(r"[\s_#(-]*\d+\)?")
_REMARK = re.compile(r"\s*\(.*\)$")


def cluster_colours(names: Sequence[str], hues: Sequence[str] = _OTHERS) -> list[str]:
    """Give each kind or cluster a colour of its own: the one of its name, if none before has it."""
    first_of: dict[str, int] = {}
    for index, name in enumerate(names):
        base = _REMARK.sub("", str(name)) or str(name)  # the part that determines its hue
        base = base[: len("offset -")] if base.startswith("offset ") else _NUMBER.sub("", base) or base
        if base in _BY_NAME:
            first_of.setdefault(base, index)
    taken = {index: _BY_NAME[base] for base, index in first_of.items()}
    others = cycle([colour for colour in hues if colour not in taken.values()] or hues)
    return [taken.get(index) or next(others) for index in range(len(names))]


def system_colours(count: int) -> list[str]:
    """Colours for systems in their order, one for each; they come again after seven."""
    return [_SYSTEMS[i % len(_SYSTEMS)] for i in range(count)]


_log = logging.getLogger("attnscope")
BASE_FONT = "DejaVu Sans"  # comes with matplotlib
JAPANESE_FONT = "IPAexGothic"  # of matplotlib-fontja, which is not imported: that sets rcParams
LACKING: set[str] = set()  # scripts without an installed font: their letters are boxes

_CJK_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "Hiragino Sans",
    "Hiragino Kaku Gothic ProN",
    "Yu Gothic",
    "Meiryo",
    "MS Gothic",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Malgun Gothic",
    "Arial Unicode MS",
)


def font_families() -> list[str]:
    """Fonts to draw with, in order: the base font, the Japanese one, and the first installed one that covers CJK."""
    installed = set(font_manager.fontManager.get_font_names())
    package = find_spec("matplotlib_fontja")
    if JAPANESE_FONT not in installed and package is not None and package.origin:
        font_manager.fontManager.addfont(Path(package.origin).parent / "fonts" / "ipaexg.ttf")
        entry = font_manager.fontManager.ttflist[-1]  # it has one weight, which stands for bold too
        font_manager.fontManager.ttflist.append(replace(entry, weight=700))
    return [BASE_FONT, JAPANESE_FONT, *[name for name in _CJK_FONTS if name in installed][:1]]


_TOKENS: set[str] = set()  # that figures show: they are not translated


def drawable(token: str, *, longest: int = 14) -> str:
    r"""Return the token as it can be drawn: at most `longest` columns, spaces at its ends marked, none invisible."""
    marked = with_marked_spaces(token) or "(empty)"
    _TOKENS.add(marked)
    parts: list[str] = []
    columns = 0
    for character in marked:
        part = f"U+{ord(character):04X}" if _is_invisible(character) else character
        columns += len(part) * (2 if unicodedata.east_asian_width(character) in "WF" and len(part) == 1 else 1)
        if columns > longest and parts:
            return "".join(parts) + "…"
        parts.append(part)
    return "".join(parts)


def with_minus(text: str) -> str:
    """A text with the true minus in negative numbers, for pages and figures."""
    return re.sub(r"(?<![\w.\-])-(?=\.?\d)", "−", text)


def in_lines(text: str, letters: int) -> str:
    """A text in lines of up to `letters` Latin letters, in the language: a line alone would have no translation."""
    return fill(text, letters) if language() == "en" else "\n".join(wrapped(translate(text), letters))


def fit_fonts(texts: Iterable[Text]) -> None:
    """Translate each text of a figure and give it the fonts that it needs; say once which scripts no font has."""
    lacking: dict[str, str] = {}
    for text in texts:
        if language() != "en" and text.get_text() not in _TOKENS:
            text.set_text(translate(text.get_text()))
        families = list(text.get_fontfamily())
        for character in filterfalse(str.isascii, text.get_text()):
            if _is_invisible(character) or any(_has(family, character) for family in families):
                continue
            other = _family_with(character)
            if other is None:
                lacking[_script_of(character)] = character
            else:
                families.insert(len(families) - (families[-1] == "sans-serif"), other)
        text.set_fontfamily(families)
    new = {script: letter for script, letter in lacking.items() if script not in LACKING}
    if new:
        LACKING.update(new)
        _log.warning(
            "figures: no installed font covers %s, so PNG and PDF show boxes: install one (Debian: fonts-noto) "
            "and repeat the command",
            ", ".join(f"{script} ({letter})" for script, letter in new.items()),
        )


COLUMN, PAGE = 3.25, 6.75  # inches: one column of a paper, and two
_SQUEEZED = 0.5  # inches that a figure can do without


def printed(width: float) -> float:
    """The width at which a figure of about this width is printed: one column, or two."""
    return COLUMN if width <= COLUMN + _SQUEEZED else PAGE


class Figure(AnyFigure):
    """A figure of matplotlib at a width of print, whose texts have the fonts that their letters need."""

    def __init__(self, figsize: tuple[float, float], layout: Any = None) -> None:
        width, height = figsize
        if layout == "compressed":  # maps, whose cells become smaller on both sides
            height *= min(1.0, printed(width) / width)
        super().__init__(figsize=(printed(width), height), layout=layout)

    def draw(self, renderer: Any) -> None:
        fit_fonts(self.findobj(Text))
        super().draw(renderer)


def needs_cff(text: Text) -> bool:
    """Whether drawing the text takes a font with CFF outlines, which a PDF cannot embed as Type 42."""
    drawn_in = (
        next((family for family in text.get_fontfamily() if _has(family, character)), BASE_FONT)
        for character in text.get_text()
        if not character.isascii()
    )
    return any(_is_cff(family) for family in set(drawn_in))


@lru_cache(maxsize=4096)
def _is_invisible(character: str) -> bool:
    category = unicodedata.category(character)
    of_space = category == "Zs" and character != " "
    return of_space or category in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _has(family: str, character: str) -> bool:
    path = font_manager.findfont(font_manager.FontProperties(family=[family]))  # as a name, - and : mean something
    return font_manager.get_font(path).get_char_index(ord(character)) > 0


@cache
def _family_with(character: str) -> str | None:
    """A font that has a letter: of those that figures name first, else of all that are installed by now."""
    for family in font_families():
        if _has(family, character):
            return family
    for entries in (lambda: font_manager.fontManager.ttflist, _installed_since):
        for entry in entries():
            plain = (entry.style, entry.weight) == ("normal", 400) and not entry.name.startswith("Last Resort")
            if plain and font_manager.get_font(entry.fname).get_char_index(ord(character)):
                return entry.name
    return None


@cache
def _installed_since() -> list[font_manager.FontEntry]:
    """Fonts that are newer than matplotlib's list, which it makes once and keeps."""
    listed = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - listed:
        with suppress(Exception):  # not every file is a font that can be scaled
            font_manager.fontManager.addfont(path)
    return [entry for entry in font_manager.fontManager.ttflist if entry.fname not in listed]


def _script_of(character: str) -> str:
    if unicodedata.category(character)[0] not in "LM":
        return "symbols"
    script = unicodedata.name(character, "this script").split()[0]
    return script if script == "CJK" else script.capitalize()


@lru_cache(maxsize=32)
def _is_cff(family: str) -> bool:
    path = font_manager.findfont(family)
    with TTFont(str(path), fontNumber=getattr(path, "face_index", 0), lazy=True) as font:
        return "glyf" not in font


_HANDLE, _LETTER = 0.5, 0.065  # inches that a legend's mark and each letter take

_LOOK = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,  # ticks say their numbers, not what is to be added to them
    "figure.dpi": 100,
    "figure.labelsize": 8,
    "figure.titlesize": 8,
    "grid.color": "0.92",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "hatch.linewidth": 0.4,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "font.family": [BASE_FONT, "sans-serif"],  # other fonts only where a letter needs one: looking them up takes time
    "font.sans-serif": [BASE_FONT],  # named last in an SVG, for readers who lack the fonts before it
    "svg.hashsalt": "attnscope",
}


_USERS: ContextVar[dict[str, Any] | None] = ContextVar("users", default=None)


@contextmanager
def restyled(settings: dict[str, Any]) -> Generator[None]:
    """A context in which figures are drawn and saved with some settings of matplotlib instead of ours.

    Parameters
    ----------
    settings
        As in ``matplotlib.rcParams``: ``{"font.family": "serif", "font.size": 9}``.

    Examples
    --------
    >>> import matplotlib
    >>> from attnscope.results.figures.style import figure_style, restyled
    >>> with restyled({"axes.titlesize": 12}), figure_style():
    ...     matplotlib.rcParams["axes.titlesize"]
    12.0
    """
    token = _USERS.set({**(_USERS.get() or {}), **settings})
    try:
        yield
    finally:
        _USERS.reset(token)


@contextmanager
def figure_style() -> Generator[None]:
    """A context, or a decorator, in which every figure is drawn and saved alike."""
    with style.context(["default", {**_LOOK, **(_USERS.get() or {})}]):
        yield


def name_heads(axes: Axes, layers: list[str], heads: list[int]) -> None:
    """Label a grid of layers (rows, the first on top) by heads (columns); thin the labels where tight."""
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), layers)
    axes.set(xlabel="Head", ylabel="Layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def name_columns(axes: Axes, at: Sequence[int], names: Sequence[str]) -> None:
    """Name columns by tokens, turned by 90 degrees; the letters of Chinese, Japanese and Korean below each other."""
    upright = [any(unicodedata.east_asian_width(letter) in "WF" for letter in name) for name in names]
    labels = ["\n".join(regex.findall(r"\X", name)) if up else name for name, up in zip(names, upright, strict=True)]
    axes.set_xticks(at, labels, rotation=90, parse_math=False)
    for tick, up in zip(axes.xaxis.get_major_ticks(), upright, strict=True):
        if up:
            tick.label1.set(rotation=0, linespacing=1.0)
            tick.label2.set(rotation=0, linespacing=1.0)


def one_scale(panels: Iterable[Axes]) -> None:
    """Give panels one y axis, so that their heights compare; only those at the left edge say its numbers."""
    panels = list(panels)
    ends = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        position = axes.get_subplotspec()
        axes.tick_params(labelleft=position is None or position.is_first_col())


def drawn_range(offsets: np.ndarray, values: np.ndarray) -> tuple[int, int]:
    """First and last offset to draw: the right side is left out if it is always empty, as in causal heads."""
    right = bool(np.nan_to_num(values[..., offsets > 0]).any())
    return int(offsets[0]), int(offsets[-1]) if right else max(0, int(offsets[0]) + 1)


def legend_columns(figure: AnyFigure, names: Iterable[str], most: int = 4) -> int:
    """Number of a legend's columns that fit the width of the figure."""
    return min(most, max(1, int(figure.get_figwidth() / (_HANDLE + _LETTER * max(map(len, names))))))


_NO_DATE = {
    "svg": {"Date": None, "Creator": "attnscope"},
    "pdf": {"CreationDate": None, "Creator": "attnscope", "Producer": None},
    "png": {"Software": None},
}


_as_svg: WeakKeyDictionary[AnyFigure, bytes] = WeakKeyDictionary()  # for the file and for the page


def svg_of(figure: AnyFigure) -> bytes:
    """The figure as SVG, drawn again only where something in it has changed since."""
    drawn = _as_svg.get(figure)
    if drawn is None or figure.stale:
        with figure_style():
            _as_svg[figure] = drawn = _drawn(figure, "svg")
        figure.stale = False  # saving itself changes it for a moment
    return drawn


def save_figure(figure: AnyFigure, stem: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as ``.svg``, ``.pdf`` and ``.png`` (200 dots per inch)."""
    stem = Path(stem)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in check_formats(formats)]
    with explained(f"write the figure to {stem}", "Choose another folder, or free some disk space"), figure_style():
        stem.parent.mkdir(parents=True, exist_ok=True)
        for path in paths:
            _write(figure, path)
    return paths


def save_as(figure: AnyFigure, path: Path | str) -> None:
    """Write a figure to a file, in the format that its ending names; SVG without an ending."""
    ending = Path(path).suffix.removeprefix(".") or "svg"
    save_figure(figure, Path(path).with_suffix(""), (ending,))


def _write(figure: AnyFigure, path: Path) -> None:
    kind = path.suffix[1:]
    if kind == "pdf":
        fit_fonts(figure.findobj(Text))
    cff = kind == "pdf" and any(map(needs_cff, figure.findobj(Text)))
    with rc_context({"pdf.fonttype": 3 if cff else 42}):
        # a disk that is full within a PDF leaves no half of one
        write_output(path, svg_of(figure) if kind == "svg" else _drawn(figure, kind))


def _drawn(figure: AnyFigure, kind: str) -> bytes:
    fit_fonts(figure.findobj(Text))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)  # `fit_fonts` says so
        layout = figure.get_layout_engine()
        if layout is not None:  # laid out once, for all formats
            layout.execute(figure)
            with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
                figure.set_layout_engine(None)  # with an engine of any kind, savefig draws everything twice
        figure.savefig(file, format=kind, dpi=200, metadata=_NO_DATE[kind])
    return file.getvalue()
