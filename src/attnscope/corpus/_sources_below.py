"""The sources behind a path or a URL: a file, or the text files of a folder."""

import stat
from pathlib import Path
from typing import NoReturn

from attnscope.corpus._columns import TABLES
from attnscope.corpus._compressed import inner_suffix
from attnscope.corpus._datasets import names_a_dataset
from attnscope.corpus._names import Names
from attnscope.corpus._opening import STANDARD_INPUT, file_mode, is_standard_input, shown
from attnscope.corpus._sources import Column, DatasetRows, JsonLines, Plain, Source, Stream
from attnscope.corpus.file_names import SUFFIXES, holds_text
from attnscope.corpus.files import files_below
from attnscope.errors import AttnscopeError
from attnscope.remote import Url
from attnscope.remote import files_below as files_below_url


def open_path(path: Path, field: str, names: Names) -> list[Source]:
    """The sources behind a path."""
    if is_standard_input(path):
        return [Stream("standard input", STANDARD_INPUT)]
    if names_a_dataset(path):
        return [DatasetRows(path, field)]
    mode = file_mode(path)
    if stat.S_ISDIR(mode):
        return [
            _opened_file(file, names.new(file.relative_to(path).as_posix()), field)
            for file in _text_files(path)
        ]
    name = names.new(path.name)
    if not stat.S_ISREG(mode):
        return [Stream(name, path)]
    return [_opened_file(path, name, field)]


def open_url(url: Url, field: str | None, names: Names) -> list[Source]:
    """The sources behind a URL."""
    files = files_below_url(url)
    start = len(url.inner.strip("/")) + 1
    named = (
        [(url, url.name)]
        if files is None
        else [(file, file.inner.strip("/")[start:]) for file in files if holds_text(file)]
    )
    sources = [_opened_file(file, names.new(name), field or "text") for file, name in named]
    for source in sources:
        if isinstance(source, JsonLines):
            source.text_alone = field is None
    return sources or _refuse_empty(url)


def _opened_file(path: Path | Url, name: str, field: str) -> Source:
    if path.suffix.lower() in TABLES:
        return Column(name, path, field)
    return JsonLines(name, path, field) if inner_suffix(path) == ".jsonl" else Plain(name, path)


def _text_files(folder: Path) -> list[Path]:
    """All text files of a folder and its subfolders, sorted by their path."""
    wanted = (file for file in files_below(folder) if holds_text(file))
    files = [file for file in wanted if stat.S_ISREG(file_mode(file))]
    return files or _refuse_empty(folder)


def _refuse_empty(folder: Path | Url) -> NoReturn:
    raise AttnscopeError(
        f"{shown(folder)}: no {', '.join(SUFFIXES)} file in this folder; expected at least one: "
        "name another folder, or the files themselves"
    )
