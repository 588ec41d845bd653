"""What a corpus reads, what it refuses, and what it calls things."""

import os
from pathlib import Path

import pytest

from attnscope.bundled import TEXT
from attnscope.read.sources import Text
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError


def contents(*sources, **options):
    return [text.content for text in Corpus.from_sources(sources, **options)]


@pytest.fixture
def folder(tmp_path):
    """A folder with every kind of file in it."""
    place = tmp_path / "library"
    (place / "b").mkdir(parents=True)
    (place / ".git").mkdir()
    (place / "c.txt").write_bytes(b"Third.")
    (place / "a.md").write_bytes(b"# First")
    (place / "b" / "two.jsonl").write_bytes(b'{"text": "Second."}\n\n{"text": ""}\n')
    for hidden in (".note.txt", ".git/log.txt", "b/data.csv"):
        (place / hidden).write_bytes(b"not read")
    return place


def test_a_folder_is_read_in_sorted_order_without_hidden_files_and_loops(folder):
    (folder / "b" / "again").symlink_to(folder)
    assert list(Corpus.from_sources([folder])) == [
        Text("a.md", "# First"),
        Text("b/two.jsonl:1", "Second."),
        Text("b/two.jsonl:3", ""),
        Text("c.txt", "Third."),
    ]


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"one\r\ntwo\rthree\n", "one\r\ntwo\rthree\n"),
        (b"\xef\xbb\xbfmarked", "marked"),
        (b"\xef\xbb\xbf\xef\xbb\xbftwice", "\ufefftwice"),
        ("港の朝 🌊\n".encode(), "港の朝 🌊\n"),
        (b"  spaces kept  ", "  spaces kept  "),
    ],
)
def test_characters_are_those_of_the_file(tmp_path, data, content):
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    assert contents(file) == [content]


def test_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "a\\nb", "id": 1}\r\n  \r\n{"text": "\\u6e2f"}')
    assert list(Corpus.from_sources([file])) == [Text("a.jsonl:1", "a\nb"), Text("a.jsonl:3", "港")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "open', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 10_000, "not JSON"),
        ('["text"]', "found a JSON array; expected an object"),
        ('{"body": "x", "id": 7}', "no field 'text'; found the fields 'body', 'id'"),
        ("{}", r"found the fields none. Choose one as `field` \(--field\)$"),
        ('{"text": 7, "body": "x"}', "has a JSON number; .*\n.* 'text' \\(number\\), 'body' \\(string\\)"),
        ('{"text": "a\\ud800"}', r"lone surrogate U\+D800 at character 1"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path, line, said):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine"}\n\n' + line + "\n")
    texts = iter(Corpus.from_sources([file]))
    assert next(texts).content == "fine"
    with pytest.raises(AttnscopeError, match=rf"a\.jsonl, line 3: .*{said}"):
        next(texts)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"caf\xe9 au lait", r"0xe9 at byte offset 3; .*UTF-8.\n.*iconv -f ENCODING -t utf-8"),
        (b"\xef\xbb\xbfcaf\xe9", "byte offset 6"),
        ("tide".encode("utf-16"), "0xff at byte offset 0; .*\n.*iconv -f utf-16 -t utf-8"),
        (b"\xed\xa0\x80", "byte offset 0"),
    ],
)
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_other_encodings_are_named_with_their_place(tmp_path, data, said, suffix):
    file = tmp_path / f"a.{suffix}"
    file.write_bytes(data)
    with pytest.raises(AttnscopeError, match=rf"a\.{suffix}(, line 1)?: found byte .*{said}"):
        contents(file)


def test_missing_things_are_found_when_the_corpus_is_built(tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "empty").mkdir()
    for path, said in [
        (tmp_path / "gone.txt", r"gone\.txt: no such file or folder: check the path$"),
        (tmp_path / "linc.txt", r"linc\.txt: no such file or folder: check the path\. Did you mean 'link\.txt'\?"),
        (Path("word"), r"word: no such file or folder\. A word without a space is read as the name of a file"),
        (tmp_path / "link.txt", "a broken link"),
        (tmp_path / "loop.txt", "cannot be read"),
        (tmp_path / "link.txt" / "below", "no such file"),
        (tmp_path / "empty", r"no \.txt, \.md, \.jsonl, \.parquet, \.arrow file in this folder"),
        (tmp_path / ("x" * 5000), "cannot be read"),
        (tmp_path, "a broken link|cannot be read"),
    ]:
        with pytest.raises(AttnscopeError, match=said):
            Corpus.from_sources(["fine", path])


def test_a_file_that_goes_away_before_it_is_reached(folder):
    corpus = Corpus.from_sources([folder])
    (folder / "b" / "two.jsonl").unlink()
    (folder / "c.txt").unlink()
    texts = iter(corpus)
    assert next(texts).name == "a.md"
    with pytest.raises(AttnscopeError, match=r"two\.jsonl: no such file or folder"):
        next(texts)
    with pytest.raises(AttnscopeError, match=r"c\.txt: no such file or folder"):
        list(Corpus(corpus._sources[-1:]))


@pytest.mark.parametrize("name", ["a.txt", "essay", "deep/er"])
def test_a_string_that_names_a_file_is_rejected(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("Words.")
    (tmp_path / "essay").write_text("Words.")
    with pytest.raises(AttnscopeError, match=r"the name of a file or folder here, .*give pathlib\.Path\("):
        Corpus.from_sources(name)
    if name == "essay":
        assert contents(tmp_path / name) == ["Words."]  # of any suffix


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        (["fine", "odd\udc80"], {}, r"text 2: found a lone surrogate U\+DC80 at character 3"),
        (["a text"], {"field": "body"}, r"field 'body' .*no source is one: leave it out"),
        *(
            (["A text.", name], {}, rf"text 2 is '{name}', which looks like a file name but does not exist")
            for name in ("notes/a.MD", "./essay", "~/essay")
        ),
    ],
)
def test_strings_and_fields_that_are_no_text_are_rejected(sources, options, message):
    with pytest.raises(AttnscopeError, match=message):
        Corpus.from_sources(sources, **options)


@pytest.mark.parametrize(
    "text", ["See README.md", "F/C=C/F.[Na+]>>C", "and/or", "潮は満ちる。", "Hello.", "a.txt\nb.txt", "word/" * 2000]
)
def test_other_strings_are_texts(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(Corpus.from_sources([text, ""])) == [Text("text 1", text), Text("text 2", "")]
    assert list(Corpus.from_sources()) == list(Corpus.from_sources([TEXT]))


def test_blank_texts_alone_are_no_text(tmp_path):
    (tmp_path / "a.txt").write_text(" \r\n")
    (tmp_path / "b.txt").write_text("")
    assert contents(tmp_path, "word") == [" \r\n", "", "word"]
    for blank in ([""], [" \n", "\t", "\u3000"]):
        with pytest.raises(AttnscopeError, match="only white space"):
            Corpus.from_sources(blank)
    with pytest.raises(AttnscopeError, match=r"only white space .texts: 3"):
        contents(tmp_path, " ")
    (tmp_path / "c.jsonl").write_text("\n")
    with pytest.raises(AttnscopeError, match="found no text"):
        contents(tmp_path / "c.jsonl")


def test_the_hash_does_not_depend_on_the_place(folder, tmp_path):
    before = Corpus.from_sources([folder]).sha256()
    moved = folder.rename(tmp_path / "elsewhere")
    assert Corpus.from_sources([moved]).sha256() == before
    assert (
        Corpus.from_sources([moved / "c.txt"]).sha256() == Corpus.from_sources([moved / "b" / ".." / "c.txt"]).sha256()
    )


def test_the_hash_sees_names_contents_order_and_bounds(tmp_path):
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "b.txt").write_text("One.")
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    groups = [[a], [b], [a, b], [b, a], ["One."], ["One.", "Two."], ["One.Two."], ["One.T", "wo."]]
    second = list(Corpus.from_sources(["One.", "Two."]))[1].name
    groups.append([f"One.{second}Two."])  # the same characters, were there no bounds
    hashes = {Corpus.from_sources(sources).sha256() for sources in groups}
    assert len(hashes) == len(groups)


def test_every_line_may_be_a_text(tmp_path):
    (tmp_path / "reactions.txt").write_text("CCO>>CC=O\n\nCO.CC>>CCC\r\n")
    corpus = Corpus.from_sources([tmp_path / "reactions.txt"], by_line=True)
    assert [(text.name, text.content) for text in corpus] == [
        ("reactions.txt:1", "CCO>>CC=O"),
        ("reactions.txt:3", "CO.CC>>CCC"),
    ]


def test_a_name_that_is_not_unicode_can_be_printed_and_hashed(tmp_path):
    file = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    try:
        Path(os.fsdecode(file)).write_text("text")
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    corpus = Corpus.from_sources([tmp_path])
    assert [text.name for text in corpus] == [r"caf\xe9.txt"]
    assert len(corpus.sha256()) == 64


def test_files_of_other_types_are_counted(folder):
    assert Corpus.from_sources([folder]).notes["skipped_files"].endswith("were skipped: .csv 1.")
    assert Corpus.from_sources([folder / "c.txt"]).notes == {}


def test_a_blank_file_is_named(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(AttnscopeError, match=r"empty\.txt: found only white space"):
        list(Corpus.from_sources([tmp_path / "empty.txt"]))
