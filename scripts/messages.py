"""The messages of the code, and the catalogue of their translations.

python scripts/messages.py                         orders the catalogue and takes out entries that no code has
python scripts/messages.py --missing read measure  prints messages of these packages without an entry, ready to fill in
"""

from __future__ import annotations

import argparse
import ast
import html
import re
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po
from jinja2 import Environment, nodes
from typer.main import get_command

from attnscope import __version__
from attnscope.cli import app
from attnscope.report.language import PLACEHOLDER, SENTENCES, messages_of_script, numbered

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "attnscope"
PACKAGES = ROOT / "packages"
_DATE = datetime(2026, 1, 1, tzinfo=UTC)  # one for all, or each change of the catalogue would change its head
CATALOGUE = SOURCE / "report" / "locale" / "ja" / "LC_MESSAGES" / "attnscope.po"
#: Types, attributes, mathematics, commands and positions in figures.
_CODE = re.compile(
    r"\| None|^\w+( \| \w+)+$|\\|[a-z]=\"|\w\[\w+[\],]|^attnscope [a-z]+( |$)|^(outside|within) [a-z ]+$"
)
_BLOCKS = re.compile(r"</?(?!(?:a|abbr|b|bdi|code|em|i|kbd|strong|sub|sup)\b)[a-zA-Z!][^>]*>|<!--.*?-->")


@cache
def messages() -> dict[str, dict[str, None]]:
    """All messages by file, in the order of the code."""
    readers = {".py": of_python, ".j2": of_template, ".js": messages_of_script}
    every = {
        path.relative_to(ROOT).as_posix(): {
            said: None
            for text in readers[path.suffix](path.read_text(encoding="utf-8"))
            for said in (text.strip(), *sentences(text))
            if said
        }
        for root in (SOURCE, PACKAGES)
        for path in sorted(root.rglob("*"))
        if path.suffix in readers and path.name != "code.py"  # cells of notebooks
    }
    every["src/attnscope/cli/help"] = dict.fromkeys(filter(None, (*LIBRARIES, *of_help())))
    return dict(sorted(every.items()))


#: Sentences of typer, with which a usage error or a help is made, and errors of the system.
LIBRARIES = (
    "Usage: ",
    "Options",
    "Commands",
    "Show this message and exit.",
    "no such option: {0}",
    "no such command {0}",
    "missing argument {0}",
    "missing option {0}",
    "option {0} requires an argument",
    "did you mean {0}?",
    "default",
    "Examples",
    "required",
    "no space left on device",
    "permission denied",
    "read-only file system",
    "not a directory",
    "is a directory",
    "file exists",
    "no such file or directory",
    "file name too long",
)


def sentences(message: str) -> list[str]:
    """Each sentence of a message of several, its values numbered from 0."""
    parts = re.split(rf"{SENTENCES.pattern}|(?<=\}})\s+(?=[A-Z][a-z]* )", message.strip())
    return [numbered(PLACEHOLDER.split(part)[::2]) for part in parts] if len(parts) > 1 else []


def of_python(source: str) -> Iterator[str]:
    """Strings and f-strings, without docstrings; of `count` both numbers."""
    waiting, passed_over = deque[ast.AST]([ast.parse(source)]), set[ast.AST]()
    while waiting:
        node = waiting.popleft()
        if node in passed_over:
            continue
        waiting += ast.iter_child_nodes(node)
        match node:
            case ast.Expr(value=ast.Constant()):
                passed_over.add(node.value)
            case ast.Subscript(value=ast.Name(id="Float" | "Int" | "Bool" | "Num" | "Real" | "Shaped" | "Complex")):
                passed_over.add(node.slice)  # dimensions of an array
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=parts)):
                passed_over.add(node.slice)  # the sentences of an option: the first one is in a help
                waiting += [one for one in parts if not isinstance(one, ast.Constant)]
            case ast.JoinedStr(values=values):
                constants = [value for value in values if isinstance(value, ast.Constant)]
                passed_over.update(constants)
                yield numbered("".join(one.value if one in constants else "\0" for one in values).split("\0"))
            case ast.Constant(value=str(text)):
                if re.fullmatch(r"[a-z]+(_[a-z]+)+", text):  # a name, read as words
                    yield text.replace("_", " ")
                yield numbered(re.split(r"%[sd]|\{\w+(?::[^{}]*)?\}", text))
            case ast.Call(func=ast.Name(id="count" | "counted"), args=[_, ast.Constant(value=what)]):
                yield from (f"{{0}} {what}", f"{{0}} {what}s")


def of_help() -> Iterator[str]:
    """The help of every command and option, in the order in which they are printed."""
    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    while waiting:
        _, command = waiting.pop(0)
        waiting += getattr(command, "commands", {}).items()
        words, _, examples = (command.help or "").partition("\b\nExamples:\n")
        yield from (" ".join(part.split()) for part in words.split("\n\n"))
        yield from (re.split(r"\s{2,}", line.strip())[-1] for line in examples.splitlines())
        for one in command.params:
            yield from (one.help or "", default if isinstance(default := one.show_default, str) else "")


def of_template(source: str) -> Iterator[str]:
    """Texts between the elements of a page, with their values numbered."""
    tree = Environment(extensions=["jinja2.ext.do"], autoescape=True).parse(source)
    for output in tree.find_all(nodes.Output):
        parts = [""]
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                parts[-1] += node.data
            else:
                parts.append("")
        yield from _runs("\0".join(parts))
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            yield numbered(re.split(r"%[sd]", constant.value))


def _runs(text: str) -> Iterator[str]:
    for tag in _BLOCKS.findall(text):
        yield from (numbered(words.split("\0")) for words in re.findall(r'\b(?:title|alt|aria-label)="([^"]*)"', tag))
    for run in _BLOCKS.split(text):
        inner = re.sub(r"^(?:\s*<[^>]*>)+|(?:</[^>]*>\s*)+$|</?bdi>", "", " ".join(run.split()))
        yield numbered((inner if "<" in inner else html.unescape(inner)).split("\0"))
        yield from (numbered(html.unescape(part).split("\0")) for part in re.findall(r"[^<>]+(?=<|$)", inner))


def is_prose(message: str) -> bool:
    """Whether people read it, as far as that can be told: at least two words, one of them in small letters."""
    words = re.findall(r"(?<![\w/.{])[A-Za-z][a-z]+(?![\w/(]|\.\w)", PLACEHOLDER.sub("", message))
    text = len(words) > 1 and re.search(r"[a-z]{2,}[ ,;:.{]", message) and "  " not in message
    return bool(text) and not _CODE.search(message)


def missing(known: Iterable[str], *, every: bool = False) -> dict[str, list[str]]:
    """Messages without an entry by file, each once; of one with several sentences, the sentences."""
    seen = {*known}
    lacking: dict[str, list[str]] = {}
    for path, found in messages().items():
        whole = [one for one in found if one in seen]
        in_whole = {sentence for one in whole for sentence in sentences(one)}
        lacking[path] = [
            one
            for one in found
            if not {one, one[:1].lower() + one[1:]} & (seen | in_whole)
            and not sentences(one)
            and one.replace(" ", "_") not in found
            and (every or is_prose(one))
        ]
        seen |= {*found}
    return lacking


def load() -> Catalog:
    """The catalogue as it is."""
    with CATALOGUE.open("rb") as file:
        return read_po(file, locale="ja")


def main() -> None:
    """Order the catalogue, or print what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", nargs="*", metavar="PACKAGE")
    parser.add_argument("--every", action="store_true", help="also what does not look like prose")
    arguments = parser.parse_args()
    present = load()
    known = {one.id if isinstance(one.id, str) else one.id[0]: one.string for one in present if one.id}
    if arguments.missing is not None:
        names = tuple(f"{name}/" for name in arguments.missing)
        for path, found in missing(known, every=arguments.every).items():
            if found and (not names or any(name in path for name in names)):
                print(f"# {path} ({len(found)})\n")
                print("".join(f'msgid {quoted(one)}\nmsgstr ""\n\n' for one in found))
        return
    ordered = Catalog(
        locale="ja",
        project="attnscope",
        version=__version__,
        msgid_bugs_address="https://github.com/attnscope/attnscope/issues",
        creation_date=_DATE,
        revision_date=_DATE,
        last_translator="The attnscope developers",
        language_team="Japanese",
        charset="utf-8",
        fuzzy=False,
        header_comment="# Japanese messages of attnscope.",
    )
    seen: set[str] = set()
    for path, found in messages().items():
        for message in found:
            if message in known and message not in seen:
                seen.add(message)
                ordered.add(message, known[message], locations=[(path, 1)])
    for gone in known.keys() - seen:
        print(f"taken out: {gone}")
    with CATALOGUE.open("wb") as file:
        write_po(file, ordered, width=0, omit_header=False, include_lineno=False)
    print(f"{len(seen)} entries")


def quoted(message: str) -> str:
    """A message as a .po file has it."""
    return '"' + message.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


if __name__ == "__main__":
    main()
