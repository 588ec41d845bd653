"""A bias by offset is the tensor that it stands for, and is never in memory whole where a call is measured."""

import copy
import pickle
from dataclasses import fields

import pytest
import torch

from attnscope import AttnscopeError
from attnscope.kernels.bins import weights_at_offsets
from attnscope.kernels.blocks import block_weights
from attnscope.kernels.call import AttentionCall, Need, RowMeasures, weights_at
from attnscope.kernels.engines import measure
from attnscope.kernels.full import row_weights
from attnscope.kernels.masks import OffsetBias
from attnscope.kernels.positions import RelativeBias, alibi_bias, alibi_by_offset
from attnscope.kernels.sampled import measure_rows
from attnscope.kernels.sums import weight_sums
from tests.kernels.largest_tensor import Largest

QUERIES, KEYS = 4, 6
NUMBERS = torch.randn(2, 4, QUERIES + KEYS - 1, generator=torch.Generator().manual_seed(0))
SOME = torch.tensor([[3, 0, -2]])


def bias_and_whole():
    """The second by its definition."""
    whole = torch.empty(2, 4, QUERIES, KEYS)
    for i in range(QUERIES):
        for j in range(KEYS):
            whole[:, :, i, j] = NUMBERS[:, :, j - i + QUERIES - 1]
    return OffsetBias(NUMBERS, QUERIES), whole


PARTS = {
    "itself": lambda bias: bias,
    "a text": lambda bias: bias[1],
    "a text and a head": lambda bias: bias[1, 2],
    "some heads": lambda bias: bias[:, 1:3],
    "every other head": lambda bias: bias[:, ::2],
    "rows": lambda bias: bias[:, :, 1:3],
    "the last rows": lambda bias: bias[..., -2:, :],
    "keys": lambda bias: bias[..., 2:5],
    "a tile of a head": lambda bias: bias[0, 3][..., slice(1, 99), slice(3, 99)],
    "a part of a part": lambda bias: bias[..., 1:, 1:][..., :2, 2:],
    "by key head": lambda bias: bias.unflatten(1, (2, -1)),
    "of each text": lambda bias: bias[:1].expand(3, -1, -1, -1),
    "a dimension more": lambda bias: bias[None],
    "wide": lambda bias: bias.double(),
    "where it forbids": lambda bias: bias <= -1.0,
    "zeros, and where it forbids": lambda bias: (bias <= 0).to(bias.dtype).masked_fill(bias <= 0, -torch.inf),
}
WORK = {
    "a row": lambda bias: bias[:, 0, 2],
    "the row before the last": lambda bias: bias[:, 0, -2],
    "a key": lambda bias: bias[..., 3],
    "rows by number": lambda bias: bias[:, :, torch.tensor([3, 1])],
    "rows of each text": lambda bias: bias[torch.arange(2)[:, None], :, SOME],
    "rows of each key head": lambda bias: bias[
        torch.arange(2)[:, None, None, None], torch.arange(4).view(1, 2, 2, 1), SOME[:, None, None]
    ],
    "entries": lambda bias: bias[0, 1, torch.tensor([1, 2]), torch.tensor([0, 5])],
    "rows by a mask": lambda bias: bias[:, :, torch.tensor([True, False, True, True])],
    "every other row": lambda bias: bias[:, :, ::2],
    "no row": lambda bias: bias[:, :, 2:2],
    "keys of each row": lambda bias: bias.gather(3, torch.arange(8).view(1, 1, 4, 2).expand(2, 4, -1, -1) % 6),
    "keys of one row": lambda bias: bias.gather(3, torch.zeros(1, 1, 1, 2, dtype=torch.int64)),
    "diagonals": lambda bias: torch.cat(
        [torch.diagonal(bias, offset, dim1=-2, dim2=-1) for offset in range(-QUERIES, KEYS + 1)], -1
    ),
    "sum": lambda bias: bias + torch.ones(1, 1, QUERIES, KEYS),
    "sum of another": lambda bias: torch.ones(2, 4, QUERIES, KEYS).add_(bias),
    "filled by another": lambda bias: bias.masked_fill(torch.eye(QUERIES, KEYS) > 0, 0.0),
    "filled for each text": lambda bias: bias[:1].masked_fill(bias[:, :1] > 0, 0.0),
    "least": lambda bias: bias.amin(),
    "least of each head": lambda bias: bias.amin((-2, -1)),
    "flipped": lambda bias: bias.flip(-2, -1),
    "copied": copy.deepcopy,
    "pickled": lambda bias: pickle.loads(pickle.dumps(bias)),  # noqa: S301
    "attention": lambda bias: torch.nn.functional.scaled_dot_product_attention(
        torch.ones(2, 4, QUERIES, 8), torch.ones(2, 4, KEYS, 8), torch.eye(KEYS).expand(2, 4, -1, -1), bias
    ),
}


@pytest.mark.parametrize("work", [*PARTS.values(), *WORK.values()], ids=[*PARTS, *WORK])
@pytest.mark.parametrize("inference", [False, True])
def test_what_is_made_of_it_is_made_of_the_whole_matrix(work, inference):
    with torch.inference_mode(inference):
        bias, whole = bias_and_whole()
        found, expected = work(bias), work(whole)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert torch.equal(found + 0, expected + 0)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("inference", [False, True])
def test_parts_are_known_by_their_offsets(part, inference):
    with torch.inference_mode(inference):
        assert isinstance(part(bias_and_whole()[0]), OffsetBias)


def test_what_cannot_be_is_rejected():
    with pytest.raises(AttnscopeError, match="found 3 numbers for 4 queries"):
        OffsetBias(torch.zeros(1, 1, 3), queries=4)
    with pytest.raises(AttnscopeError, match="passes no gradient on"):
        OffsetBias(torch.zeros(1, 1, 3, requires_grad=True), queries=2)
    for write in (lambda bias: bias.add_(1), lambda bias: bias.__setitem__((0, 0), 1.0), torch.Tensor.zero_):
        bias, whole = bias_and_whole()
        with pytest.raises(AttnscopeError, match="cannot be written into"):
            write(bias)
        assert torch.equal(bias.written(), whole)
    with torch.no_grad():
        assert OffsetBias(torch.zeros(1, 1, 3, requires_grad=True), queries=2).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (1, 4), (6, 2)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_and_alibi_by_offset_are_those_of_every_pair(queries, keys, bidirectional):
    relative = RelativeBias(3, bidirectional=bidirectional, buckets=8, farthest=16).requires_grad_(False)
    relative.weight.copy_(torch.randn(8, 3))
    assert torch.equal(OffsetBias(relative.by_offset(queries, keys), queries).written(), relative(queries, keys))
    alibi = OffsetBias(alibi_by_offset(3, queries, keys), queries)
    assert torch.equal(alibi.written(), alibi_bias(3, queries, keys))


@pytest.fixture
def one_thread():
    """All work in the thread that is watched."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


N = 1536
ROWS = torch.arange(0, N, 100)
LATER = {
    "the first pass": lambda call, _: measure(call, Need.everything(4, bins=(9, 17))),
    "sums": lambda call, level: weight_sums(call, level, received=True, offsets=True),
    "blocks": lambda call, level: block_weights(call, level, 64),
    "chosen offsets": lambda call, level: weights_at_offsets(call, level, (-1, -700)),
    "chosen keys": lambda call, level: weights_at(call, level, torch.zeros(1, N, 1, dtype=torch.int64)),
    "rows of key heads": lambda call, _: measure_rows(call, Need(entropy=True), ROWS.expand(1, 2, -1)),
    "some rows": lambda call, _: measure(call.take(ROWS[None]), Need(entropy=True)),
    "the last rows": lambda call, _: row_weights(call, slice(N - 30, None), torch.float64),
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("wide", [False, True], ids=["compiled", "in PyTorch"])
@pytest.mark.parametrize("name", LATER)
def test_nothing_reads_it_whole(name, wide):
    states = torch.randn(1, 2, N, 8, dtype=torch.float64 if wide else torch.float32)
    call = AttentionCall(states, states, states, 0.3, bias=OffsetBias(torch.randn(1, 2, 2 * N - 1), N), causal=True)
    level = measure(call, Need())[1].log_sum_exp
    with Largest() as largest:
        LATER[name](call, level)
    assert largest.numbers < N * N / 2
    written = AttentionCall(states, states, states, 0.3, bias=call.bias.clone().written(), causal=True)
    assert written.bias.untyped_storage().nbytes() >= 2 * N * N * 4


@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_numbers_that_are_not_finite_count_as_in_the_matrix(engine):
    query, key, value = (torch.randn(1, 2, 40, 8) for _ in range(3))
    query[0, 1, 7, 0] = torch.inf
    numbers = torch.randn(1, 2, 79)
    numbers[0, 0, 39 + 30] = torch.nan  # 30 keys to the right: of 10 queries
    numbers[:, :, 39 + 3 : 39 + 9] = -torch.inf
    call = AttentionCall(query, key, value, 0.3, bias=OffsetBias(numbers, 40))
    same = AttentionCall(query, key, value, 0.3, bias=OffsetBias(numbers, 40).written())
    need = Need.everything(4, bins=(9, 17))
    (output, rows), (expected, wanted) = (measure(one, need, engine=engine) for one in (call, same))
    torch.testing.assert_close(output, expected, equal_nan=True)
    assert rows.mass.isnan().sum(-1).tolist() == [[10, 1]]
    for field in fields(RowMeasures):
        if getattr(wanted, field.name) is not None:
            sides = getattr(rows, field.name), getattr(wanted, field.name)
            torch.testing.assert_close(*sides, equal_nan=True, atol=1e-6, rtol=1e-6)
