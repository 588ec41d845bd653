"""Groups of the tokens of texts with images."""

import pytest

from attnscope import AttnscopeError
from attnscope.corpus import Window, grouping_of, image_groups
from attnscope.statistics.pictured._groups import grouping_of_pictured


def window(*roles):
    count = len(roles)
    return Window((9,) * count, (False,) * count, ((0, 1),) * count, "text 1", 0, ("a",) * count, roles=roles)


def test_many_images_are_one_group():
    names = [f"image {number}" for number in range(1, 10)]
    [merged], groups = image_groups([window(*names, "text")])
    assert groups == ["image"]
    assert merged.roles == ("image",) * 9 + ("text",)
    assert image_groups([window(*names[:8], "text")])[1] == names[:8]
    assert image_groups([window("text")])[1] == []


def test_texts_and_chats_may_stand_together():
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
