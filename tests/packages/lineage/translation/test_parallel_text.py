"""What parallel text is read from; the generated task: both sides say the same, and its links are right."""

import json
from collections import Counter

import pytest

from attnscope.support.errors import AttnscopeError
from attnscope_lineage.data import train_subwords
from attnscope_lineage.parallel_text import ParallelText, generate_task, read_parallel


@pytest.fixture
def write(tmp_path):
    def put(name, data):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    return put


def pairs(*arguments, **options):
    text = read_parallel(*arguments, **options)
    return list(zip(text.source, text.target, strict=True))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (b"one\ntwo\n", b"eins\nzwei\n"),
        (b"one\r\ntwo\r\n", b"eins\nzwei"),
        (b"\xef\xbb\xbfone\ntwo", b"\xef\xbb\xbfeins\r\nzwei"),
        (b" one\t\ntwo ", b"eins \n\xe3\x80\x80zwei"),
    ],
)
def test_line_ends_marks_and_outer_white_space_do_not_matter(write, source, target):
    assert pairs(write("s", source), write("t", target)) == [("one", "eins"), ("two", "zwei")]


def test_pairs_with_an_empty_side_are_left_out_and_counted(write):
    text = read_parallel(write("s", b"a\n\nb\n \nc\n\n"), write("t", b"1\n2\n\n4\n5\n\n"))
    assert (text.source, text.target) == (["a", "c"], ["1", "5"])
    assert text.left_out == {"empty source": 2, "empty target": 1, "both empty": 1}


def test_json_lines(write):
    lines = [{"source": "a", "target": "1"}, {"source": "", "target": "2"}]
    data = "\n\n".join(map(json.dumps, lines)).encode()
    assert read_parallel(write("x.jsonl", data)) == ParallelText(["a"], ["1"], {"empty source": 1})
    assert pairs(write("y.jsonl", b'{"de": "1", "en": "a"}'), sides=("en", "de")) == [("a", "1")]


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"s": b"a\nb\n", "t": b"1\n"}, ("s", "t"), r"s has 2 lines and .*t 1; expected equal numbers"),
        ({"s": b"a\nb\xff", "t": b"1\n2"}, ("s", "t"), r"s: found byte 0xff at byte offset 3"),
        ({"s": "a".encode("utf-16"), "t": b"1"}, ("s", "t"), r"s: .*\n.*iconv -f utf-16"),
        ({"s": b"\n", "t": b"1"}, ("s", "t"), r"no pair of lines \(dropped for an empty side: 1\)"),
        ({"s": b"", "t": b""}, ("s", "t"), r"no pair of lines"),
        ({"s": b"a"}, ("s", "t"), r"t: no such file or folder"),
        ({"s": b"a"}, ("s",), r"found one text file; expected two"),
        ({"s": b"a", "f/t": b"a"}, ("s", "f"), r"f: found a folder; expected a file"),
        (
            {"x.jsonl": b'{"source": "a"}'},
            ("x.jsonl",),
            r"line 1: no field 'target'; .* Choose one as `sides` \(--sides\)$",
        ),
        ({"x.jsonl": b'{"source": "a", "target": 1}'}, ("x.jsonl",), r"line 1: field 'target' has a JSON num"),
        ({"x.jsonl": b'\n{"source"'}, ("x.jsonl",), r"x.jsonl, line 2: not JSON"),
        ({"x.jsonl": b"{}\n\xff"}, ("x.jsonl",), r"x.jsonl, line 1: no field"),
        ({"x.jsonl": b"\n\xff"}, ("x.jsonl",), r"x.jsonl, line 2: found byte 0xff at byte offset 1"),
        ({"x.jsonl": b'{"source": "\\ud800", "target": "1"}'}, ("x.jsonl",), r"line 1: found a lone surrogate"),
    ],
)
def test_errors_name_file_and_line(write, tmp_path, files, arguments, message):
    for name, data in files.items():
        write(name, data)
    with pytest.raises(AttnscopeError, match=message):
        read_parallel(*(tmp_path / name for name in arguments))


@pytest.mark.parametrize("most", [1, 2, 5])
def test_joining_loses_nothing_and_keeps_the_order(most):
    text = ParallelText([f"s{i}" for i in range(300)], [f"t{i} u" for i in range(300)], {"empty source": 3})
    joined = text.joined(most, seed=1)
    assert " ".join(joined.source) == " ".join(text.source)
    assert " ".join(joined.target) == " ".join(text.target)
    counts = Counter(len(line.split()) for line in joined.source[:-1])  # the last one takes what is left
    assert set(counts) == set(range(1, most + 1))
    assert [len(line.split()) for line in joined.target] == [2 * len(line.split()) for line in joined.source]
    assert joined.left_out == text.left_out
    assert joined == text.joined(most, seed=1)
    assert most == 1 or joined != text.joined(most, seed=2)


ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
TEENS = ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ENGLISH = {word: value for value, word in enumerate([*ONES, *TEENS], 1)}
ENGLISH |= {word: value for value, word in zip(range(20, 100, 10), TENS, strict=True)}


@pytest.fixture(scope="module")
def task():
    return generate_task(1000, seed=5, longest=30)


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
