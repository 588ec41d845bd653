"""Efficient forms against the same thing written out, and at a length where writing out is impossible."""

import pytest
import torch
from torch.testing import assert_close

from attnscope import AttnscopeError
from attnscope.kernels.reference import attend, causal_mask, window_mask
from attnscope_lineage.efficient import (
    block_sparse_attention,
    block_sparse_mask,
    linear_attention,
    sliding_window_attention,
)
from tests.kernels.largest_tensor import Largest


def states(*shape, seed=0, count=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("length", [1, 33, 100])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (5, 2), (200, 200)])
def test_a_sliding_window_is_attention_under_its_mask(length, left, right):
    query, key, value = states(2, 3, length, 4)
    expected, _ = attend(query, key, value, window_mask(length, length, left=left, right=right))
    assert_close(sliding_window_attention(query, key, value, left=left, right=right), expected)


@pytest.mark.parametrize(("queries", "keys"), [(70, 20), (20, 70)])
def test_a_sliding_window_over_another_text(queries, keys):
    (query,), (key, value) = states(queries, 4, count=1), states(keys, 4, count=2)
    expected, _ = attend(query, key, value, window_mask(queries, keys, left=3, right=3))
    assert_close(sliding_window_attention(query, key, value, left=3, right=3), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("global_tokens", [[], [0, 7, 39], list(range(40))])
@pytest.mark.parametrize(("block", "neighbours"), [(1, 0), (1, 2), (8, 1), (7, 2), (64, 1)])
def test_block_sparse_is_attention_under_its_mask(block, neighbours, global_tokens, causal):
    query, key, value = states(2, 40, 4)
    options = {"block": block, "neighbours": neighbours, "global_tokens": global_tokens, "causal": causal}
    mask = block_sparse_mask(40, **options)
    assert_close(block_sparse_attention(query, key, value, **options), attend(query, key, value, mask)[0])


def test_the_mask_of_blocks_is_who_sees_whom():
    mask = block_sparse_mask(30, block=4, neighbours=1, global_tokens=[17])
    for i in range(30):
        for j in range(30):
            assert mask[i, j] == (abs(i // 4 - j // 4) <= 1 or 17 in {i, j})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 64, 100])
def test_linear_attention_is_its_weights_written_out(length, causal):
    query, key, value = states(2, length, 4)
    features = [torch.where(x > 0, x + 1, torch.exp(x)) for x in (query, key)]
    products = features[0] @ features[1].mT
    if causal:
        products = products * causal_mask(length, length)
    assert_close(linear_attention(query, key, value, causal=causal), products / products.sum(-1, True) @ value)


@pytest.mark.parametrize(
    "form",
    [
        lambda q, k, v: sliding_window_attention(q, k, v, left=64),
        lambda q, k, v: block_sparse_attention(q, k, v, block=64, global_tokens=[0, 1]),
        lambda q, k, v: linear_attention(q, k, v, causal=True),
    ],
)
def test_gradients_are_those_of_the_same_sums_written_out(form):
    inputs = [x.requires_grad_() for x in states(9, 3)]
    assert torch.autograd.gradcheck(form, inputs)


class TestLongTexts:
    """100,000 tokens: one float32 matrix of all pairs would take 37 GiB."""

    LENGTH = 100_000

    def inputs(self):
        return [x.float() for x in states(self.LENGTH, 8)]

    def test_a_window_of_64(self):
        query, key, value = self.inputs()
        with Largest() as largest:
            found = sliding_window_attention(query, key, value, left=64)
        assert largest.numbers <= 2 * 65 * (self.LENGTH + 64)
        for i in (0, 63, 64, 50_000, self.LENGTH - 1):
            seen = slice(max(0, i - 64), i + 1)
            expected, _ = attend(query[i : i + 1], key[seen], value[seen])
            assert_close(found[i : i + 1], expected, atol=1e-6, rtol=1e-5)

    def test_blocks_and_a_global_token(self):
        query, key, value = self.inputs()
        with Largest() as largest:
            found = block_sparse_attention(query, key, value, block=32)
        assert largest.numbers <= (3 * 32 + 1) * (self.LENGTH + 32)
        assert_close(found[:1], attend(query[:1], key, value)[0], atol=1e-6, rtol=1e-4)
        seen = torch.tensor([0, *range(self.LENGTH - 64, self.LENGTH)])
        assert_close(found[-1:], attend(query[-1:], key[seen], value[seen])[0], atol=1e-6, rtol=1e-5)

    @pytest.mark.parametrize("causal", [False, True])
    def test_linear(self, causal):
        query, key, value = self.inputs()
        with Largest() as largest:
            found = linear_attention(query, key, value, causal=causal)
        assert largest.numbers <= 64 * (self.LENGTH + 64)
        weights = torch.where(key > 0, key + 1, key.exp()) @ torch.where(query > 0, query + 1, query.exp())[-1]
        assert_close(found[-1], weights @ value / weights.sum(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x: sliding_window_attention(x, x, x, left=-1), "expected two numbers of 0 or more"),
        (lambda x: block_sparse_attention(x, x, x, block=0), "expected at least 1 token"),
        (lambda x: block_sparse_attention(x, x, x, block=2, global_tokens=[5]), "positions go from 0 to 4"),
        (lambda x: linear_attention(x[:2], x, x, causal=True), "found 2 queries and 5 keys"),
        (lambda x: block_sparse_attention(x, x[:, :2], x, block=2), "query is 3 wide and key 2"),
        (lambda x: linear_attention(x, x, x[:4]), "there are 5 keys and 4 values"),
    ],
)
def test_bad_input(wrong, says):
    with pytest.raises(AttnscopeError, match=says):
        wrong(torch.zeros(5, 3))
