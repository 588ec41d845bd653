"""A text that changes while it is read is never measured."""

import tracemalloc

import numpy as np
import pytest

import attnscope
from attnscope.read import files as _unchanged
from attnscope.read.files import Unchanged
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError

SENTENCE = "The tide comes in twice a day, and twice a day it goes out again."


@pytest.fixture(autouse=True)
def no_text_is_kept_in_memory(monkeypatch):
    """As where texts are many: few are read only once, so that no later change concerns them."""
    monkeypatch.setattr("attnscope.read.texts._FEW", -1)
    monkeypatch.setattr("attnscope.read.encoded._FEW", -1)


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "library"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"Text {name}. {SENTENCE}")
    return folder


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(_unchanged, "BLOCK", 64)


def scan_of(path, *, out, batch, change):
    """Scan, and change something after one batch."""
    batches = 0

    def tell(_):
        nonlocal batches
        batches += 1
        if batches == batch:
            change()

    return attnscope.scan(texts=[path], out=out, window=32, batch_size=1, device="cpu", show=False, progress=tell)


def test_a_file_that_is_edited_between_the_windows_of_a_scan_is_rejected(library, tmp_path):
    file, out = library / "c.txt", tmp_path / "run"
    before = file.read_text()
    with pytest.raises(AttnscopeError, match=r"c\.txt: changed while it was being read; .*\n.*repeat the command"):
        scan_of(library, out=out, batch=1, change=lambda: file.write_text(before.replace("tide", "tram")))
    file.write_text(before)
    resumed = attnscope.scan(texts=[library], out=out, window=32, batch_size=1, device="cpu", show=False)
    whole = attnscope.scan(texts=[library], window=32, batch_size=1, device="cpu")
    assert resumed.attrs["signature"] == whole.attrs["signature"]
    np.testing.assert_array_equal(resumed.profile, whole.profile)


def test_a_file_that_vanishes_in_a_scan_is_rejected(library, tmp_path):
    with pytest.raises(AttnscopeError, match=r"c\.txt: is gone while it was being read"):
        scan_of(library, out=tmp_path / "run", batch=1, change=(library / "c.txt").unlink)


def test_json_lines_that_are_truncated_in_a_scan_are_rejected(tmp_path, small_blocks):
    file, done = tmp_path / "a.jsonl", []
    line = f'{{"text": "{SENTENCE}", "more": "{"-" * 20_000}"}}\n'  # more than is buffered
    file.write_text(line * 6)

    def truncate(at):
        done.append(at)
        file.write_text(line * 3)

    with pytest.raises(AttnscopeError, match=r"a\.jsonl: changed while it was being read"):
        attnscope.scan(texts=[file], window=32, batch_size=1, device="cpu", progress=truncate)
    assert 1 <= len(done) <= 3


def test_a_file_that_is_added_to_a_folder_later_is_not_read(library):
    corpus = Corpus.from_sources([library])
    before = corpus.sha256()
    (library / "b2.txt").write_text("Another.")
    assert [text.name for text in corpus] == ["a.txt", "b.txt", "c.txt"]
    assert corpus.sha256() == before


@pytest.mark.parametrize("size", [1, 64, 65, 200])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1] + b"!",
        lambda data: b"!" + data[1:],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"!",
        lambda data: data + b"!" * 64,
    ],
    ids=["last byte", "first byte", "one less", "half", "emptied", "one more", "a block more"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_every_change_is_noticed_before_a_changed_byte_is_returned(tmp_path, small_blocks, size, change, whole):
    path = tmp_path / "a.txt"
    before = bytes(65 + i % 26 for i in range(size))
    path.write_bytes(before)
    file = Unchanged(path)
    read = (lambda: [file.read()]) if whole else file.blocks
    assert b"".join(read()) == b"".join(read()) == before
    path.write_bytes(change(before))
    handed_out = []
    with pytest.raises(AttnscopeError, match="changed while it was being read"):
        handed_out.extend(read())
    assert before.startswith(b"".join(handed_out))
    path.write_bytes(before)
    assert b"".join(read()) == before


def test_what_was_not_read_yet_may_change(tmp_path, small_blocks):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "%s"}\n' % ("a" * 100) * 3)
    corpus = Corpus.from_sources([path])
    next(iter(corpus))
    path.write_text('{"text": "%s"}\n' % ("a" * 100) * 2)
    assert len(list(corpus)) == len(list(corpus)) == 2


def test_memory_does_not_grow_with_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "%s"}\n' % ("a" * 50_000) * 200)
    corpus = Corpus.from_sources([path])
    tracemalloc.start()
    corpus.sha256()
    count = sum(1 for _ in corpus)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 200
    assert peak < 5_000_000 < path.stat().st_size
