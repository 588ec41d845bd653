"""Writing a figure in the formats that papers and pages ask for."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnscope.checks import FORMATS, check_formats
from attnscope.figures.style import figure_style
from attnscope.figures.text import fit_fonts, needs_cff
from attnscope.store import explained, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_DATE = {
    "svg": {"Date": None, "Creator": "attnscope"},
    "pdf": {"CreationDate": None, "Creator": "attnscope", "Producer": None},
    "png": {"Software": None},
}


_as_svg: WeakKeyDictionary[Figure, bytes] = WeakKeyDictionary()  # for the file and for the page


def svg_of(figure: Figure) -> bytes:
    """The figure as SVG, drawn again only where something in it has changed since.

    Examples
    --------
    >>> figure = Figure()
    >>> first = svg_of(figure)
    >>> svg_of(figure) is first, figure.suptitle("Heads") and svg_of(figure) == first
    (True, False)
    """
    drawn = _as_svg.get(figure)
    if drawn is None or figure.stale:
        with figure_style():
            _as_svg[figure] = drawn = _drawn(figure, "svg")
        figure.stale = False  # saving itself changes it for a moment
    return drawn


def save_figure(figure: Figure, stem: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as ``.svg``, ``.pdf`` and ``.png`` (200 dots per inch).

    The same figure gives the same bytes: the files hold no date and no random identifiers. In the SVG, text is
    text, so that it can be searched, edited and read aloud; it is drawn in DejaVu Sans or what the reader has
    instead. In the PDF, glyphs travel with the file: Type 42, or Type 3 where a text needs a font with CFF
    outlines, which Type 42 cannot hold.

    Parameters
    ----------
    figure
        A matplotlib figure.
    stem
        Path without the ending; its folder is made if needed.
    formats
        Endings, of ``svg``, ``pdf`` and ``png``.

    Returns
    -------
    list of Path
        The files, in the order of the formats.

    Raises
    ------
    AttnscopeError
        If a format is unknown or the files cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from matplotlib.figure import Figure
    >>> from attnscope.figures import save_figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in save_figure(Figure(), Path(folder) / "heads")]
    ['heads.svg', 'heads.pdf', 'heads.png']
    """
    stem = Path(stem)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in check_formats(formats)]
    with explained(f"write the figure to {stem}", "Choose another place, or free some room"), figure_style():
        stem.parent.mkdir(parents=True, exist_ok=True)
        for path in paths:
            _write(figure, path)
    return paths


def _write(figure: Figure, path: Path) -> None:
    kind = path.suffix[1:]
    if kind == "pdf":
        fit_fonts(_texts_of(figure))
    cff = kind == "pdf" and any(map(needs_cff, _texts_of(figure)))
    with rc_context({"pdf.fonttype": 3 if cff else 42}):
        # a disk that is full within a PDF leaves no half of one
        write_output(path, svg_of(figure) if kind == "svg" else _drawn(figure, kind))


def _texts_of(figure: Figure) -> list[Text]:
    return figure.findobj(Text)


def _drawn(figure: Figure, kind: str) -> bytes:
    fit_fonts(_texts_of(figure))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r"Glyph \d+ .*missing from font", UserWarning
        )  # `fit_fonts` says so
        return _rendered(figure, kind)


def _rendered(figure: Figure, kind: str) -> bytes:
    if (layout := figure.get_layout_engine()) is not None:  # laid out once, for all formats
        layout.execute(figure)
        with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)  # with an engine of any kind, savefig draws everything twice
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=200, metadata=_NO_DATE[kind])
    return file.getvalue()
