"""A corpus named by URLs is that of the files themselves."""

import bz2
import functools
import gzip
import http.server
import json
import lzma
import threading
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from attnscope import AttnscopeError
from attnscope.read import urls as _calls
from attnscope.read.chats import Chats, are_chats
from attnscope.read.texts import Corpus
from attnscope.read.urls import Url

LINES = b"".join(b'{"text": "Number %d of the tide.", "body": "B"}\n' % n for n in range(60))
CHAT = json.dumps({"messages": [{"role": "user", "content": "Is the tide out?"}]}).encode()


def table(folder, suffix):
    path, rows = folder / f"rows{suffix}", pa.table({"text": ["One.", None, "Two."]})
    if suffix == ".parquet":
        pyarrow.parquet.write_table(rows, path)
    else:
        with pa.ipc.new_file(path, rows.schema) as file:
            file.write_table(rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    (place / "b").mkdir()
    (place / ".hidden").mkdir()
    for name, content in {
        "b.txt": "\ufeffThe tide\r\nis out.".encode(),
        "b/d.md": b"Boats.",
        "lines.jsonl": LINES,
        "c.jsonl.gz": gzip.compress(LINES),
        "c.txt.xz": lzma.compress(b"Mud."),
        "caf\u00e9 1.txt.bz2": bz2.compress(b"More mud."),
        "photo.png": b"\x89PNG",
        ".hidden/e.txt": b"not read",
    }.items():
        (place / name).write_bytes(content)
    for suffix in (".parquet", ".arrow"):
        table(place, suffix)
    return place


@pytest.fixture(params=["memory", "file", "s3"])
def url(request, folder):
    """The address of a copy of the folder."""
    if request.param == "file":
        yield folder.as_uri()
        return
    if request.param == "s3":
        pytest.importorskip("moto.server")
        pytest.importorskip("s3fs")
        from tests.object_store import s3

        with s3():
            yield copied(folder, "s3://bucket/corpus")
    else:
        yield copied(folder, "memory://bucket/corpus/")
        fsspec.filesystem("memory").rm("/bucket/corpus", recursive=True)


def copied(folder, url):
    store, path = fsspec.core.url_to_fs(url)
    for file in folder.rglob("*"):
        if file.is_file():
            store.pipe_file(f"{path}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    store.pipe_file(f"{path.rstrip('/')}2/other.txt", b"Of another folder.")
    return url


def contents(given, **options):
    return [(text.name, text.content) for text in Corpus.from_sources(given, **options)]


def test_a_folder_and_its_files_hold_the_same_texts(url, folder):
    there, here = Corpus.from_sources(url), Corpus.from_sources(folder)
    assert [*there] == [*here]
    assert there.sha256() == here.sha256()
    for name in ("b.txt", "b/d.md", "c.jsonl.gz", "c.txt.xz", "rows.parquet", "rows.arrow"):
        assert contents([f"{url.rstrip('/')}/{name}"]) == contents([folder / name])
    several = [f"{url.rstrip('/')}/{name}" for name in ("b.txt", "b.txt", "lines.jsonl")]
    assert contents(several, field="body") == contents(
        [folder / "b.txt", folder / "b.txt", folder / "lines.jsonl"], field="body"
    )
    assert contents(several[0], by_line=True) == [("b.txt:1", "The tide"), ("b.txt:2", "is out.")]


@pytest.fixture
def memory():
    store = fsspec.filesystem("memory")
    yield store
    for name in [name for name in store.store if name.startswith("/urls/")]:
        del store.store[name]


@pytest.mark.parametrize("same_size", [True, False])
def test_one_that_changes_between_readings_is_rejected(memory, same_size, monkeypatch):
    monkeypatch.setattr("attnscope.read.texts._FEW", -1)  # texts are read again
    memory.pipe_file("/urls/a.txt", b"The tide is out.")
    corpus = Corpus.from_sources("memory://urls/a.txt")
    assert [*corpus] == [*corpus]
    memory.pipe_file("/urls/a.txt", b"The tide was in." if same_size else b"The tide is in.")
    with pytest.raises(AttnscopeError, match=r"memory://urls/a.txt: changed while it was being read"):
        list(corpus)


def test_chats_are_known_by_their_first_line(memory):
    memory.pipe_file("/urls/chats.jsonl.gz", gzip.compress(CHAT))
    assert are_chats("memory://urls/chats.jsonl.gz")
    assert are_chats(["memory://urls/chats.jsonl.gz"])
    chats = Chats("memory://urls/chats.jsonl.gz")
    assert [text.name for text in chats._corpus] == ["chats.jsonl.gz:1"]


def test_a_url_beside_texts_or_as_a_path_is_rejected_without_its_key(memory):
    memory.pipe_file("/urls/a.txt", b"Mud.")
    for given in (
        ["memory://urls/a.txt", "The tide is out."],
        ["The tide is out.", "s3://bucket/a.txt"],
        iter(["The tide is out.", "https://host/a.txt?key=pa55word"]),
    ):
        with pytest.raises(AttnscopeError, match="among texts") as caught:
            Corpus.from_sources(given)
        assert "pa55word" not in str(caught.value)
    with pytest.raises(AttnscopeError, match="give a string"):
        Corpus.from_sources(Path("s3://bucket/a.txt"))
    found = Corpus.from_sources([Url("memory://urls/a.txt"), "The tide is out."])  # an object of Url is no text
    assert [text.content for text in found] == ["Mud.", "The tide is out."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "not found"),
        ("a/photo.png", b"\x89PNG", "no .txt, .md, .jsonl"),
        ("a.jsonl", b'{"text": "What?", "image": "boat.png"}', "line 1: names an image"),
        ("a.txt", b"caf\xe9", "found byte 0xe9 at byte offset 3"),
        ("a.txt.gz", gzip.compress(LINES)[:-9], "ends inside the compressed"),
        ("a.parquet", b"none", "not a .parquet file, or damaged"),
        ("a.jsonl", b"{", "line 1: not JSON"),
    ],
)
def test_what_is_no_text_is_reported_by_its_url(memory, name, content, message, monkeypatch):
    if content is not None:
        memory.pipe_file(f"/urls/{name}", content)
    given = "memory://urls/a/" if name.startswith("a/") else f"memory://urls/{name}"
    with pytest.raises(AttnscopeError, match=message) as told:
        contents(given)
    assert str(told.value).startswith(given)


class _Secretive(http.server.SimpleHTTPRequestHandler):
    """Answers only to those that know the key; the first answer to each request is 503."""

    seen = frozenset()

    def do_GET(self):
        if "key=pa55word" not in self.path:
            self.send_error(403)
        elif (self.command, self.path) not in self.seen:
            type(self).seen |= {(self.command, self.path)}
            self.send_error(503)
        elif self.command == "HEAD":
            super().do_HEAD()
        else:
            super().do_GET()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def web(folder, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(_calls, "WAITS", (0, 0))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Secretive, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_web_is_read_and_keys_are_not_shown(web, folder):
    for name in ("c.jsonl.gz", "b.txt", "rows.parquet", "caf%C3%A9%201.txt.bz2"):
        found = contents(f"{web}/{name}?key=pa55word")
        assert found == contents(folder / name.replace("%C3%A9%20", "\u00e9 "))
        assert "pa55word" not in str(found)
    for path, message in (
        ("b.txt?token=s3cret", "no permission"),
        ("none.txt?key=pa55word", "not found"),
        ("?key=pa55word", "cannot be listed"),
    ):
        with pytest.raises(AttnscopeError, match=message) as told:
            contents(f"{web}/{path}")
        assert "s3cret" not in str(told.value)
        assert "pa55word" not in str(told.value)
        assert "\n" not in str(told.value)


def test_a_server_that_is_not_there_is_reported(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(_calls, "WAITS", (0,))
    with pytest.raises(AttnscopeError, match=r"cannot be read .* check the network"):
        contents("http://127.0.0.1:9/a.txt")
