"""Positions: the identities B1, B2 and B5 of sinusoids and rotations; slopes, buckets and biases against peers."""

import pytest
import torch
from torch.testing import assert_close
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from attnscope import AttnscopeError
from attnscope.kernels.positions import (
    LearnedPositions,
    Rotation,
    alibi_bias,
    alibi_slopes,
    offsets,
    rotation,
    sinusoidal_table,
    t5_buckets,
)
from attnscope.kernels.reference import causal_mask
from attnscope_lineage.head_walk import layout_permutation, sinusoidal_shift


def test_b1_sinusoids_turn_with_the_position():
    table = sinusoidal_table(200, 64)
    for k in (-3, 1, 17):
        matrix = sinusoidal_shift(k, 64)
        assert_close(matrix @ matrix.T, torch.eye(64, dtype=torch.float64))
        assert_close(table[50:100] @ matrix.T, table[50 + k : 100 + k], atol=1e-12, rtol=0)
    product = sinusoidal_shift(3, 64) @ sinusoidal_shift(4, 64)
    assert_close(product, sinusoidal_shift(7, 64), atol=1e-12, rtol=0)
    assert sinusoidal_table(5, 7).shape == (5, 7)


def test_b2_products_of_sinusoids_are_toeplitz_and_symmetric():
    table = sinusoidal_table(100, 64)
    products = table @ table.T
    rates = 10000.0 ** (-2 * torch.arange(32, dtype=torch.float64) / 64)
    expected = (rates * offsets(100, 100)[..., None]).cos().sum(-1)
    assert_close(products, expected, atol=1e-11, rtol=0)
    assert float(products.max()) == pytest.approx(32)


def test_b5_layouts_differ_by_a_permutation():
    x = torch.randn(10, 8, dtype=torch.float64)
    order = layout_permutation(8)
    half, pairs = (rotation(10, 8, layout=layout) for layout in ("half", "pairs"))
    assert_close(half(x[:, order]), pairs(x)[:, order])
    assert not torch.allclose(half(x), pairs(x))
    with pytest.raises(AttnscopeError, match="layout 'neox' is not known"):
        rotation(10, 8, layout="neox")


@pytest.mark.parametrize("layout", ["half", "pairs"])
def test_a_rotation_may_start_later(layout):
    turn, x = rotation(10, 8, layout=layout), torch.randn(2, 10, 8, dtype=torch.float64)
    assert_close(turn.at(x[:, 6:], 6), turn(x)[:, 6:])
    with pytest.raises(AttnscopeError, match="found 4 positions"):
        turn.at(x[:, 6:], 7)


def test_learned_positions_end_with_their_table():
    table = LearnedPositions(6, 4)
    assert_close(table(2, start=3), table.weight[3:5])
    with pytest.raises(AttnscopeError, match="found 7 positions; the table was trained for 6"):
        table(3, start=4)
    with pytest.raises(AttnscopeError, match="found start=-1; expected 0 or more"):
        table(2, start=-1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: sinusoidal_table(5, 0), "found width=0; expected 1 or more"),
        (lambda: alibi_bias(0, 2, 2), "found heads=0; expected 1 or more"),
        (lambda: t5_buckets(offsets(2, 2), buckets=2), "found 1 buckets a side and farthest=128; expected 2"),
        (lambda: t5_buckets(offsets(2, 2), farthest=8), "found 16 buckets a side and farthest=8"),
    ],
)
def test_sizes_that_mean_nothing_are_rejected(wrong, says):
    with pytest.raises(AttnscopeError, match=says):
        wrong()


@pytest.mark.parametrize("heads", [6, 16])
def test_alibi_is_that_of_bloom(heads):
    theirs = build_alibi_tensor(torch.ones(1, 7), heads, torch.float32)  # grows with the key, per head
    assert_close(alibi_slopes(heads), theirs[:, 0, 1].double(), rtol=1e-6, atol=0)
    seen = causal_mask(3, 3)
    mine = alibi_bias(heads, 3, 7)[:, :, 4:].masked_fill(~seen, -torch.inf).softmax(-1)
    bloom = theirs[:, :, 4:].double().expand(-1, 3, -1).masked_fill(~seen, -torch.inf).softmax(-1)
    assert_close(mine, bloom, atol=1e-6, rtol=0)  # a softmax is blind to what is constant along a row


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets", [8, 32])
@pytest.mark.parametrize("farthest", [20, 1000])
def test_buckets_are_those_of_t5(bidirectional, buckets, farthest):
    offset = torch.arange(-1500, 1501)
    theirs = T5Attention._relative_position_bucket(offset, bidirectional, buckets, farthest)
    mine = t5_buckets(offset, bidirectional=bidirectional, buckets=buckets, farthest=farthest)
    assert torch.equal(mine, theirs)


def test_a_rotation_keeps_some_pairs_and_is_undone():
    turn, x = rotation(10, 8), torch.randn(10, 8, dtype=torch.float64)
    everything = torch.ones(4, dtype=torch.bool)
    assert_close(turn.keep(everything)(x), turn(x))
    assert_close(turn.keep(~everything)(x), x)
    scaled = Rotation(1.5 * turn.cos, 1.5 * turn.sin, "half")  # as YaRN does
    assert_close(scaled.undo(scaled(x)), x)
    assert_close(scaled.keep(~everything)(x), 1.5 * x)
    with pytest.raises(AttnscopeError, match="found 11 positions"):
        turn(torch.zeros(11, 8))
    with pytest.raises(AttnscopeError, match="one position shows no rotation"):
        rotation(1, 8).rates  # noqa: B018
