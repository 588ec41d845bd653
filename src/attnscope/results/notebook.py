"""Results in a notebook: ``result.attnscope`` shows a summary, ``result.attnscope.show()`` the page."""

import html
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from attnscope.catalogue import verbs
from attnscope.report.language import translate
from attnscope.report.reads import signed
from attnscope.report.schema import Report, hyphen_minus
from attnscope.results.reports import grid_of, report_of, write_page
from attnscope.support.errors import AttnscopeError

_SMALL = "font-size: 85%; opacity: 0.7; margin: 0.2em 0"
_STYLE = "font-family: system-ui, sans-serif; line-height: 1.45; max-width: 60em"


class Page:
    """A page in a frame of a notebook. It needs no network and no other file.

    With anywidget (``pip install 'attnscope[notebook]'``) it also has ``layer``, ``head`` and ``token``: those that the
    reader chose last, which can be set as well.

    Attributes
    ----------
    text
        The whole page, HTML.
    height
        Height of the frame, pixels.
    """

    def __init__(self, text: str, height: int) -> None:
        self.text, self.height = text, height

    def _repr_html_(self) -> str:
        # scripts may run, but the page cannot access the notebook
        return (
            f'<iframe srcdoc="{html.escape(_framed(self.text))}" sandbox="allow-scripts allow-downloads" '
            'title="attnscope" '
            f'style="width: 100%; height: {self.height}px; border: 1px solid #ccc"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<page of {len(self.text):,} characters: shown in a notebook>"


def in_widgets() -> bool:
    """Whether this is a notebook that can show widgets."""
    return "ipykernel" in sys.modules and find_spec("anywidget") is not None


@cache
def _widget_class() -> Any:
    """The page as a widget, whose head and token come back to Python as traits."""
    import anywidget
    import traitlets

    class PageWidget(Page, anywidget.AnyWidget):
        _esm = Path(__file__).parent / "page" / "frame.js"
        layer = traitlets.Int(None, allow_none=True).tag(sync=True)
        head = traitlets.Int(None, allow_none=True).tag(sync=True)
        token = traitlets.Int(None, allow_none=True).tag(sync=True)
        _text = traitlets.Unicode().tag(sync=True)
        _height = traitlets.Int().tag(sync=True)

        def __init__(self, text: str, height: int) -> None:
            anywidget.AnyWidget.__init__(self, _text=_framed(text), _height=height)
            Page.__init__(self, text, height)

        def _repr_mimebundle_(self, **options: Any) -> Any:
            bundle = anywidget.AnyWidget._repr_mimebundle_(self, **options)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
            if bundle is None:
                return None
            data, metadata = bundle
            return {**data, "text/html": self._repr_html_()}, metadata

    return PageWidget


def _framed(text: str) -> str:
    """A page whose links stay in its frame: in a frame, those within the page would lead to the notebook's address."""
    return text.replace("<head>", '<head><base href="about:srcdoc">', 1)


class Shown:
    """A summary of a result: its findings and the grid of its heads. Registered as the xarray accessor ``attnscope``.

    Examples
    --------
    >>> import attnscope
    >>> result = attnscope.scan(texts=["The tide comes in twice a day, and twice a day it goes out again."])
    >>> "heads" in result.attnscope._repr_html_()
    True
    >>> result.attnscope.show()
    <page of ... characters: shown in a notebook>
    """

    page_call = ".attnscope.show()"  # how a caller gets the page

    def __init__(self, result: xr.Dataset | xr.DataTree) -> None:
        self._result = result

    @property
    def command(self) -> str:
        """The command that made the result, such as scan or explain.

        Raises
        ------
        AttnscopeError
            If the result is not from one of these commands.
        """
        command = signed(self._result).get("command") or _unsigned(self._result)
        commands = [name for name, verb in verbs().items() if verb.report and verb.result]
        if command not in commands:
            raise AttnscopeError(
                f"found a result {'without signature' if command is None else f'of {command}'}; expected one of "
                f"{', '.join(commands)}, complete: a part of a result has no page"
            )
        return command

    def report(self) -> Report:
        """All that the result has to show."""
        return report_of(self.command, self._result)

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """A table of the result with all its rows, as the command prints them.

        Parameters
        ----------
        table
            Its name, as in ``--json``; by default the first table of the terminal.

        Returns
        -------
        pandas.DataFrame
            A row for each head (or pair, edge, role, ...), with the names of ``--json`` and numbers that are not
            rounded; rows of one head are indexed by ``layer`` and ``head``.

        Raises
        ------
        AttnscopeError
            If the result has no such table.

        Examples
        --------
        >>> import attnscope
        >>> result = attnscope.scan(texts=["The tide comes in twice a day, and twice a day it goes out again."])
        >>> result.attnscope.to_frame().label.tolist()
        ['previous', 'next', 'offset -2', 'offset +2', 'first token']
        """
        tables = report_of(self.command, self._result, data=True).tables
        named = {one.name: one for one in tables if one.rows}
        chosen = next((one.name for one in tables if one.rows and one.terminal), None) if table is None else table
        if chosen not in named:
            raise AttnscopeError(f"there is no table {chosen!r}; expected one of {', '.join(named)}")
        rows = [{name: row.get(name) for name in named[chosen].columns} for row in named[chosen].rows]
        frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
        return frame.set_index(["layer", "head"]) if {"layer", "head"} <= {*frame} else frame

    def show(self, height: int = 800) -> Page:
        """The page of the result, in a frame.

        The page of a scan contains the attention over the first windows, unless ``show=False`` (``--no-report``).

        Parameters
        ----------
        height
            Height of the frame, pixels.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = write_page(self.report(), Path(folder) / "report.html")
            kind: type[Page] = _widget_class() if in_widgets() else Page
            return kind(path.read_text(encoding="utf-8"), height)

    def __repr__(self) -> str:
        try:
            lines, notes = _summary(self.report())
        except AttnscopeError as error:
            return translate(str(error))
        return "\n".join([*lines, *(f"  {note}" for note in notes)])

    def _repr_html_(self) -> str:
        from attnscope.results.page.parts import picture

        try:
            report = self.report()
        except AttnscopeError as error:
            return f"<p>{html.escape(translate(str(error)))}</p>"
        lines, notes = _summary(report)
        listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in lines)
        small = "".join(f'<p style="{_SMALL}">{html.escape(note)}</p>' for note in notes)
        drawn, figure = "", None
        with suppress(AttnscopeError):  # the sentences are still valid
            figure = grid_of(report)
        if figure is not None:
            image = picture(figure)
            style = f"max-width: 100%; width: {image.width}px; background: white"
            drawn = f'<img src="{image.source}" alt="{translate("All heads")}" style="{style}">'
        name = html.escape(report.model)
        return (
            f'<div style="{_STYLE}"><p><b>attnscope {report.command}</b> {name}</p><ul>{listed}</ul>{small}{drawn}'
            f"<p>{translate('The whole page')}: <code>{self.page_call}</code></p></div>"
        )


def _unsigned(result: xr.Dataset | xr.DataTree) -> str | None:
    """The command for a result without signature, from `attnscope.watch` or `measure_weights`."""
    if {"sequence", "step", "layer", "head", "span"} <= set(result.sizes) and "span_weight" in result.variables:
        return "generate"
    whole = {"window", "layer", "head"} <= set(result.sizes) and "profile" in result.variables
    return "scan" if whole else None


def _summary(report: Report) -> tuple[list[str], list[str]]:
    """Input and findings in sentences; notes and caveats."""
    notes = [*report.notes, *[*report.care][:1]]
    lines = map(translate, (report.read, *report.finding.sentences))
    return [*map(hyphen_minus, lines)], [hyphen_minus(translate(note)) for note in notes]


xr.register_dataset_accessor("attnscope")(Shown)
xr.register_datatree_accessor("attnscope")(Shown)
