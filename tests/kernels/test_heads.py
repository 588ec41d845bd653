"""Layers of attention against PyTorch's own, against a loop over heads, and with a cache."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import DynamicCache

from attnscope import AttnscopeError
from attnscope.kernels.heads import MultiHeadAttention, SelfAttention
from attnscope.kernels.positions import rotation
from attnscope.kernels.reference import causal_mask, padding_mask

X = torch.randn(2, 7, 12)
MEMORY = torch.randn(2, 5, 12)


def of_pytorch(ours):
    """`torch.nn.MultiheadAttention` with the same weights."""
    theirs = nn.MultiheadAttention(12, ours.heads, batch_first=True)
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([one.weight for one in projections]))
        theirs.in_proj_bias.copy_(torch.cat([one.bias for one in projections]))
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        theirs.out_proj.bias.copy_(ours.out_proj.bias)
    return theirs


@pytest.mark.parametrize("heads", [1, 3, 4])
def test_many_heads_equal_those_of_pytorch(heads):
    ours = MultiHeadAttention(12, heads)
    theirs = of_pytorch(ours)
    valid = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    for memory, mask, arguments in [
        (None, None, {}),
        (MEMORY, None, {}),
        (None, causal_mask(7, 7), {"attn_mask": ~causal_mask(7, 7)}),
        (None, padding_mask(valid), {"key_padding_mask": ~valid}),
    ]:
        output, weights = ours(X, memory, mask)
        other = X if memory is None else memory
        expected, shares = theirs(X, other, other, average_attn_weights=False, **arguments)
        assert_close(output, expected, atol=1e-5, rtol=1e-5)
        assert_close(weights, shares, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sizes", [{}, {"key_width": 5, "value_width": 2}, {"memory_width": 9}])
def test_many_heads_are_a_loop_over_heads(sizes):
    ours = MultiHeadAttention(12, 3, **sizes)
    memory = torch.randn(2, 5, sizes.get("memory_width", 12))
    output, weights = ours(X, memory)
    mixed = []
    for h in range(3):
        k, v = (slice(h * width, (h + 1) * width) for width in (ours.key_width, ours.value_width))
        query = F.linear(X, ours.q_proj.weight[k], ours.q_proj.bias[k])
        key = F.linear(memory, ours.k_proj.weight[k], ours.k_proj.bias[k])
        value = F.linear(memory, ours.v_proj.weight[v], ours.v_proj.bias[v])
        one = torch.softmax(query @ key.mT / ours.key_width**0.5, -1)
        assert_close(weights[:, h], one, atol=1e-5, rtol=1e-5)
        mixed.append(one @ value)
    assert_close(output, ours.out_proj(torch.cat(mixed, -1)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("turn", [None, rotation(7, 4), rotation(7, 4, layout="pairs")])
def test_token_by_token_with_a_cache_is_the_whole_text(turn):
    attention = MultiHeadAttention(12, 3)
    whole, _ = attention(X, mask=causal_mask(7, 7), rotation=turn)
    cache = DynamicCache()
    steps = [attention(X[:, i : i + 1], rotation=turn, start=i, cache=cache)[0] for i in range(7)]
    assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: MultiHeadAttention(12, 5), "width 12 cannot be shared by 5 heads"),
        (lambda: MultiHeadAttention(12, 0), "found heads=0; expected 1 or more"),
        (lambda: MultiHeadAttention(8, 2)(X), "states are 12 wide; expected 8, as this was made"),
        (lambda: MultiHeadAttention(12, 2, memory_width=9)(X, MEMORY), "states to attend to are 12 wide; expected 9"),
        (lambda: SelfAttention(8)(X), "tokens are 12 wide; expected 8"),
    ],
)
def test_sizes_must_fit(wrong, says):
    with pytest.raises(AttnscopeError, match=says):
        wrong()
