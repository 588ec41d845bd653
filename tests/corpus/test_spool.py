"""Texts that come one by one are read once, kept on disk, and read again."""

from attnscope.read.sources import Spool
from attnscope.read.texts import Corpus


def test_readers_do_not_disturb_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = Spool(in_memory=10)
    texts = ["The tide", "", "猫 " * 20]
    for text in texts:
        spool.add(text)
    assert list(zip(spool, spool, strict=True)) == [(text, text) for text in texts]
    assert not list(tmp_path.iterdir())  # the file has no name: it goes with the process


def test_a_generator_is_read_once_and_gives_what_its_list_gives(tmp_path):
    def texts():
        nonlocal taken
        for number in range(50):
            taken += 1
            yield f"The tide comes in {number} times."
        yield file

    taken, file = 0, tmp_path / "a.txt"
    file.write_text("And goes out.")
    once = Corpus.from_sources(texts())
    first = list(once)
    assert taken == 50
    taken, whole = 0, Corpus.from_sources(list(texts()))
    assert first == list(once) == list(whole)
    assert once.sha256() == whole.sha256()
    assert [text.name for text in first[-2:]] == ["text 50", "a.txt"]
