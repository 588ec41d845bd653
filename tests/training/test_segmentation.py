"""Subwords at random: without dropout those of the tokenizer, with it as often as algorithm 1 says, never by state."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attnscope.lineage.config import read_config
from attnscope.lineage.data import Segmenter, encode_lines, read_data, train_subwords
from attnscope.lineage.parallel_text import read_lines
from tests.translation.test_vocabulary import HARD, TEXTS


@pytest.mark.parametrize("files", [("multi30k", "en", "de"), ("enja", "en", "ja")], ids=lambda names: names[0])
def test_without_dropout_it_is_the_tokenizer(files, data):
    folder, *languages = files
    lines = [line for language in languages for line in read_lines(data / folder / f"train.{language}")[:400]]
    tokenizer = train_subwords(lines[::2], 1500, coverage=0.99)
    plain = encode_lines(tokenizer, lines)
    assert any(4 <= token < 260 for line in plain for token in line)  # bytes
    segmenter = Segmenter(tokenizer, 0.0)
    assert [segmenter.encode(line, Random(0)) for line in lines] == plain


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("text", HARD)
def test_text_is_given_back_however_it_is_cut(text, dropout):
    tokenizer = train_subwords(TEXTS, 400)
    ids = Segmenter(tokenizer, dropout).encode(text, Random(0))
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def planted(merges):
    """A tokenizer that knows a, b, c and these merges, in the order in which they were learned."""
    names = ["</s>", "▁", "a", "b", "c", *("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


@pytest.mark.parametrize(
    ("merges", "shares"),
    [
        # the second merge has its turn only where the first is left out
        ([("a", "b"), ("b", "c")], {"ab c": 0.7, "a bc": 0.3 * 0.7, "a b c": 0.3**2}),
        # one that was left out has another turn after each merge that is made
        (
            [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")],
            {"abc": 0.7**2 + 0.3 * 0.7**2, "a bc": 0.7 * 0.3, "ab c": 0.3 * 0.7 * 0.3, "a b c": 0.3**2},
        ),
    ],
)
def test_merges_are_left_out_as_often_as_they_should_be(merges, shares):
    tokenizer, count = planted(merges), 20_000
    segmenter, draw = Segmenter(tokenizer, 0.3), Random(0)
    found = Counter(
        " ".join(tokenizer.convert_ids_to_tokens(segmenter.encode("abc", draw)[1:-1])) for _ in range(count)
    )
    assert sum(shares.values()) == pytest.approx(1)
    assert found.keys() == shares.keys()
    for name, share in shares.items():
        assert abs(found[name] - share * count) < 4 * np.sqrt(share * (1 - share) * count)


def pairs(tmp_path, **settings):
    lines = ["The tide comes in twice a day, and twice a day it goes out again.", "A tide."] * 30
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(lines))
    files = {"source": tmp_path / "source", "target": tmp_path / "target"}
    return read_data(read_config(**files, vocabulary=320, **settings))


def rows(parts):
    """Tokens of each pair, without padding."""
    return [
        (source[mask > 0].tolist(), target[target >= 0].tolist())
        for part in parts
        if part is not None
        for source, mask, target in zip(part["input_ids"], part["attention_mask"], part["labels"], strict=True)
    ]


def test_a_pair_is_cut_by_the_seed_and_itself_alone(tmp_path):
    material, members = pairs(tmp_path, bpe_dropout=0.1), np.arange(20)
    once = rows(material.parts(members, 1, 7))
    assert rows(material.parts(members, 3, 7)) == once
    assert rows(material.parts(members[::-1], 1, 7)) == once[::-1]
    assert rows(pairs(tmp_path, bpe_dropout=0.1).parts(members[5:], 1, 7)) == once[5:]
    assert rows(material.parts(members, 1, 8)) != once
    assert len({tuple(source) for source, _ in once[::2]}) > 5  # of ten times the same sentence
    assert sum(source != target for source, target in once) > 5  # which stands on both sides
    decoded = [material.tokenizer.decode(source, skip_special_tokens=True) for source, _ in once]
    assert decoded == material.text.source[:20]


def test_a_pair_that_would_be_too_long_is_cut_as_the_tokenizer_does_it(tmp_path):
    plain = pairs(tmp_path)
    longest = int(plain.lengths.max()) + 1
    material = pairs(tmp_path, bpe_dropout=1.0, longest=longest)
    found = rows(material.parts(np.arange(2), 1, 0))
    assert found[0] == (plain.train.source[0], plain.train.target[0])
    assert len(found[1][0]) > len(plain.train.source[1])


def test_the_plan_and_the_validation_know_no_dropout(tmp_path):
    plain, dropped = pairs(tmp_path), pairs(tmp_path, bpe_dropout=0.5)
    assert [rows([batch]) for batch in dropped.validation()] == [rows([batch]) for batch in plain.validation()]
    assert list(map(list, dropped.epoch(0))) == list(map(list, plain.epoch(0)))
    assert dropped.sha256() == plain.sha256()
