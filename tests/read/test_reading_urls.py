"""A copy of what a URL names is whole and of one version, and no address is shown with its secrets."""

from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from attnscope import AttnscopeError
from attnscope.read import urls
from attnscope.read.urls import Url, fetched, files_below, is_url, reject_path_of_url

# --- a copy of what a URL names is whole and of one version, however the line breaks ---


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


# --- addresses are told from texts, and never shown with what is secret in them ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://bucket/a.txt", True),
        ("HTTPS://host/a", True),
        ("memory://", True),
        ("see s3://bucket/a.txt", False),
        ("s3://bucket/a b.txt", False),
        ("s3:/bucket/a.txt", False),
        ("c:\\a.txt", False),
        ("http://" + 9000 * "a", False),
        (Path("a.txt"), False),
    ],
)
def test_one_word_with_a_scheme_is_a_url(given, expected):
    assert is_url(given) is expected


SECRET = [
    "https://user:pa55word@host/a/b.jsonl.gz?X-Amz-Credential=AK%2FIA&X-Amz-Signature=d34db33f#part",
    "s3://AKIA:pa55word@bucket/a/b.jsonl.gz?X-Amz-Signature=d34db33f",
]


@pytest.mark.parametrize("address", SECRET)
def test_secrets_are_not_shown(address):
    url = Url(address)
    library = f"403, message='no', url='{address}' AK/IA d34db33f; https://other:pa55word@host/?token=abc"
    for text in (str(url), repr(url), f"{url}", str(url.child("c")), url.clean(library), str([url])):
        assert not [word for word in ("pa55word", "d34db33f", "AK%2FIA", "abc") if word in text]
        assert "AK/IA" not in text or "AK%2FIA" not in address
        assert "//user" not in text
    assert (url.name, url.suffix, url.stem) == ("b.jsonl.gz", ".gz", "b.jsonl")


def test_what_nothing_reads_is_rejected():
    with pytest.raises(AttnscopeError, match="a URL of an unknown type"):
        Url("gopher://host/a.txt")


def test_a_package_that_lacks_is_named(monkeypatch):
    import fsspec.registry

    def lack(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "get_filesystem_class", lack)
    with pytest.raises(AttnscopeError, match=r"s3://bucket/a.txt: .* pip install 'attnscope\[remote\]'"):
        Url("s3://bucket/a.txt").place()
    with pytest.raises(AttnscopeError, match="gcsfs"):
        Url("gs://bucket/a.txt").place()


def test_a_path_that_was_a_url_is_rejected_unless_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reject_path_of_url(Path("runs:/a"))
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a").touch()
    reject_path_of_url(Path("s3://a"))
    with pytest.raises(AttnscopeError, match="give a string"):
        reject_path_of_url(Path("https://host/a.txt?key=" + 300 * "k"))
    with pytest.raises(AttnscopeError, match="give a string"):
        reject_path_of_url(Path("s3://b"))
