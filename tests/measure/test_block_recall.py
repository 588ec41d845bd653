"""What the best blocks hold: by definition from the weights, and where the answer is known."""

import math
from itertools import chain

import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.kernels.call import AttentionCall
from attnscope.measure.passes import Marks, measure_call

NAMES = ("block_recall", "map_block_recall")


def recalled(call, lengths, names=NAMES):
    valid = torch.arange(call.query.shape[2]) < torch.tensor(lengths)[:, None]
    return measure_call(call, names, 1, 1, Marks(valid, valid, torch.zeros_like(valid)))[1]


def by_definition(weights, percent, *, whole):
    """Of one causal map of real tokens alone."""
    n = len(weights)
    rows = []
    for top in range(0, n, 64):
        bottom = min(top + 64, n)
        rows.append([float(weights[top:bottom, left : left + 64].sum()) for left in range(0, bottom, 64)])
    groups = [list(chain.from_iterable(rows))] if whole else rows
    held = sum(sum(sorted(each)[-max(1, math.ceil(percent * len(each) / 100)) :]) for each in groups)
    return held / n


@pytest.fixture(scope="module")
def call():
    x = torch.randn(3, 2, 2, 700, 8, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(700) < torch.tensor([700, 500])[:, None])[:, None, None].expand(2, 1, 700, 700)
    return AttentionCall(2 * x[0], x[1], x[2], 0.5, causal=True, mask=mask)


def test_the_best_blocks_of_each_row_and_of_the_map(call):
    found = recalled(call, (700, 500))
    for text, n in enumerate((700, 500)):
        scores = 0.5 * call.query[text] @ call.key[text].mT
        future = torch.ones(700, 700, dtype=torch.bool).triu(1)
        weights = scores.double().masked_fill(future, -torch.inf).softmax(-1)[:, :n, :n]
        equal = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
        for name, whole in zip(NAMES, (False, True), strict=True):
            for at, percent in enumerate((5, 10, 25)):
                expected = [by_definition(head, percent, whole=whole) for head in weights]
                assert found[name][text, :, at].tolist() == pytest.approx(expected, rel=1e-4)
                null = by_definition(equal, percent, whole=whole)
                assert float(found[f"equal_{name}"][text, 0, at]) == pytest.approx(null, rel=1e-4)


def test_a_scan_measures_them_on_request_and_not_of_some_rows():
    text = "The tide comes in twice a day, and twice a day it goes out again. " * 10
    result = attnscope.scan(texts=[text], statistics="block_recall,entropy")
    assert result.block_recall.dims == ("window", "layer", "head", "kept")
    assert result.equal_block_recall.dims == ("window", "layer", "kept")
    assert result.kept.values.tolist() == [5, 10, 25]
    assert 0 < float(result.block_recall.min()) <= float(result.block_recall.max()) <= 1 + 1e-6
    with pytest.raises(AttnscopeError, match="block_recall needs all rows"):
        attnscope.scan(texts=[text], statistics="block_recall", rows=16)
