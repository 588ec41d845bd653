"""Data sets of Hugging Face as a corpus, from a local folder as from the hub."""

import json
from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

from attnscope.read.chats import are_chats
from attnscope.read.texts import Corpus
from attnscope.support.errors import AttnscopeError
from tests.cli.command import attnscope


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory):
    """What is not there is not looked for again and again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("data") / "tides"
    place.mkdir()
    for split, count in (("train", 3), ("test", 2)):
        rows = [{"text": f"{split} tide {row}.", "body": None, "number": row} for row in range(count)]
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def test_a_split_is_read_row_after_row(folder):
    corpus = Corpus.from_sources(Path(f"datasets:{folder}:test"))
    assert [text.content for text in corpus] == ["test tide 0.", "test tide 1."]
    assert [text.name for text in corpus] == [f"{folder}:test:1", f"{folder}:test:2"]
    assert corpus.sha256() == corpus.sha256()
    other = Corpus.from_sources(Path(f"datasets:{folder}:default:train"))
    assert [text.content for text in other] == ["train tide 0.", "train tide 1.", "train tide 2."]


@pytest.mark.parametrize(
    ("named", "field", "match"),
    [
        ("", None, "has the splits train, test: name one"),
        (":dev", None, "Bad split"),
        (":test", "words", "no field 'words'; found the fields 'text', 'body', 'number'"),
        (":test", "number", "row 1: field 'number' has a JSON number"),
        (":test", "body", "only white space"),
        (":a:b:c", None, "expected datasets:NAME"),
    ],
)
def test_missing_splits_and_fields_are_reported(folder, named, field, match):
    with pytest.raises(AttnscopeError, match=match) as caught:
        list(Corpus.from_sources(Path(f"datasets:{folder}{named}"), field=field))
    assert len(str(caught.value).splitlines()) <= 2


def test_scan_takes_a_dataset(folder, tmp_path):
    found = attnscope("scan", "bundled", f"datasets:{folder}:test", "--no-report", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["signature"]["settings"]["window"] > 0
    gone = attnscope("scan", "bundled", "datasets:nobody/nothing:test", "--no-report", cwd=tmp_path)
    assert gone.returncode == 2
    assert "datasets:nobody/nothing:test: cannot be read" in gone.stderr


def test_chats_of_a_dataset_are_read_as_chats(tmp_path):
    place = tmp_path / "talks"
    place.mkdir()
    chats = [
        [{"role": "user", "content": f"Tide {number}?"}, {"role": "assistant", "content": "Low."}] for number in (0, 1)
    ]
    (place / "train.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    named = Path(f"datasets:{place}:train")
    assert are_chats(named)
    corpus = Corpus.from_sources(named, chats=True)
    assert [json.loads(text.content) for text in corpus] == chats
    assert [text.name for text in corpus] == [f"{place}:train:1", f"{place}:train:2"]
