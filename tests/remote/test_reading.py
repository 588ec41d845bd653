"""A copy of what a URL names is whole and of one version, however the line breaks."""

from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from attnscope import AttnscopeError
from attnscope.read import urls
from attnscope.read.urls import Url, fetched, files_below

DATA = bytes(range(256)) * 40
URL = Url("memory://reading/a.bin")


@pytest.fixture(autouse=True)
def store(monkeypatch):
    monkeypatch.setattr(urls, "WAITS", (0, 0, 0, 0))
    urls._copy.cache_clear()
    found = fsspec.filesystem("memory")
    found.pipe_file("/reading/a.bin", DATA)
    yield found
    for name in [name for name in found.store if name.startswith("/reading/")]:
        del found.store[name]


@pytest.mark.parametrize("breaks", [1, 4])
def test_a_broken_line_is_tried_again(monkeypatch, breaks):
    get, tries = MemoryFileSystem.get_file, []

    def broken(self, path, target, **options):
        tries.append(path)
        if len(tries) <= breaks:
            Path(target).write_bytes(DATA[:3000])
            if len(tries) % 2:
                raise ConnectionResetError("reset by peer")
            return  # it seems to end
        get(self, path, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", broken)
    assert fetched(URL).read_bytes() == DATA
    assert len(tries) == breaks + 1


def test_it_is_fetched_once_as_long_as_it_stays(store):
    first = fetched(URL)
    assert fetched(URL) == first
    store.pipe_file("/reading/a.bin", DATA[::-1])
    assert fetched(URL).read_bytes() == DATA[::-1]


def test_what_never_comes_is_reported(monkeypatch):
    def fail(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(MemoryFileSystem, "get_file", fail)
    with pytest.raises(AttnscopeError, match=r"memory://reading/a.bin: cannot be read \(timed out\)"):
        fetched(URL)


def test_what_is_not_there_and_folders_are_rejected():
    with pytest.raises(AttnscopeError, match="not found"):
        fetched(Url("memory://reading/none"))
    with pytest.raises(AttnscopeError, match="it is a folder"):
        fetched(Url("memory://reading"))
    with pytest.raises(AttnscopeError, match="not found"):
        files_below(Url("memory://reading/none"))
    with pytest.raises(AttnscopeError, match="cannot be listed"):
        files_below(Url("https://host/folder/"))
