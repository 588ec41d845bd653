"""What is opened as text, what is refused at once, and what is waited for."""

import contextlib
import csv
import gzip
import io
import os
import sys
import tempfile
import threading
import time
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnscope.read import files as _opening
from attnscope.read.files import shown
from attnscope.read.sources import Text
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.config import read_config
from attnscope_lineage.links import read_gold
from attnscope_lineage.parallel_text import read_lines, read_parallel

NOBODY = 65534
READERS = {
    "corpus": lambda path: list(Corpus.from_sources([path])),
    "lines": read_lines,
    "gold": read_gold,
    "settings": read_config,
    "sides": lambda path: read_parallel(path, path),
}


@pytest.fixture(params=READERS)
def read(request):
    return READERS[request.param]


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(_opening, "PATIENCE", 0.2)


@contextlib.contextmanager
def writing(path, text, *, before=0.0, after=0.0):
    """Somebody who opens a pipe after some time, and writes after some more."""

    def write():
        time.sleep(before)
        with path.open("w") as file:
            time.sleep(after)
            file.write(text)

    writer = threading.Thread(target=write)
    writer.start()
    yield
    writer.join()


@contextlib.contextmanager
def as_nobody():
    """Root may read everything: be another user meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_pipe_to_which_nobody_writes_is_rejected_by_name(pipe, read, impatient):
    with pytest.raises(AttnscopeError, match=r"pipe: nothing wrote to this pipe for 0\.2 seconds"):
        read(pipe)


@pytest.mark.parametrize("times", [{"before": 0.1, "after": 0.6}, {}])
@pytest.mark.parametrize("named", [True, False])
def test_a_slow_writer_is_waited_for_and_its_text_read_once(pipe, impatient, times, named):
    """By its name, and as a shell passes on the output of a process."""
    with writing(pipe, "from a process", **times):
        number = None if named else os.open(pipe, os.O_RDONLY)
        path = pipe if named else Path(f"/dev/fd/{number}")
        corpus = Corpus.from_sources([path])
        assert list(corpus) == list(corpus) == [Text(path.name, "from a process")]
        if number is not None:
            os.close(number)


def test_more_than_a_pipe_holds_is_read_whole(pipe, impatient):
    text = "The tide is out.\n" * 100_000
    with writing(pipe, text):
        assert read_lines(pipe) == text.splitlines()


def test_a_process_that_wrote_nothing_is_not_waited_for():
    reading, ending = os.pipe()
    os.close(ending)
    begun = time.monotonic()
    assert read_lines(Path(f"/dev/fd/{reading}")) == []
    assert time.monotonic() - begun < _opening.PATIENCE / 2
    os.close(reading)


def test_a_device_without_text_is_rejected_at_once(read, monkeypatch):
    for device in ("full", "zero", "random", "null"):
        with pytest.raises(AttnscopeError, match=rf"/dev/{device}: a device without text"):
            read(Path("/dev") / device)
    with Path("/dev/zero").open() as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        with pytest.raises(AttnscopeError, match="standard input: a device"):
            read_lines("-")


def test_a_terminal_is_read():
    ours, theirs = os.openpty()
    os.write(ours, b"typed\n\x04")
    assert read_lines(os.ttyname(theirs)) == ["typed"]
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("path", ["-", "/dev/stdin", "/dev/fd/0"])
def test_standard_input_by_any_name_is_read_once(path, monkeypatch):
    buffer = io.BytesIO(b"\xef\xbb\xbfpiped\r\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer, closed=False))
    corpus = Corpus.from_sources([Path(path)])
    assert buffer.tell() == 0
    assert list(corpus) == list(corpus) == [Text("standard input", "piped\r\n")]
    with pytest.raises(AttnscopeError, match="found standard input more than once"):
        Corpus.from_sources([Path(path), Path("-")])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(AttnscopeError, match="standard input is closed"):
        list(Corpus.from_sources([Path(path)]))


@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-16-le", "utf-16le"), ("utf-16-be", "utf-16be"), ("utf-32-le", "ENCODING")]
)
def test_utf16_without_a_mark_is_rejected_with_its_encoding(tmp_path, read, encoding, named):
    path = tmp_path / "a.txt"
    for text in ("Tide tables\nby month\n", "caf\u00e9 and tea\n"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(
            AttnscopeError,
            match=rf"a\.txt(, line 1)?: found (the character NUL|byte 0x..) at byte offset \d+; expected "
            rf"text in UTF-8\.\n.*iconv -f {named} -t utf-8",
        ):
            read(path)


def test_a_stray_zero_in_a_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone two \x00 three four")
    with pytest.raises(AttnscopeError, match=r"the character NUL at byte offset 11; .*\n.*iconv -f ENCODING"):
        list(Corpus.from_sources([tmp_path]))
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.jsonl").write_text('{"text": "ab\\u0000"}')
    with pytest.raises(AttnscopeError, match=r"a\.jsonl, line 1: found the character NUL at character 2"):
        list(Corpus.from_sources([tmp_path]))
    with pytest.raises(AttnscopeError, match="text 1: found the character NUL at character 1"):
        Corpus.from_sources(["a\0b"])


@pytest.fixture
def library():
    """A folder that any user may enter, with a folder and every kind of file in it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "deep").mkdir()
        for name in ("a.txt", "b.jsonl", "deep/c.txt"):
            (folder / name).write_text('{"text": "words", "source": "a", "target": "b"}')
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        yield folder
        for path in (folder, folder / "deep"):
            path.chmod(0o755)


@pytest.mark.parametrize(
    ("closed", "mode"),
    [(".", 0), ("a.txt", 0), ("b.jsonl", 0), ("deep", 0), ("deep/c.txt", 0), (".", 0o444), ("deep", 0o444)],
)
def test_no_permission_is_one_clear_line(library, closed, mode):
    (library / closed).chmod(mode)
    with as_nobody(), pytest.raises(AttnscopeError) as caught:
        Corpus.from_sources([library])
    said = str(caught.value)
    assert said.startswith(str(library))
    assert "cannot be read (" in said
    assert said.endswith("expected a readable file or folder: check its permissions")
    assert "\n" not in said


def test_names_are_shown_escaped(tmp_path):
    odd = os.fsdecode(b"caf\xe9\x1b[31m\n.txt")
    assert shown(odd) == r"caf\xe9\x1b[31m\n.txt"
    assert shown("港の朝\u3000🌊.txt") == "港の朝\u3000🌊.txt"
    path = tmp_path / odd
    with pytest.raises(AttnscopeError) as caught:
        Corpus.from_sources([path])
    assert str(caught.value).startswith(f"{tmp_path}/{shown(odd)}: no such file or folder")
    path.write_text("words")
    assert [text.name for text in Corpus.from_sources([tmp_path])] == [shown(odd)]
    path.write_bytes(b"\xff")
    for read in (read_lines, lambda path: list(Corpus.from_sources([path])), lambda path: read_parallel(path, path)):
        with pytest.raises(AttnscopeError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{tmp_path}/{shown(odd)}")


LONG = "a long text, " * 20_000
CELLS = [("text", "id"), ("One, two.", "1"), ('A "no".\nAnd left.', "2"), ("", "3"), ("港\tの朝", "4"), (LONG, "5")]


@pytest.mark.parametrize(("name", "dialect"), [("a.csv", csv.excel), ("a.TSV", csv.excel_tab), ("a.csv.gz", csv.excel)])
def test_a_table_of_cells_has_a_text_a_row(name, dialect, tmp_path):
    written = io.StringIO(newline="")
    csv.writer(written, dialect).writerows(CELLS)
    data, limit = b"\xef\xbb\xbf" + written.getvalue().encode(), csv.field_size_limit()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    given = [*Corpus.from_sources([tmp_path / name], by="id")]
    assert [(text.content, text.by) for text in given] == CELLS[1:]
    assert [text.name for text in given] == [f"{name}:{number}" for number in range(1, 6)]
    assert [text.content for text in Corpus.from_sources([tmp_path / name], field="id")] == [*"12345"]
    assert csv.field_size_limit() == limit
    with pytest.raises(AttnscopeError, match="row 1: no field 'body'; found the fields 'text', 'id'"):
        [*Corpus.from_sources([tmp_path / name], field="body")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("text,id\nOne, two.,1\n", "row 1: has more cells than the 2 names"),
        ('text,id\n"One,1\n', "after line 1: not a row of cells"),
    ],
)
def test_a_row_that_is_none_is_explained(content, says, tmp_path):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(AttnscopeError, match=says):
        [*Corpus.from_sources([tmp_path / "a.csv"])]


@pytest.mark.parametrize("name", ["a.html", "a.DOCX", "a.pdf", "a.json", "a.xml.gz", "a.xlsx"])
def test_other_documents_are_rejected_by_name(name, tmp_path):
    (tmp_path / name).write_bytes(b"<p>The tide.</p>")
    for reads in (READERS["corpus"], READERS["lines"], READERS["sides"]):
        with pytest.raises(AttnscopeError, match=r"is not read as text; expected plain text \(\.txt"):
            reads(tmp_path / name)


@pytest.mark.parametrize(
    ("library", "of_rows"), [("polars", "DataFrame"), ("pyarrow", "Table.from_pylist"), ("pandas", "DataFrame")]
)
def test_frames_and_tables_are_rows(library, of_rows):
    made = attrgetter(of_rows)(pytest.importorskip(library))([{"text": "One.", "id": 1}, {"text": "Two.", "id": 2}])
    assert [text.content for text in Corpus.from_sources(made)] == ["One.", "Two."]
    assert [text.content for text in Corpus.from_sources(made["text"])] == ["One.", "Two."]
