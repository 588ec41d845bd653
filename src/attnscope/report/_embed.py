"""Putting data into a page so that nothing in it can end a script element, and writing the page whole."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from attnscope.figures.save import svg_of
from attnscope.store import explained, write_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from matplotlib.figure import Figure

_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}
_DIGITS = 5
_FOLDER = Path(__file__).parent
_PIXELS = 96  # for an inch
#: Styles of most pages, and of those that tell of changes.
STYLES = ("page.css", "explain.css")
WITH_EFFECTS = (*STYLES, "intervene.css")
MOST_ROWS = 400  # of a table: a page has bounds


def script_json(value: Any) -> str:
    r"""JSON that is safe inside `<script type="application/json">`, in ASCII.

    Examples
    --------
    >>> from attnscope.report import script_json
    >>> script_json({"token": "</script>猫"})
    '{"token":"\\u003c/script\\u003e\\u732b"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def numbers(values: np.ndarray) -> Any:
    """Nested lists of the values, to five significant digits; None for what is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscope.report import numbers
    >>> numbers(np.array([[1 / 3, np.nan], [2.0, 12345.678]]))
    [[0.33333, None], [2, 12346]]
    """
    if values.ndim > 1:
        return [numbers(row) for row in values]
    return [_short(float(value)) for value in values]


def picture(figure: Figure) -> tuple[str, int]:
    """A figure as the data: address of its SVG, and its width in pixels at its own size.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from attnscope.report import picture
    >>> source, width = picture(Figure(figsize=(2, 1)))
    >>> source[:26], width
    ('data:image/svg+xml;base64,', 192)
    """
    source = "data:image/svg+xml;base64," + base64.b64encode(svg_of(figure)).decode("ascii")
    return source, round(float(figure.get_size_inches()[0]) * _PIXELS)


def pictures(
    figures: Mapping[str, Figure], readings: Mapping[str, tuple[str, str]]
) -> list[dict[str, str | int]]:
    """Figures as a template shows them, in the order of `readings`: by name, the title and how to read it."""
    shown: list[dict[str, str | int]] = []
    for name, (title, reading) in readings.items():
        if name in figures:
            source, width = picture(figures[name])
            shown.append({"name": name, "title": title, "reading": reading, "source": source, "width": width})
    return shown


def write_page(
    path: Path,
    template: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str] = (),
    signature: Any,
    **shown: Any,
) -> Path:
    """Fill a template of this folder, with its styles and scripts put in, and write the page.

    Text is escaped where it is shown. The signature is JSON's value, or text as it is.
    """
    environment = Environment(
        loader=PackageLoader("attnscope.report", "."), autoescape=True, undefined=StrictUndefined
    )

    def together(names: Sequence[str]) -> str:
        return "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names)

    text = environment.get_template(template).render(
        signature=signature
        if isinstance(signature, str)
        else json.dumps(signature, indent=2, ensure_ascii=False),
        css=together(styles),
        js=together(scripts),
        **shown,
    )
    with explained(f"write the report to {path}", "Choose another place, or free some room"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text)
    return path


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
