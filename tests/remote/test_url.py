"""Addresses are told from texts, and never shown with what is secret in them."""

from pathlib import Path

import pytest

from attnscope import AttnscopeError
from attnscope.read.urls import Url, is_url, reject_path_of_url


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


def test_what_nothing_reads_is_refused():
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


def test_a_path_that_was_a_url_is_refused_unless_it_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reject_path_of_url(Path("runs:/a"))
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a").touch()
    reject_path_of_url(Path("s3://a"))
    with pytest.raises(AttnscopeError, match="give a string"):
        reject_path_of_url(Path("https://host/a.txt?key=" + 300 * "k"))
    with pytest.raises(AttnscopeError, match="give a string"):
        reject_path_of_url(Path("s3://b"))
