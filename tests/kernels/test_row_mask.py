"""A mask known by its rows is the tensor that it stands for, whatever is done with it."""

import copy
import pickle

import pytest
import torch

from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.masks import RowMask, extent_of, transposed
from attnscope.kernels.sampled import measure_rows
from attnscope.kernels.sums import exchanged

START = torch.tensor([[0, 0, 1, 2, 0], [1, 1, 2, 0, 3]])
STOP = torch.tensor([[1, 2, 3, 4, 5], [2, 2, 5, 0, 5]])
STATES = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
SEEN = STATES[:, :1] > 0


def mask_and_whole():
    mask = RowMask(START, STOP, 5)
    return mask, mask.written()


PARTS = {
    "texts": lambda mask: mask[1:],
    "rows": lambda mask: mask[:, :, 1:3],
    "every other row": lambda mask: mask[:, :, ::2],
    "rows by number": lambda mask: mask[:, :, torch.tensor([3, 1])],
    "first keys": lambda mask: mask[..., :3],
    "last keys": lambda mask: mask[..., -2:],
    "a part of a part": lambda mask: mask[:, :, 1:4][..., 1:][:, :, torch.tensor([0, 2])],
    "as many": lambda mask: mask.expand(-1, -1, 5, -1),
    "each text": lambda mask: mask[:1].expand(4, -1, -1, -1),
    "detached": lambda mask: mask.detach().contiguous().bool(),
}
WORK = {
    "and": lambda mask: mask & SEEN,
    "and of another": lambda mask: SEEN & mask,
    "not": lambda mask: ~mask,
    "where": lambda mask: torch.where(mask, STATES, 0.0),
    "fill": lambda mask: STATES.masked_fill(mask, 0.0),
    "numbers": lambda mask: 1.0 - mask.float(),
    "every other key": lambda mask: mask[..., ::2],
    "one text": lambda mask: mask[0],
    "keys by number": lambda mask: mask[..., torch.tensor([3, 1])],
    "heads": lambda mask: mask.expand(2, 3, -1, -1),
    "transposed": lambda mask: mask.mT,
    "flipped": lambda mask: mask.flip(-2, -1),
    "copied": copy.deepcopy,
    "pickled": lambda mask: pickle.loads(pickle.dumps(mask)),  # noqa: S301
    "attention": lambda mask: torch.nn.functional.scaled_dot_product_attention(
        STATES, STATES, STATES, attn_mask=mask | torch.eye(5, dtype=torch.bool)
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_some_of_it_is_known_by_its_rows_too(part):
    mask, whole = mask_and_whole()
    found, expected = PARTS[part](mask), PARTS[part](whole)
    assert isinstance(found, RowMask)
    assert mask.is_known
    assert found.is_known
    assert found.shape == expected.shape
    known, searched = extent_of(found), extent_of(expected)
    there = searched.stop > 0
    assert torch.equal(known.stop > known.start, there)
    for bound, truth in zip(known[:2], searched[:2], strict=True):
        assert torch.equal(bound[there], truth[there])
    assert torch.equal(found.written(), expected)


@pytest.mark.parametrize("work", WORK)
def test_what_is_made_of_it_is_made_of_the_whole(work):
    mask, whole = mask_and_whole()
    assert torch.equal(WORK[work](mask), WORK[work](whole))


def to_a_column(mask):
    mask[:, :, 0] = True


def to_a_part(mask):
    mask[:, :, 1:3][..., 2:].fill_(value=True)


def to_one_text(mask):
    mask[0][0, 0] = True


def to_the_transposed(mask):
    mask.mT[:, :, 0] = True


def to_itself(mask):
    mask &= torch.eye(5, dtype=torch.bool)


def to_a_copy(mask):
    mask.clone().fill_(value=True)
    mask[:, :, torch.tensor([0, 1])].fill_(value=True)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", [to_a_column, to_a_part, to_one_text, to_the_transposed, to_itself, to_a_copy])
def test_what_is_written_to_it_or_to_its_parts_is_heeded_by_all(write, inference):
    with torch.inference_mode(inference):
        mask, whole = mask_and_whole()
        before = mask[:, :, 1:3]
        write(mask)
        write(whole)
        assert torch.equal(mask.settled().logical_not(), ~whole)
        assert torch.equal(before.written(), whole[:, :, 1:3])
        assert torch.equal(extent_of(mask).stop > 0, whole.any(-1)[:, 0])


@pytest.mark.parametrize("texts", [1, 2])
def test_a_call_that_is_masked_by_rows_measures_the_same(texts):
    mask, whole = (each[:texts] for each in mask_and_whole())
    queries = torch.tensor([[[1, 4], [0, 2], [3, 3]], [[0, 1], [4, 2], [2, 3]]])
    found, expected = (AttentionCall(STATES, STATES, STATES, scale=0.5, mask=each) for each in (mask, whole))
    need = Need(entropy=True, band=1)
    for one, other in (
        (measure(found, need)[1], measure(expected, need)[1]),
        (measure_rows(found, need, queries), measure_rows(expected, need, queries)),
        (measure(found.take(queries[:, 0]), need)[1], measure(expected.take(queries[:, 0]), need)[1]),
    ):
        assert torch.equal(one.log_sum_exp, other.log_sum_exp)
        assert torch.equal(one.band, other.band)
    assert mask.is_known
    level = measure(expected, Need())[1].log_sum_exp
    assert torch.equal(
        measure(exchanged(found, level), Need())[1].log_sum_exp,
        measure(exchanged(expected, level), Need())[1].log_sum_exp,
    )


@pytest.mark.parametrize(("start", "stop"), [([0, 0, 1], [1, 2, 3]), ([0, 2, 0], [3, 3, 3])])
def test_the_keys_of_a_mask_by_rows_are_known_too_where_they_have_no_gaps(start, stop):
    mask = RowMask(torch.tensor([start]), torch.tensor([stop]), 3)
    whole = mask.written()
    found = transposed(mask)
    assert isinstance(found, RowMask) == extent_of(whole.mT).is_contiguous
    assert torch.equal(found.logical_not(), ~whole.mT)
