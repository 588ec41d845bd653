"""Groups of the tokens of texts with images."""

import pytest

from attnscope import AttnscopeError
from attnscope.measure.vision import grouping_of_pictured
from attnscope.read.groups import grouping_of
from attnscope.read.image_text import picture_groups
from attnscope.read.windows import Window


def window(*roles):
    count = len(roles)
    return Window((9,) * count, (False,) * count, ((0, 1),) * count, "text 1", 0, ("a",) * count, roles=roles)


def test_many_images_are_one_group():
    names = [f"image {number}" for number in range(1, 10)]
    [merged], groups = picture_groups([window(*names, "text")])
    assert groups == ["image"]
    assert merged.roles == ("image",) * 9 + ("text",)
    assert picture_groups([window(*names[:8], "text")])[1] == names[:8]
    assert picture_groups([window("text")])[1] == []


def test_frames_are_groups_where_there_are_few_of_one_video():
    few = [f"video 1 frame {number}" for number in range(1, 8)]
    own = [name.removeprefix("video 1 ") for name in few]
    [renamed], groups = picture_groups([window("image 1", *few, "text")])
    assert groups == ["image", *own]
    assert renamed.roles == ("image", *own, "text")
    more = [*few, "video 1 frame 8", "video 1 frame 9"]
    [merged], groups = picture_groups([window(*more, "text")])
    assert groups == ["video"]
    assert merged.roles == ("video",) * 9 + ("text",)
    assert picture_groups([window("video 1"), window(*few)])[1] == ["video"]  # where frames of one are not known
    assert picture_groups([window("image 1", "image 2", "video 1 frame 1", "video 2 frame 1")])[1] == [
        *("image 1", "image 2", "video 1", "video 2")
    ]


def test_texts_and_chats_may_be_mixed():
    texts = [window("image", "text", "special"), window("image", "user", "template")]
    grouping = grouping_of_pictured(None, texts, ["image"])
    assert grouping.names[:3] == ("image", "text", "special")
    assert set(grouping.names[3:]) == {"system", "user", "assistant", "tool", "template"}


def test_a_file_of_rules_leaves_room_for_images(tmp_path):
    rules = tmp_path / "rules.jsonl"
    rules.write_text("".join(f'{{"group": "g{number}", "tokens": ["{number}"]}}\n' for number in range(14)))
    texts = [window("image 1", "image 2", "text")]
    with pytest.raises(AttnscopeError, match="found 17 groups; expected at most 16"):
        grouping_of_pictured(grouping_of(rules), texts, ["image 1", "image 2"])
    grouping = grouping_of_pictured(grouping_of(rules), [window("image", "text")], ["image"])
    assert grouping.rule(window("image", "text")) == ["image", "other"]


def test_a_group_of_tokens_is_not_called_as_the_images_are(tmp_path):
    rules = tmp_path / "rules.jsonl"
    rules.write_text('{"group": "image", "tokens": ["boat"]}')
    texts = [window("image", "text")]
    for rule in (grouping_of(rules), grouping_of(lambda tokens: ["image"] * len(tokens))):
        with pytest.raises(AttnscopeError, match="has the name 'image', which is reserved for images"):
            grouping_of_pictured(rule, texts, ["image"])


def test_roles_are_those_of_chats():
    with pytest.raises(AttnscopeError, match="none of the texts is one"):
        grouping_of_pictured(grouping_of("roles"), [window("image", "text")], ["image"])
