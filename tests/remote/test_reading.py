"""What is read is whole and of one version, however the line breaks."""

import io

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from attnscope import AttnscopeError
from attnscope.read import urls as _calls
from attnscope.read import urls as _reading
from attnscope.read.urls import Url, files_below, opened, stamp

DATA = bytes(range(256)) * 40
URL = Url("memory://reading/a.bin")


@pytest.fixture(autouse=True)
def store(monkeypatch):
    monkeypatch.setattr(_calls, "WAITS", (0, 0, 0, 0))
    monkeypatch.setattr(_reading, "BLOCK", 1000)
    found = fsspec.filesystem("memory")
    found.pipe_file("/reading/a.bin", DATA)
    yield found
    for name in [name for name in found.store if name.startswith("/reading/")]:
        del found.store[name]


class _Broken(MemoryFile):
    """Some blocks are not had at the first try, or the second."""

    reads = 0
    end = None  # where it seems to end
    seekable_ = True

    def read(self, size=-1):
        type(self).reads += 1
        if self.reads in {2, 3, 7, 20}:
            raise ConnectionResetError("reset by peer")
        if self.end is not None and self.tell() >= self.end:
            type(self).end = None
            return b""
        return super().read(size)

    def seekable(self):
        return self.seekable_

    def close(self):
        pass


@pytest.fixture
def broken(monkeypatch):
    class File(_Broken):
        pass

    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, path, *_, **__: File(self, path, DATA))
    return File


@pytest.mark.parametrize("seekable", [True, False])
@pytest.mark.parametrize("end", [None, 3000])
@pytest.mark.parametrize("size", [-1, 700, 1000, 5000])
def test_a_broken_line_goes_on_where_it_broke(broken, seekable, end, size):
    broken.seekable_, broken.end = seekable, end
    with opened(URL) as file:
        assert b"".join(iter(lambda: file.read(size), b"")) == DATA
    assert broken.reads > 6


def test_it_seeks(store):
    with opened(URL) as file:
        assert file.seek(-5, io.SEEK_END) == len(DATA) - 5
        assert file.read() == DATA[-5:]
        assert file.seek(300) == 300
        assert file.read(2) == DATA[300:302]


def test_what_never_comes_is_told(store, monkeypatch):
    def fail(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(MemoryFile, "read", fail)
    with (
        pytest.raises(AttnscopeError, match=r"memory://reading/a.bin: cannot be read \(timed out\)"),
        opened(URL) as file,
    ):
        file.read()


def test_another_version_after_a_break_is_refused(store, broken, monkeypatch):
    with opened(URL) as file:
        file.read(900)
        monkeypatch.setattr(MemoryFileSystem, "info", lambda *_: {"size": len(DATA) + 4, "type": "file"})
        with pytest.raises(AttnscopeError, match="changed while it was being read"):
            file.read()


def test_a_stamp_tells_versions_apart(store):
    before = stamp(URL)
    assert stamp(URL) == before
    store.pipe_file("/reading/a.bin", DATA[::-1])
    assert stamp(URL) != before


def test_checksums_tell_more_than_times(monkeypatch):
    for info, expected in (
        ({"size": 3, "ETag": "a", "LastModified": 1}, ("3", "a")),
        ({"size": 3, "mtime": 1.5}, ("3", "1.5")),
        ({"size": None}, ("None",)),
    ):
        monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, info=info: info)
        assert stamp(URL) == expected


def test_what_is_not_there_and_folders_are_refused(store):
    with pytest.raises(AttnscopeError, match="nothing is there"), opened(Url("memory://reading/none")):
        pass
    with pytest.raises(AttnscopeError, match="it is a folder"), opened(Url("memory://reading")):
        pass
    with pytest.raises(AttnscopeError, match="nothing is there"):
        files_below(Url("memory://reading/none"))
    with pytest.raises(AttnscopeError, match="cannot be listed"):
        files_below(Url("https://host/folder/"))
