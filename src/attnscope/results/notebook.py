"""Results in a notebook: ``result.attnscope`` is a summary, ``result.attnscope.show()`` the page."""

from __future__ import annotations

import html
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnscope.results.reports import REPORTS, grid_of, report_of, write_page
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

_COMMANDS = ("scan", "generate", "explain", "intervene", "patch", "diff", "roles", "compare")
_SMALL = "font-size: 85%; opacity: 0.7; margin: 0.2em 0"
_STYLE = "font-family: system-ui, sans-serif; line-height: 1.45; max-width: 60em"


class Page:
    """A page that a notebook shows in a frame of its own; it needs no network and no other file.

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
        # links within the page would lead to the notebook's address
        text = self.text.replace("<head>", '<head><base href="about:srcdoc">', 1)
        # scripts may run, and nothing else: the page cannot reach the notebook that it is shown in
        return (
            f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts" title="attnscope" '
            f'style="width: 100%; height: {self.height}px; border: 1px solid #ccc"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<page of {len(self.text):,} characters: shown in a notebook>"


class Shown:
    """What a result comes to: sentences, and the grid of its heads. Registered as the accessor ``attnscope`` of xarray.

    Examples
    --------
    >>> import attnscope
    >>> result = attnscope.scan(texts=["The tide comes in twice a day, and twice a day it goes out again."])
    >>> "most positional" in result.attnscope._repr_html_()
    True
    >>> result.attnscope.show()
    <page of ... characters: shown in a notebook>
    """

    def __init__(self, result: xr.Dataset | xr.DataTree) -> None:
        self._result = result

    @property
    def command(self) -> str:
        """The command that gives such results: scan, generate, explain, intervene, patch, diff, roles, compare.

        Raises
        ------
        AttnscopeError
            If the result is of none of them.
        """
        try:
            command = json.loads(self._result.attrs["signature"])["command"]
        except (KeyError, TypeError, ValueError):
            command = _unsigned(self._result)
        if command not in _COMMANDS:
            raise AttnscopeError(
                f"found a result {'without signature' if command is None else f'of {command}'}; expected one of "
                f"{', '.join(_COMMANDS)}, whole: a part of it has no page"
            )
        return command

    def show(self, height: int = 800) -> Page:
        """The page of the result, in a frame.

        Of a scan it holds the attention over the first windows, unless ``show=False`` (``--no-report``) kept none.

        Parameters
        ----------
        height
            Height of the frame, pixels.
        """
        from attnscope.results.page.comparison import write_comparison_report
        from attnscope.results.page.scan import write_report

        write: dict[str, Callable[[Any, Path], Path]] = {
            "scan": lambda result, path: write_report(result, _sample(result), path),
            "compare": write_comparison_report,
        }
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "report.html"
            if self.command in REPORTS:
                write_page(report_of(self.command, self._result), place)
            else:
                write[self.command](self._result, place)
            return Page(place.read_text(encoding="utf-8"), height)

    def __repr__(self) -> str:
        try:
            said, notes = _summary(self.command, self._result)
        except AttnscopeError as error:
            return str(error)
        return "\n".join([*said, *(f"  {note}" for note in notes)])

    def _repr_html_(self) -> str:
        from attnscope.results.page.parts import picture

        try:
            said, notes = _summary(self.command, self._result)
        except AttnscopeError as error:
            return f"<p>{html.escape(str(error))}</p>"
        listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in said)
        small = "".join(f'<p style="{_SMALL}">{html.escape(note)}</p>' for note in notes)
        shown, figure = "", _figure(self.command, self._result)
        if figure is not None:
            image = picture(figure)
            style = f"max-width: 100%; width: {image.width}px; background: white"
            shown = f'<img src="{image.source}" alt="All heads" style="{style}">'
        name = html.escape(str(self._result.attrs.get("model", "")))
        return (
            f'<div style="{_STYLE}"><p><b>attnscope {self.command}</b> {name}</p><ul>{listed}</ul>{small}{shown}'
            f"<p>The whole page: <code>.attnscope.show()</code></p></div>"
        )


def _unsigned(result: xr.Dataset | xr.DataTree) -> str | None:
    """The command that gives what a result without signature holds: of `attnscope.watch`, of `measure_weights`."""
    if {"sequence", "step", "layer", "head", "span"} <= set(
        result.sizes
    ) and "span_weight" in result.variables:
        return "generate"
    whole = {"text", "layer", "head"} <= set(result.sizes) and "profile" in result.variables
    return "scan" if whole else None


def _sample(result: xr.Dataset) -> xr.Dataset | None:
    """The attention over the first windows: in memory, or in the run folder that the result was read from."""
    sample = result.encoding.get("sample")
    if sample is None and "source" in result.encoding:
        try:
            sample = _sample_of_run(result.encoding["source"], result.attrs["signature"])
        except (AttnscopeError, OSError, KeyError):  # the folder is gone, or holds another run by now
            sample = None
    same = sample is not None and all(sample.sizes[dim] == result.sizes[dim] for dim in ("layer", "head"))
    return sample if same else None


def _sample_of_run(source: str, signature: str) -> xr.Dataset | None:
    from attnscope.measure.stored import SAMPLE
    from attnscope.store.runs import RunFolder
    from attnscope.store.signature import Signature

    run = RunFolder(Path(source), json.loads(signature))
    run.look()
    same = "signature" in run.state and Signature.of(run.state["signature"]).to_json() == signature
    return run.load(SAMPLE) if same else None


def _summary(command: str, result: Any) -> tuple[list[str], list[str]]:
    """What was read and came out, in sentences; and what to know of it."""
    from attnscope.results.account import account_of

    account = account_of(command, result)
    rankings = _rankings(result) if command == "scan" else []
    return [account.read, *account.headline, *rankings], [*account.notes, *account.care]


def _rankings(result: xr.Dataset) -> list[str]:
    from attnscope.measure.ranking import rank_heads
    from attnscope.measure.stored import describe_ranking

    lines: list[str] = []
    for name, rows in rank_heads(result).items():
        first = ", ".join(f"{row['layer']}.{row['head']} ({row['value']:.2f})" for row in rows[:5])
        lines.append(describe_ranking(result, name, rows) + (f": {first}" if first else ""))
    return lines


def _figure(command: str, result: Any) -> Figure | None:
    """The grid of all heads; None where the result has none, or nothing to draw in it."""
    try:
        return _grid(command, result)
    except AttnscopeError:  # the sentences are still true, and the page says what is not there
        return None


def _grid(command: str, result: Any) -> Figure | None:
    if command == "scan":
        from attnscope.results.figures.scan import overview

        name = next((name for name in ("max_weight", "outside", "entropy") if name in result), None)
        return None if name is None else overview(result, name)
    if command in REPORTS:
        return grid_of(report_of(command, result))
    return None


xr.register_dataset_accessor("attnscope")(Shown)
xr.register_datatree_accessor("attnscope")(Shown)
