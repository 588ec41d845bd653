"""Writing a lesson: a page that computes, the same as slides, and a notebook."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from attnscope.report.language import language, translate, translate_html
from attnscope.results.page.parts import script_json, together, translated_messages
from attnscope.store.files import explained, write_output
from attnscope_lineage.lessons import HERE, LESSONS, exercises_of, numbers_of

_SECTION = re.compile(r'<section id="([\w-]+)"(?: data-exercise="([\w-]+)")?>(.*?)</section>', re.DOTALL)
_CELL = re.compile(r"^# %% ([\w-]+)\n", re.MULTILINE)
_TITLE = re.compile(r"<h2>(.*?)</h2>", re.DOTALL)
_IN_PAGE_ALONE = re.compile(r"<div data-draw=.*?</div>|<ul data-feedback>.*?</ul>|<hr>", re.DOTALL)


class Section(NamedTuple):
    """A section of a lesson; an exercise has the name of its record, and code is what a notebook runs."""

    id: str
    exercise: str
    title: str
    html: str
    code: str


def sections_of(name: str) -> list[Section]:
    """The sections of a lesson in the language of pages."""
    prose = (HERE / name / f"{language()}.html").read_text(encoding="utf-8")
    cells = code_of(name)
    sections: list[Section] = []
    for found in _SECTION.finditer(prose):
        title = _TITLE.search(found[3])
        plain = re.sub(r"<(?!/?su[bp]>)[^>]*>", "", title[1]) if title else ""
        sections.append(Section(found[1], found[2] or "", plain, found[3].strip(), cells.get(found[1], "")))
    return sections


@cache
def code_of(name: str) -> dict[str, str]:
    """The cells of PyTorch of a lesson, by section."""
    _, *cells = _CELL.split((HERE / name / "code.py").read_text(encoding="utf-8"))
    return {title: code.strip() for title, code in zip(cells[::2], cells[1::2], strict=True)}


def write(name: str, path: Path | str, *, slides: bool = False) -> Path:
    """Write the page of a lesson in the language of pages; with `slides`, it opens with one section a screen."""
    sections = sections_of(name)
    data = {
        "name": name,
        "slides": slides,
        "numbers": numbers_of(name),
        "exercises": {key: exercise._asdict() for key, exercise in exercises_of(name).items()},
    }
    here = str(HERE)
    models = [path.name for path in sorted((HERE / name).glob("*.js")) if path.name != "lesson.js"]
    scripts = ("math.js", "weights.js", "lesson.js", *(f"{name}/{file}" for file in (*models, "lesson.js")))
    js = together("draw.js", *(f"{here}/{file}" for file in scripts))
    pages = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    frame = pages.get_template("lesson.html.j2").render(
        lesson=LESSONS[name],
        sections=sections,
        css=together("page.css", f"{here}/lesson.css"),
        js=js,
        words=script_json(translated_messages(js)),
        data=script_json(data),
        version=version("attnscope"),
    )
    page = translate_html(frame)
    for section in sections:  # written in the language of the page: not translated
        page = page.replace(f"<!--prose {section.id}-->", section.html)
        page = page.replace(f"<!--title {section.id}-->", section.title)
    return _written(Path(path), page)


def notebook(name: str, path: Path | str) -> Path:
    """Write a lesson as a notebook that runs: its prose, and the same in PyTorch."""
    lesson = LESSONS[name]
    page = translate("Drawings, sliders and exercises that check answers are in the page of this lesson:")
    about = f"{translate(lesson.about)}\n\n{page} `attnscope lesson {name}`"
    cells = [_cell("title", "markdown", f"# {translate(lesson.title)}\n\n{about}")]
    for section in sections_of(name):
        cells.append(_cell(section.id, "markdown", as_markdown(section.html)))
        if section.code:
            cells.append(_cell(f"{section.id}-code", "code", section.code))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    written = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return _written(Path(path), json.dumps(written, ensure_ascii=False, indent=1) + "\n")


def as_markdown(prose: str) -> str:
    """The prose of a section as a cell of Markdown, which may have HTML: without what works in the page alone."""
    text = _IN_PAGE_ALONE.sub("", prose)
    text = re.sub(r"<h2>(.*?)</h2>", lambda title: f"## {html.unescape(title[1])}\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _cell(name: str, kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"id": name, "cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _written(path: Path, text: str) -> Path:
    with explained(f"write the lesson to {path}", "Choose another folder, or free some disk space"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text)
    return path
