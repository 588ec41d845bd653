"""Which tokens make a word."""

import json

import pytest

from attnscope import AttnscopeError
from attnscope.read.groups import grouping_of
from attnscope.read.windows import Window
from attnscope.read.words import WordedWindows, in_words, word_rule_of

TEXT = "The muddy flats, 語 too"
SPANS = ((0, 0), (0, 3), (3, 7), (7, 9), (9, 15), (15, 16), (17, 18), (17, 18), (17, 18), (18, 22), (22, 22))
SHOWN = ("<s>", "The", " mud", "dy", " flats", ",", " 語₁", "語₂", "語₃", " too", "</s>")


def window_of(text=TEXT, spans=SPANS, shown=SHOWN):
    special = tuple(token in {"<s>", "</s>"} for token in shown)
    return Window(tuple(range(len(spans))), special, tuple(spans), "text 1", 0, tuple(shown), text=text)


def worded(rule, window=None):
    [found] = WordedWindows([window or window_of()], word_rule_of(rule))
    return found


def test_tokens_of_a_word_have_its_number_and_those_of_none_their_own():
    assert worded("unicode").words == (0, 1, 2, 2, 3, 4, 5, 5, 5, 6, 7)
    assert worded("space").words == (0, 1, 2, 2, 3, 3, 4, 4, 4, 5, 6)
    assert worded(lambda text: [(4, 9), (17, 18)]).words == (0, 1, 2, 2, 3, 4, 5, 5, 5, 6, 7)


def test_a_window_by_words_shows_whole_words():
    found = in_words(worded("unicode"))
    assert found.tokens == ("<s>", "The", " muddy", " flats", ",", " 語", " too", "</s>")
    assert found.ids == (0, 1, 2, 4, 5, 6, 9, 10)
    assert found.special == (True, *[False] * 6, True)
    assert found.spans[2] == (3, 9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 1.5 m", ["It's", "1.5", "m"]),
        ("e-mail, 👍🏽!", ["e", "-", "mail", ",", "👍🏽", "!"]),
        ("カタカナと 東京", ["カタカナ", "と", "東", "京"]),
        ("naïve\n\n  x", ["naïve", "x"]),
        ("", []),
    ],
)
def test_words_of_the_unicode_standard(text, words):
    assert [text[start:end] for start, end in word_rule_of("unicode").spans(text)] == words


def test_a_token_over_two_words_counts_to_the_first_and_is_counted():
    windows = WordedWindows([window_of()], word_rule_of(lambda text: [(0, 5), (5, 9), (9, 12), (12, 14)]))
    [found] = windows
    assert found.words == (0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9)  # " mud" begins in the first, "dy" in the second
    assert (windows.across, windows.tokens) == (2, 11)


@pytest.mark.parametrize(
    ("text", "spans", "shown", "words"),
    [
        ("a  tide\n\nb", ((0, 1), (1, 3), (3, 7), (7, 9), (9, 10)), ("a", "  ", "tide", "\n\n", "b"), (0, 1, 1, 2, 3)),
        ("潮は", ((0, 0), (0, 0), (0, 1), (1, 2)), ("<s>", " ", "潮", "は"), (0, 1, 1, 2)),  # a space put in
        ("潮は", ((0, 1), (1, 1), (1, 1)), ("潮", " ", "</s>"), (0, 1, 2)),
    ],
)
def test_a_space_belongs_to_what_follows(text, spans, shown, words):
    assert worded("unicode", window_of(text, spans, shown)).words == words


def test_words_are_in_groups_as_tokens_are():
    window = grouping_of(lambda words: [str(len(word.strip())) for word in words]).over([worded("unicode")])
    marked = window.marked(worded("unicode"))
    assert len(marked.groups) == len(SPANS)
    names = [window.names[number] for number in in_words(marked).groups]
    assert names == ["3", "3", "5", "5", "1", "1", "3", "4"]


def test_a_file_of_spans(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"text": TEXT, "spans": [[0, 3], [4, 15]]}) + "\n")
    assert worded(path).words == (0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8)
    before = word_rule_of(path).signature
    path.write_text(json.dumps({"text": TEXT, "spans": [[0, 3], [4, 16]]}) + "\n")
    assert word_rule_of(path).signature != before
    with pytest.raises(AttnscopeError, match="has no spans for the text 'Another one'"):
        worded(path, window_of("Another one", ((0, 7),), ("Another",)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', "line 1: expected a text and its spans, such as"),
        ('{"text": 3, "spans": []}', "expected a text and its spans"),
        ('{"text": "a", "spans": [[0, 1]]}\n{"text": "a", "spans": []}', "line 2: has other spans for the text"),
    ],
)
def test_what_is_no_file_of_spans_is_rejected(tmp_path, line, message):
    path = tmp_path / "spans.jsonl"
    path.write_text(line)
    with pytest.raises(AttnscopeError, match=message) as caught:
        word_rule_of(path)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 99)], "have the span 0 to 99; expected spans in order"),
        ([(0, 5), (4, 9)], "have the span 4 to 9"),
        ([(3, 3)], "have the span 3 to 3"),
        ([(0, 3, 1)], "expected pairs of first character"),
        (None, "are None; expected pairs"),
    ],
)
def test_invalid_spans_and_token_ids_are_rejected(spans, message):
    with pytest.raises(AttnscopeError, match=message):
        worded(lambda text: spans)
    with pytest.raises(AttnscopeError, match="has no words, as the characters of its tokens are unknown"):
        worded("space", window_of("", ((0, 0),), ("a",)))
