"""The generated task: both sides say the same, the links are right, and what is held out stays unseen."""

import calendar

import pytest

from attnscope.lineage.data import train_subwords
from attnscope.lineage.parallel_text import generate_task
from attnscope.support.errors import AttnscopeError

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
TEENS = ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ENGLISH = {word: value for value, word in enumerate([*ONES, *TEENS], 1)}
ENGLISH |= {word: value for value, word in zip(range(20, 100, 10), TENS, strict=True)}
MONTHS = [name.lower() for name in calendar.month_name[1:]]
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]


@pytest.fixture(scope="module")
def task():
    return generate_task(1000, seed=5, longest=30)


def english_number(words):
    """Value of a number in English words."""
    value = group = 0
    for word in words:
        if word == "hundred":
            group *= 100
        elif word == "thousand":
            value, group = value + 1000 * group, 0
        elif word != "and":
            group += ENGLISH[word]
    return value + group


def notation_number(words):
    """Value of a number in the notation, where a hundred and a thousand multiply what stands before them."""
    value = 0
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word not in {"100", "1000"}:
            value += int(word) * (int(following) if following in {"100", "1000"} else 1)
    return value


def english_item(words):
    if not words[0].endswith("day"):
        return english_number(words)
    month = MONTHS.index(words[1])
    rest = words[2:]
    # the century, 17 to 19, is the last teen but for a teen in the last place
    century = max(i for i, word in enumerate(rest[:-1]) if word in {"seventeen", "eighteen", "nineteen"})
    return words[0][:2].capitalize(), month, english_number(rest[:century]), english_number(rest[century:])


def notation_item(words):
    if words[-1].isdigit():
        return notation_number(words)
    month = next(i for i, word in enumerate(words) if word in ROMAN)
    day, year = words[:month], words[month + 1 : -1]
    return words[-1], ROMAN.index(words[month]), notation_number(day), notation_number(year)


def items(line):
    return [item.split() for item in line.split(" , ")]


def test_both_sides_say_the_same(task):
    assert len(set(task.source)) == len(task)
    for source, target in zip(task.source, task.target, strict=True):
        assert [english_item(item) for item in items(source)] == [notation_item(item) for item in items(target)]


def test_every_target_word_has_one_source_word_that_means_it(task):
    meanings = {}
    for source, target, links in zip(task.source, task.target, task.alignments, strict=True):
        words, translated = source.split(), target.split()
        assert [at for _, at in links] == list(range(len(translated)))
        places = [place for place, _ in links]
        assert sorted(places) == [place for place, word in enumerate(words) if word != "and"]
        for place, at in links:
            meanings.setdefault(words[place], set()).add(translated[at])
    assert {word: len(found) for word, found in meanings.items()} == dict.fromkeys(meanings, 1)
    assert len(set().union(*meanings.values())) == len(meanings)


def test_the_text_is_a_function_of_its_seed():
    first, again, other = (generate_task(50, seed=seed, longest=9) for seed in (1, 1, 2))
    assert first == again
    assert first.sha256() != other.sha256()


def test_held_out_sentences_are_in_no_training_text():
    trained = {line for seed in range(2) for line in generate_task(400, seed=seed, longest=3).source}
    held_out = {line for seed in range(2) for line in generate_task(40, seed, 3, held_out=True).source}
    assert not trained & held_out


def test_every_word_can_be_one_token(task):
    tokenizer = train_subwords([*task.source, *task.target], 1000)
    for line in [*task.source, *task.target]:
        assert len(tokenizer.tokenize(line)) == len(line.split())


def test_more_sentences_than_there_are_are_rejected():
    with pytest.raises(AttnscopeError, match=r"found only \d+ different sentences of 1 to 1 words; expected 30"):
        generate_task(30, seed=0, longest=1)


def test_joined_sentences_say_the_same_and_their_links_too(task):
    joined = task.joined(4, seed=0)
    assert " , ".join(joined.source) == " , ".join(task.source)
    assert max(len(line.split()) for line in joined.source) > max(len(line.split()) for line in task.source)
    test_both_sides_say_the_same(joined)
    test_every_target_word_has_one_source_word_that_means_it(joined)
