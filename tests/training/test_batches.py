"""Batches hold every pair once, fit their budget, waste little, and do not depend on the number of processes."""

import numpy as np
import pytest
import torch

from attnscope.lineage.data import collate, encode_lines, encode_pairs, epoch_batches, split_batch, train_subwords
from attnscope.lineage.parallel_text import ParallelText, read_parallel
from attnscope.support.errors import AttnscopeError


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


def test_short_and_long_batches_come_mixed():
    lengths = some_lengths(20_000)
    means = np.array([lengths[batch].mean() for batch in epoch_batches(lengths, 500, 0, 0)])
    # neighbours in the list are independent: the correlation of n pairs stays within 4 / sqrt(n)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 4 / np.sqrt(len(means))


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


def test_a_text_of_long_pairs_alone_is_refused():
    text = ParallelText(["a b c"], ["d e f"])
    with pytest.raises(AttnscopeError, match="every one of 1 pairs has more than 2 tokens"):
        encode_pairs(train_subwords(text.source, 300), text, longest=2)


@pytest.mark.slow
def test_multi30k_is_nearly_all_tokens(data):
    text = read_parallel(data / "multi30k" / "train.en", data / "multi30k" / "train.de")
    lengths = encode_pairs(train_subwords([*text.source, *text.target], 8000), text).lengths()
    for budget in (2048, 8192):
        batches = epoch_batches(lengths, budget, 0, 0)
        cells = sum(len(batch) * int(lengths[batch].max(0).sum()) for batch in batches)
        assert lengths.sum() > 0.95 * cells
        assert sum(len(batch) for batch in batches) == 29_000
