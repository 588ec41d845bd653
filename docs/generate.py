"""Pages of the reference that are made from the package: commands, functions, statistics, roles.

`conf.py` calls `write` before a build. The pages are not kept in the repository.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import click
import typer
from sphinx.ext.napoleon import Config, NumpyDocstring

import attnscope_cards
from attnscope.catalogue import address_of, verbs
from attnscope.cli import app
from attnscope.detection.role import ROLES
from attnscope.explanation.study import Analysis
from attnscope.measure.quantities import DEFAULT, EQUAL, OF_GROUPS, OF_OFFSETS, PATCH_STATISTICS, STATISTICS, SUMMARIES
from attnscope.report.schema import NO_NUMBERS, Table
from attnscope.results.reports import report_of
from attnscope_zoo.catalogue import build

#: Others that users import, by their group.
ELSEWHERE = {
    "Look": (
        *("attnscope.Session", "attnscope_monitor.HeadMonitor"),
        *("attnscope_vllm.rows.read_rows", "attnscope_vllm.rows.heads_of_rows", "attnscope_vllm.paged.measure_paged"),
    ),
    "Test": ("attnscope.metric",),
    "Runs": (
        *(f"attnscope.results.{name}.{name}" for name in ("describe", "export", "merge", "methods", "several")),
        "attnscope_cards.kvpress",
        "attnscope_circuits.export.graph",
    ),
}


OF_STATISTICS = """\
Every statistic has the dimensions `window, layer, head` and those in its row. The last column marks statistics whose
value under uniform attention is measured too, as `equal_entropy` for `entropy`; it has no `head`. Choose with
`--statistics NAME,...`; `default` stands for the usual ones, and `--statistics list` prints them.
[Offsets](../concepts/offsets.md) explains offsets, bins and uniform attention."""
OF_ROLES = """\
`attnscope roles` scores these roles; [Roles of heads](../questions/roles.md) explains how to read them. A role without
a threshold has none in its source."""

OF_ESTIMATES = (
    ("`entropy_error`, ...", "standard error of the estimate"),
    ("`entropy_freedom`, ...", "degrees of freedom of that error"),
    ("`entropy_skewness`, ...", "skewness of the estimate"),
    ("`entropy_effective_rows`, ...", "effective number of measured queries"),
)


def write(folder: Path) -> None:
    """Write every generated page below the folder of the reference."""
    pages = {"statistics.md": statistics(), "role-definitions.md": roles(), **commands(), **functions()}
    pages["card.schema.json"] = json.dumps(card_schema(), indent=1)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not built again
            path.write_text(text, encoding="utf-8")


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row) + " |" for row in lines)


def card_schema() -> dict[str, Any]:
    """JSON Schema of `attnscope card --json`, from the quantities of its tables; caches and ablations are patterns."""
    model = build("previous-decoder-1")
    reading: dict[str, Any] = {"texts": model.ids[:2].tolist(), "tokenizer": model.tokenizer, "controls": "none"}
    report = report_of("card", attnscope_cards.card(model.model, **reading, kept=[(2, 0)]))
    tables = {table.name: _rows_schema(table) for table in report.tables}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Card of the heads of a model",
        "type": "object",
        "required": ["signature", "finding", "notes", "tables"],
        "properties": {
            "signature": {"type": "object", "required": ["command", "model", "corpus", "settings", "versions"]},
            "finding": {"type": "object", "required": ["text", "certainty", "heads"]},
            "notes": {"type": "array", "items": {"type": "string"}},
            "tables": {"type": "object", "required": [*tables], "properties": tables},
        },
    }


def _rows_schema(table: Table) -> dict[str, Any]:
    """An array of rows, with the meaning of each column; other columns are of caches, controls or ablations."""
    columns: dict[str, Any] = {}
    for one in table.quantities:
        kind = ["string", "null"] if one.unit in NO_NUMBERS - {"head"} else ["number", "null"]
        columns |= {name: {"type": kind} for name in one.columns}
        columns[one.name] |= {"description": one.meaning} if one.meaning else {}
    columns = {name: kind for name, kind in columns.items() if not name.startswith("kept_")}
    more = {"^kept_\\d+_\\d+": {"type": ["number", "null"]}}
    return {"type": "array", "items": {"type": "object", "properties": columns, "patternProperties": more}}


# Commands


class _Sections(click.HelpFormatter):
    """The options of a help as rows, by the heading that they stand under."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[tuple[str, str]]]] = []

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.found.append((name, []))
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002
        self.found[-1][1].extend(rows)


def _help(command: Any) -> str:
    """The sentences of a command's help, and its examples as a block of code."""
    words, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    lines = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in examples.splitlines() if line.strip()]
    shown = "\n".join(f"# {rest[0]}\n{line}" if rest else line for line, *rest in lines)
    return words.strip() + (f"\n\n```bash\n{shown}\n```" if shown else "")


def _command(name: str, command: Any, level: str = "#") -> str:
    context = click.Context(command, info_name=name)
    parts = [f"{level} {name}", _help(command)]
    if isinstance(command, click.Group):
        parts += [_command(f"{name} {one}", command.commands[one], "##") for one in command.commands]
        return "\n\n".join(parts)
    sections = _Sections()
    command.format_options(context, sections)
    for panel, rows in sections.found:
        if level == "#":
            parts.append(f"## {panel}")
        cells = [(f"`{flag.strip()}`", *_default(words)) for flag, words in rows]
        parts.append(table(("option", "meaning", "default"), cells))
    return "\n\n".join(parts)


def _default(words: str) -> tuple[str, str]:
    found = re.match(r"(.*?)\s*\[default: (.*?)\]$", words)
    meaning, default = found.groups() if found else (words, "")
    return re.sub(r"(--[a-z][\w-]*)", r"`\1`", meaning.replace("<", r"\<")), default.replace("<", r"\<")


def commands() -> dict[str, str]:
    """A page for each command, and their index by group."""
    group: Any = typer.main.get_command(app)
    panels: dict[str, list[str]] = {}
    for name, command in group.commands.items():
        panels.setdefault(command.rich_help_panel or "Runs", []).append(name)
    parts = ["# Commands", "Every option of every command, as `attnscope COMMAND --help` prints it."]
    for panel, names in panels.items():
        rows = [
            (
                f"[`attnscope {name}`](commands/{name}.md)",
                _help(group.commands[name]).split("\n\n")[0].replace("\n", " "),
            )
            for name in names
        ]
        parts += [f"## {panel}", table(("command", "what it does"), rows)]
    parts.append("```{toctree}\n:hidden:\n\n" + "\n".join(f"commands/{name}" for name in group.commands) + "\n```")
    pages = {f"commands/{name}.md": _command(f"attnscope {name}", one) + "\n" for name, one in group.commands.items()}
    return {"commands.md": "\n\n".join(parts) + "\n", **pages}


# Functions


def functions() -> dict[str, str]:
    """A page for each public function, and their index."""
    parts = ["# Python", "Each command is a function of the same name. Functions take the model first, then the texts."]
    analyses = ("attnscope.explanation.analyses", "attnscope_yamamoto2023.positions")
    arrays = ("attnscope.explanation.arrays", "attnscope_yamamoto2023.arrays")
    pages = {
        "python/analyses.md": _in_packages("Analyses of a model", *analyses),
        "python/arrays.md": _in_packages("Analyses of arrays", *arrays),
    }
    for group in dict.fromkeys(verb.group for verb in verbs().values()):
        full = [address_of(name) for name, verb in verbs().items() if verb.group == group]
        full += ELSEWHERE.get(group, ())
        rows: list[tuple[str, str]] = []
        for name in full:
            short = name.rpartition(".")[2]
            first = (inspect.getdoc(_resolve(name)) or "").split("\n\n")[0].replace("\n", " ")
            rows.append(
                (f"[`{name}`](python/{short}.md)", re.sub(r"`+", "`", re.sub(r":math:`([^`]*)`", r"$\1$", first)))
            )
            pages[f"python/{short}.md"] = _page(name)
        parts += [f"## {group}", table(("function", "what it does"), rows)]
    parts += [
        "## Errors",
        "```{eval-rst}\n.. autoexception:: attnscope.AttnscopeError\n```",
        "Import other functions from their modules: [Analyses](python/analyses.md), [Arrays](python/arrays.md).",
        "[Analyses in Python](analyses.md) and [Planted models](planted-models.md) have examples.",
        "```{toctree}\n:hidden:\n\n" + "\n".join(name.removesuffix(".md") for name in pages) + "\n```",
    ]
    return {"python.md": "\n\n".join(parts) + "\n", **pages}


def _page(name: str) -> str:
    """A function or class, and the classes of ours that it and their methods return, errors apart."""
    pages = {name: _resolve(name)}
    for one in (queue := [*pages.values()]):
        public = [member for key, member in vars(one).items() if key[0] != "_"] if inspect.isclass(one) else [one]
        for function in filter(inspect.isfunction, public):
            words = re.findall(r"\w+", str(inspect.signature(function).return_annotation))
            for found in map(_names_of(inspect.unwrap(function)).get, words):
                if not inspect.isclass(found) or issubclass(found, Exception) or found in queue:
                    continue
                if found.__module__.startswith("attnscope"):
                    queue.append(found)
                    pages[f"{found.__module__}.{found.__name__}"] = found
    shown = [
        f"{'##' if full != name else '#'} {full if full == name else one.__name__}\n\n```{{eval-rst}}\n"
        + (f".. autoclass:: {full}\n   :members:" if inspect.isclass(one) else f".. autofunction:: {full}")
        + "\n```\n"
        for full, one in pages.items()
    ]
    return "\n".join(shown)


def _names_of(function: Any) -> dict[str, Any]:
    """Names in the module of a function, those for type checkers too."""
    source = inspect.getsource(inspect.getmodule(function))
    imported = re.findall(r"^    from (attnscope[\w.]*) import (\w+)$", source, re.MULTILINE)
    return {name: getattr(import_module(module), name) for module, name in imported} | function.__globals__


def _in_packages(title: str, *packages: str) -> str:
    """The analyses in the modules of packages, or their functions of arrays."""
    parts = [f"# {title}"]
    paths = ((package, import_module(package).__path__) for package in packages)
    for module in chain.from_iterable(pkgutil.iter_modules(path, f"{package}.") for package, path in paths):
        for name, one in vars(import_module(module.name)).items():
            full, doc = f"{module.name}.{name}", inspect.getdoc(one) or ""
            if isinstance(one, Analysis) and name.islower() and one.alone.__module__ == module.name:
                _, *settings = inspect.signature(one.alone).parameters
                takes = ", ".join(["model", "texts", *["*"][: len(settings)], *settings])
                lines = str(NumpyDocstring(doc, Config(napoleon_use_rtype=False))).splitlines()
                text = "\n".join([f".. py:function:: {full}({takes})", "", *("   " + x for x in lines)])
            elif getattr(one, "__module__", "") == module.name and "Returns\n-------" in doc:
                text = f".. autofunction:: {full}"
            else:
                continue
            parts.append(f"## {name}\n\n```{{eval-rst}}\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


# Statistics and roles


def statistics() -> str:
    """The catalogue of what `scan` measures."""

    def measured(chosen: Mapping[str, Any]) -> str:
        rows: list[Sequence[str]] = []
        for name, one in chosen.items():
            words = getattr(one, "words", one)
            meaning = f"{words.long_name}. {words.reading}".strip().rstrip(".") + "."
            along = ", ".join(f"`{axis}`" for axis in getattr(one, "along", ()))
            equal = "yes" if getattr(one, "has_equal", False) else ""
            rows.append((f"`{name}`" + (f" over {along}" if along else ""), _cell(meaning), words.units, equal))
        return table(("name", "meaning", "unit", f"`{EQUAL}...`"), rows)

    usual = {name: one for name, one in STATISTICS.items() if name in DEFAULT}
    summaries = [
        (", ".join(f"`{part}`" for part in name.split(", ")), _cell(words.long_name), words.units)
        for name, words in SUMMARIES.items()
    ]
    parts = ["# Statistics", OF_STATISTICS, "## Measured by default", measured(usual), "## On request"]
    parts += [measured({name: one for name, one in STATISTICS.items() if name not in usual})]
    parts += ["## With `--offsets`", measured(OF_OFFSETS), "## With `--groups`", measured(OF_GROUPS)]
    parts += ["Statistics that are one number per head are also measured by group of queries: `entropy_by_group`, ..."]
    parts += ["## With `--rows`", table(("name", "meaning"), OF_ESTIMATES)]
    parts += ["## Images", measured(PATCH_STATISTICS)]
    parts += ["## Over all windows", table(("name", "meaning", "unit"), summaries)]
    return "\n\n".join(parts) + "\n"


def _cell(words: str) -> str:
    return words.replace("<", r"\<")


def roles() -> str:
    """The roles, each as its source defines it."""
    rows = [
        (f"`{role.name}`", _cell(role.definition), "" if role.threshold is None else f"{role.threshold:g}", role.source)
        for role in ROLES.values()
    ]
    return "\n\n".join(["# Role definitions", OF_ROLES, table(("role", "score", "threshold", "source"), rows)]) + "\n"
