"""Texts and chats with images, in the forms in which people keep them."""

import json

import numpy as np
import pytest

from attnscope import AttnscopeError
from attnscope.read.image_text import pictured_of
from tests.image_text_models import picture, write_pictured

ASKED = [{"type": "image"}, {"type": "text", "text": "What is this?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pictured(tmp_path_factory.mktemp("pictured") / "data")


def one(line):
    [found] = pictured_of([line])
    return found


def test_paths_count_from_the_folder_of_the_file_and_names_are_unique(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "The tide is out."}))
    texts = list(pictured_of([folder / "texts.jsonl", tmp_path / "texts.jsonl"]))
    assert [(text.name, len(text.images)) for text in texts] == [
        ("texts.jsonl:1", 1),
        ("texts.jsonl:2", 2),
        ("texts.jsonl:3", 0),
        ("texts.jsonl (2):1", 0),
    ]
    np.testing.assert_array_equal(texts[1].pixels()[1], picture(2, 64, 48))


@pytest.mark.parametrize(
    "chat",
    [
        {"messages": [{"role": "user", "content": "<image>What is this?"}]},
        {"messages": [{"role": "user", "content": ASKED}]},
        {"conversations": [{"from": "human", "value": "<image>What is this?"}]},
    ],
)
def test_chats_of_several_forms_become_one(chat):
    found = one({**chat, "images": [picture(0)]})
    assert found.text is None
    assert found.messages == ({"role": "user", "content": ASKED},)
    np.testing.assert_array_equal(found.pixels()[0], picture(0))


def test_parts_take_their_own_image_or_the_next_one_beside(folder):
    parts = [
        {"type": "image"},
        {"type": "image", "image": picture(1)},
        {"type": "image_url", "image_url": {"url": str(folder / "1.png")}},
        {"type": "image"},
        {"type": "text", "text": "?"},
    ]
    found = one({"messages": [{"role": "user", "content": parts}], "images": [picture(0), picture(2)]})
    expected = (picture(0), picture(1), picture(1, 48, 48), picture(2))
    for pixels, own in zip(found.pixels(), expected, strict=True):
        np.testing.assert_array_equal(pixels, own)


def test_a_file_is_known_by_any_of_its_lines(folder, tmp_path):
    later = tmp_path / "later.jsonl"
    lines = [*[{"text": "No image."}] * 300, {"text": "<image>", "image": str(folder / "0.png")}]
    later.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(pictured_of(later)) == 301
    assert pictured_of(later, field="text") is None
    later.write_text(json.dumps(lines[0]) + "\n")
    assert pictured_of(later) is None


def test_the_hash_knows_images_and_texts(folder):
    def sha256(text, number):
        return pictured_of([{"text": text, "image": picture(number)}]).sha256()

    assert len({sha256("<image>", 0), sha256("<image>", 1), sha256("<image>!", 0)}) == 3
    assert sha256("<image>", 0) == sha256("<image>", 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"text": "<image>", "images": [3]}, "text 1: found an object that is not an image"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}], "image": "a"}, "a part of type 'audio'"),
        ({"messages": [{"role": "poet", "content": "<image>"}], "image": "a"}, "has the role 'poet'"),
        ({"messages": [{"role": "user", "content": "<image>"}, "And?"], "image": "a"}, "message 2: expected an object"),
        ({"messages": [{"role": "user", "content": 3}], "image": "a"}, "message 1: its content is '3'; expected a"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}], "image": "a"}, "of type text without a text"),
        ({"text": "<image>", "image": "data:image/png;base64," + "A" * 5000}, "is a URL"),
        ({"text": "<image>", "image": "a" * 5000}, "text 1: there is no image"),
        ({"text": "<image>", "images": [np.zeros((2, 2, 4), np.uint8)]}, "text 1: found an array of shape (2, 2, 4)"),
    ],
)
def test_what_is_no_image_or_message_is_rejected(line, said):
    with pytest.raises(AttnscopeError) as caught:
        pictured_of([line])
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_folder_of_such_lines_is_read_and_not_their_text_alone(folder, tmp_path):
    assert len(pictured_of(folder)) == 5
    assert pictured_of(folder).beside_images
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "<image>", "image": str(folder / "0.png")}))
    assert not pictured_of(tmp_path).beside_images
    (tmp_path / "b.txt").write_text("The tide is out.")
    with pytest.raises(AttnscopeError, match=r"b\.txt is next to JSON Lines with images"):
        pictured_of(tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "<image>"}))
    assert pictured_of(tmp_path) is None


def test_fields_of_a_message_other_than_its_content_stay():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}
    found = one({"messages": [{"role": "user", "content": "<image>"}, call], "images": [picture(0)]})
    assert found.messages[1] == call | {"content": []}
