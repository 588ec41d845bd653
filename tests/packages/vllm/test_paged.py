"""A paged key cache: the rows of every chunk are those of one dense pass in float64 over the whole sequence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnscope import AttnscopeError
from attnscope.kernels import AttentionCall, Need
from attnscope.kernels.reference import window_mask
from attnscope_vllm.paged import PagedCall, measure_paged
from tests.kernels.statistics_of_weights import attended, from_weights

BAND, BINS = 3, (4, 9)
WIDTH = 8


class Cache:
    """Sequences in pages in any order, some with the pages of another's beginning; slots without a token are NaN."""

    def __init__(self, draws, lengths, slots, kv_heads, shared):
        self.slots, self.lengths = slots, lengths
        self.keys = [torch.randn(length, kv_heads, WIDTH, generator=draws) for length in lengths]
        pages = -(-max(lengths) // slots)
        numbers = 1 + torch.randperm(pages * len(lengths), generator=draws)  # page 0 is nobody's
        self.pages = torch.full((int(numbers.max()) + 1, slots, kv_heads, WIDTH), torch.nan)
        self.table = numbers.view(len(lengths), pages)
        for sequence in range(1, len(lengths)):  # the prefix of the first sequence
            prefix = min(shared, lengths[0], lengths[sequence]) // slots
            self.table[sequence, :prefix] = self.table[0, :prefix]
            self.keys[sequence][: prefix * slots] = self.keys[0][: prefix * slots]

    def write(self, sequence, stop):
        """Put the first keys of a sequence into its pages."""
        for at, key in enumerate(self.keys[sequence][:stop]):
            self.pages[self.table[sequence, at // self.slots], at % self.slots] = key


def chunks(draws, lengths, cached):
    """Steps of an engine: the next chunk of some sequences, one token near the end, until each is complete."""
    reached = list(cached)
    while reached != lengths:
        step = {}
        for sequence, length in enumerate(lengths):
            left = length - reached[sequence]
            if left and torch.rand(1, generator=draws) < 0.8:
                size = 1 if left < 4 else int(torch.randint(1, left + 1, (1,), generator=draws))
                step[sequence] = reached[sequence], reached[sequence] + size
                reached[sequence] += size
        yield step


def dense(query, key, variant):
    """One pass over a sequence, written out in float64: ``(1, head, query, key)``."""
    window = variant.get("window")
    mask = window_mask(len(query), len(query), left=None if window is None else window - 1, right=0)
    others = {name: value for name, value in variant.items() if name != "window"}
    query, key = (side.transpose(0, 1)[None] for side in (query, key))
    return attended(AttentionCall(query, key, key, mask=mask[None, None], **others))[1]


VARIANTS = {
    "plain": {},
    "soft cap": {"softcap": 2.0},
    "window": {"window": 5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"softcap": 2.0, "window": 7, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1 << 30),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    slots=st.sampled_from([1, 4, 16]),
    kv_heads=st.sampled_from([1, 2, 4]),
    shared=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_chunks_of_sequences_have_the_rows_of_dense_attention(variant, seed, lengths, slots, kv_heads, shared, dtype):
    how = VARIANTS[variant] | {"scale": 0.6}
    draws = torch.Generator().manual_seed(seed)
    cache = Cache(draws, lengths, slots, kv_heads, shared)
    cached = [0] + [min(shared, lengths[0], n) // slots * slots for n in lengths[1:]]
    cached = [min(number, length - 1) for number, length in zip(cached, lengths, strict=True)]
    queries = [torch.randn(length, 4, WIDTH, generator=draws) for length in lengths]
    special = torch.rand(len(lengths), max(lengths), 2, generator=draws)
    need = Need.everything(BAND, special, BINS)
    found = [[] for _ in lengths]
    received = [torch.zeros(4, length, dtype=torch.float64) for length in lengths]
    for step in chunks(draws, lengths, cached):
        spans = [step.get(sequence, (0, 0)) for sequence in range(len(lengths))]
        for sequence, (_, stop) in step.items():
            cache.write(sequence, stop)
        call = PagedCall(
            torch.cat([queries[sequence][first:stop] for sequence, (first, stop) in enumerate(spans)]).to(dtype),
            cache.pages.to(dtype),
            cache.table,
            torch.tensor([0] + [stop - first for first, stop in spans]).cumsum(0),
            torch.tensor([stop for _, stop in spans]),
            **how,
        )
        for sequence, rows in enumerate(measure_paged(call, need, received=True)):
            assert (rows is None) == (sequence not in step)
            if rows is not None:
                assert rows.first == step[sequence][0]
                found[sequence].append(rows.measures)
                received[sequence][:, : rows.received.shape[1]] += rows.received
    close = dict.fromkeys(("rtol", "atol"), 1e-12 if dtype == torch.float64 else 4e-6)
    for sequence, first in enumerate(cached):
        weights = dense(queries[sequence], cache.keys[sequence], how)
        on_columns = weights @ special[sequence, : lengths[sequence]].double()
        expected = from_weights(weights, BAND, BINS) | {"columns": on_columns}
        for name, numbers in expected.items():
            measured = torch.cat([getattr(rows, name) for rows in found[sequence]], 2)
            assert torch.allclose(measured.double(), numbers[:, :, first:], **close), name
        largest = torch.cat([rows.largest_key for rows in found[sequence]], 2)
        own = weights[:, :, first:].gather(-1, largest.long()[..., None])[..., 0]
        assert bool((own >= expected["largest"][:, :, first:] * (1 - 1e-5)).all())
        torch.testing.assert_close(received[sequence], weights[0, :, first:].sum(1), **close)


def test_the_last_queries_of_each_sequence_alone_are_counted():
    query, keys = torch.randn(7, 2, WIDTH), torch.randn(4, 4, 1, WIDTH)
    call = PagedCall(query, keys, torch.tensor([[1, 2], [3, 0]]), torch.tensor([0, 5, 7]), torch.tensor([6, 2]), 1.0)
    whole = measure_paged(call, Need(), received=True)
    last = measure_paged(call, Need(), received=True, last=2)
    torch.testing.assert_close(last[1].received, whole[1].received)
    assert [round(float(rows.received.sum())) for rows in (*whole, *last)] == [10, 4, 4, 4]  # weights of 2 heads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": torch.tensor([9, 2])}, "sequence 0 has 9 keys; expected at least its 5 queries"),
        ({"seq_lens": torch.tensor([4, 2])}, "sequence 0 has 4 keys; expected at least its 5 queries"),
        ({"seq_lens": torch.tensor([6, 2, 1])}, "found 3 lengths, 2 rows of pages and 3 starts"),
        ({"query_start_loc": torch.tensor([0, 5, 8])}, r"query_start_loc is \[0, 5, 8\]; expected ascending numbers"),
        ({"window": 0}, "window"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected(change, message):
    call = {
        "query": torch.randn(7, 2, WIDTH),
        "key_cache": torch.randn(4, 4, 1, WIDTH),
        "block_table": torch.tensor([[1, 2], [3, 0]]),
        "query_start_loc": torch.tensor([0, 5, 7]),
        "seq_lens": torch.tensor([6, 2]),
        "scale": 1.0,
    }
    with pytest.raises(AttnscopeError, match=message):
        PagedCall(**call | change)


def test_columns_for_too_few_keys_are_rejected():
    call = PagedCall(
        torch.randn(2, 2, WIDTH),
        torch.randn(1, 4, 1, WIDTH),
        torch.tensor([[0]]),
        torch.tensor([0, 2]),
        torch.tensor([4]),
        1.0,
    )
    with pytest.raises(AttnscopeError, match="columns have 3 keys; expected those of 4"):
        measure_paged(call, Need(columns=torch.ones(1, 3, 1)))
