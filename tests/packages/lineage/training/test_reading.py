"""Batches hold every pair once and fit their budget; subwords at random, as often as BPE-dropout says."""

from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attnscope import AttnscopeError
from attnscope_lineage.alignment import best_aligning_head
from attnscope_lineage.config import read_config
from attnscope_lineage.data import (
    Segmenter,
    collate,
    encode_lines,
    encode_pairs,
    epoch_batches,
    read_data,
    split_batch,
    train_subwords,
)
from attnscope_lineage.models.configs import RecurrentConfig
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.parallel_text import ParallelText, generate_task, read_lines
from tests.packages.lineage.translation.small_translators import Reordering
from tests.packages.lineage.translation.test_vocabulary import HARD, TEXTS

# --- batches hold every pair once and fit their budget; subwords at random, as often as BPE-dropout says ---


def some_lengths(pairs=3000, seed=0):
    generator = np.random.default_rng(seed)
    source = generator.poisson(14, pairs) + 2
    return np.stack([source, np.maximum(1, source + generator.integers(-4, 6, pairs))], axis=1)


@pytest.mark.parametrize("budget", [1, 60, 1000, 10**9])
def test_every_pair_is_in_one_batch_and_every_batch_fits(budget):
    lengths = some_lengths()
    batches = epoch_batches(lengths, budget, 0, 0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        longer = lengths[batch].max(1)
        assert len(batch) == 1 or longer.sum() <= budget
        assert len(batch) == 1 or len(batch) * longer.max() <= 1.25 * budget


def test_batches_are_a_function_of_seed_and_epoch():
    lengths = some_lengths()

    def batches(seed, epoch):
        return [batch.tolist() for batch in epoch_batches(lengths, 500, seed, epoch)]

    assert batches(3, 1) == batches(3, 1)
    assert batches(3, 1) != batches(3, 2)
    assert batches(3, 1) != batches(4, 1)
    assert sorted(map(sorted, batches(3, 1))) != sorted(map(sorted, batches(3, 2)))  # other neighbours too


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_processes_share_the_batch_of_one(world):
    lengths = some_lengths()
    for batch in epoch_batches(lengths, 800, 0, 0):
        parts = split_batch(batch, lengths, world)
        assert len(parts) == world
        np.testing.assert_array_equal(np.concatenate(parts), batch)
        tokens = [int(lengths[part].max(1).sum()) for part in parts]
        assert max(tokens) - min(tokens) < 2 * lengths[batch].max()


def test_padding_is_on_the_right():
    batch = collate([[5], [6, 7, 2]], [[8, 2], [2]], pad_id=9)
    torch.testing.assert_close(batch["input_ids"], torch.tensor([[5, 9, 9], [6, 7, 2]]))
    torch.testing.assert_close(batch["attention_mask"], torch.tensor([[1, 0, 0], [1, 1, 1]]))
    torch.testing.assert_close(batch["labels"], torch.tensor([[8, 2], [2, -100]]))
    assert set(collate([[5]])) == {"input_ids", "attention_mask"}


def test_pairs_that_are_too_long_are_left_out_whole_and_counted():
    text = ParallelText(["a", "a " * 20, "b", "c"], ["a", "b", "b " * 20, "d"], {"empty source": 2})
    tokenizer = train_subwords([*text.source, *text.target], 300)
    encoded = encode_pairs(tokenizer, text, longest=5)
    assert encoded.index == [0, 3]
    assert encoded.left_out == {"empty source": 2, "too long": 2}
    assert encoded.source == encode_lines(tokenizer, ["a", "c"])
    assert encoded.target == encode_lines(tokenizer, ["a", "d"])
    np.testing.assert_array_equal(encoded.lengths(), [[2, 2], [2, 2]])
    assert encode_pairs(tokenizer, text).index == [0, 1, 2, 3]


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


# --- error rates against known alignments, with models that look where they were planted to look ---


@pytest.fixture(scope="module")
def text():
    return generate_task(40, seed=3, longest=15, shortest=4)


@pytest.fixture(scope="module")
def tokenizer(text):
    made = train_subwords([*text.source, *text.target], 1000)  # every word is one token
    made.model_max_length = 40
    return made


class Planted(Reordering):
    """Layer 1, head 0 looks at the known source word, but for the last `wrong` target words; others look at </s>."""

    def __init__(self, text, tokenizer, wrong=0):
        super().__init__()
        ids = tokenizer(text.source)["input_ids"]
        self.known = {tuple(one): {by: at for at, by in links} for one, links in zip(ids, text.alignments, strict=True)}
        self.wrong = wrong

    def planted(self, input_ids, attention_mask, n):
        batch, m = input_ids.shape
        weights = torch.zeros(2, batch, 2, n, m)
        for i in range(batch):
            end = int(attention_mask[i].sum())
            weights[:, i, :, :, end - 1] = 1
            known = self.known[tuple(input_ids[i, :end].tolist())]
            for by, at in known.items():
                seen = at if by < len(known) - self.wrong else (at + 1) % (end - 1)
                weights[1, i, 0, by] = torch.eye(m)[seen]
        return weights


def test_the_planted_head_is_found_and_has_no_error(text, tokenizer):
    found = best_aligning_head(Planted(text, tokenizer), tokenizer, text)
    assert (found.layer, found.head, found.scores["error_rate"]) == (1, 0, 0)
    assert found.scores["links"] == sum(len(links) for links in text.alignments[1::2])


def test_a_fixed_vector_has_no_alignment(text, tokenizer):
    sizes = {"vocab_size": len(tokenizer), "embedding_width": 4, "encoder_width": 3, "decoder_width": 6}
    model = RecurrentForConditionalGeneration(RecurrentConfig(attention="none", **sizes))
    assert best_aligning_head(model, tokenizer, text) is None


def test_short_and_long_batches_come_mixed():
    lengths = some_lengths(20_000)
    means = np.array([lengths[batch].mean() for batch in epoch_batches(lengths, 500, 0, 0)])
    # neighbours in the list are independent: the correlation of n pairs stays within 4 / sqrt(n)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 4 / np.sqrt(len(means))


def test_a_text_of_long_pairs_alone_is_rejected():
    text = ParallelText(["a b c"], ["d e f"])
    with pytest.raises(AttnscopeError, match="found no pair of at most 2 tokens per side among 1"):
        encode_pairs(train_subwords(text.source, 300), text, longest=2)
