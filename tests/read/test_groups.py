"""Rules that put tokens into groups."""

import pytest

from attnscope import AttnscopeError
from attnscope.read.groups import grouping_of, kinds_of
from attnscope.read.windows import Window


def window_of(*tokens, special=()):
    marks = tuple(token in special for token in tokens)
    return Window((0,) * len(tokens), marks, ((0, 0),) * len(tokens), "text 1", 0, tokens)


@pytest.mark.parametrize(
    ("tokens", "types"),
    [
        ((" The", " tid", "es"), ["word start", "word start", "word rest"]),
        (("“", "The"), ["punctuation", "word start"]),
        ((" 12", ",", "3", " x1"), ["number", "punctuation", "number", "word start"]),
        (("猫₁", "猫₂", "は"), ["word start", "word rest", "word rest"]),
        (("😀₁", "😀₂"), ["punctuation", "punctuation"]),
        (("न", "◌ी"), ["word start", "word rest"]),
        (("\n", "", "it"), ["space", "space", "word start"]),
    ],
)
def test_types_follow_from_characters(tokens, types):
    assert kinds_of(window_of(*tokens)) == types


def groups_of(path, window):
    grouping = grouping_of(path)
    return [grouping.names[number] for number in grouping.marked(window).groups]


def test_the_first_line_with_a_token_names_its_group(tmp_path):
    path = tmp_path / "rules.jsonl"
    path.write_text(
        '{"group": "he", "tokens": ["he", " him"]}\n'
        '{"group": "words", "types": ["word start"]}\n'
        '{"group": "never", "tokens": ["he", "out"]}\n'
        '{"group": "he", "tokens": ["s"], "types": ["special"]}\n'
    )
    window = window_of("<s>", " he", " out", "s", "him", ".", special={"<s>"})
    assert groups_of(path, window) == ["he", "he", "words", "he", "he", "other"]
    assert grouping_of(path).names == ("he", "words", "never", "other")


def test_other_rules_have_another_signature(tmp_path):
    path = tmp_path / "rules.jsonl"
    path.write_text('{"group": "he", "tokens": ["he"]}')
    first = grouping_of(path).signature
    path.write_text('{"group": "he", "tokens": ["she"]}')
    assert grouping_of(path).signature != first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"group": "he"}', "line 1: expected a group, and a list of its tokens or types"),
        ('{"group": "he", "tokens": "he"}', "expected a group, and a list of its tokens"),
        ('{"group": "he", "types": ["verb"]}', "there is no token type 'verb'; choose from special"),
        ('{"group": "he", "tokens": ["he"], "regex": "h.*"}', "found 'regex' too"),
        ('{"group": " ", "tokens": ["he"]}', "a group has the name ' '"),
        ("", "found no rule"),
        ("he", "not JSON"),
    ],
)
def test_what_is_no_rule_is_rejected(tmp_path, line, message):
    path = tmp_path / "rules.jsonl"
    path.write_text(line)
    with pytest.raises(AttnscopeError, match=message) as caught:
        grouping_of(path)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_function_that_changes_its_mind_is_rejected():
    window = window_of("a", "b")
    answers = iter([["x", "y"], ["x", "z"]])
    grouping = grouping_of(lambda tokens: next(answers)).over([window])
    with pytest.raises(AttnscopeError, match=r"returned 'z' for window 1 .* only the second time"):
        grouping.marked(window)
