"""Attention over a paged key cache, as an inference engine calls it for the new tokens of several sequences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.engines import measure
from attnscope.kernels.full import scores_of
from attnscope.kernels.masks import RowMask
from attnscope.kernels.sums import column_sums
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError

_FEW = 8  # queries whose weights are written out to sum their columns: all heads in one product, as sequences decode


@runtime_checkable
class KeyPages(Protocol):
    """Keys by page: ``(page, slot, kv_head, width)``, for caches whose memory has another order."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, pages: Int[Tensor, " page"], /) -> Float[Tensor, "page slot kv_head width"]: ...


@dataclass(frozen=True, eq=False)
class PagedCall:
    """One attention call of an inference engine; the names are those of vLLM's attention metadata.

    Each sequence has all its keys in the cache, and queries for its last tokens alone: one token while it decodes, a
    chunk of its prompt before, without the prefix that was cached already.

    Attributes
    ----------
    query
        ``(token, head, width)``: the new queries of all sequences, one sequence after the other.
    key_cache
        ``(page, slot, kv_head, width)``. With grouped queries, head ``h`` reads key head ``h // (heads / kv_heads)``.
    block_table
        ``(sequence, entry)``: the pages of each sequence, in order; entries after its last page may be anything.
    query_start_loc
        ``(sequence + 1,)``: the first query of each sequence, and the end of the last.
    seq_lens
        ``(sequence,)``: the keys of each sequence; the last of them belong to its queries.
    scale
        Factor of the scores.
    softcap
        Scores become ``softcap * tanh(scores / softcap)``.
    window
        Keys that a query sees, itself included; by default all before it.
    sinks
        ``(head,)``: an extra logit in each softmax that carries no value.

    Raises
    ------
    AttnscopeError
        If the shapes do not fit.
    """

    query: Float[Tensor, "token head width"]
    key_cache: Float[Tensor, "page slot kv_head width"] | KeyPages
    block_table: Int[Tensor, "sequence entry"]
    query_start_loc: Int[Tensor, " starts"]
    seq_lens: Int[Tensor, " sequence"]
    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: Float[Tensor, " head"] | None = None

    def __post_init__(self) -> None:
        check_whole(1, window=self.window)
        starts, lengths = self.query_start_loc.tolist(), self.seq_lens.tolist()
        counts = [stop - first for first, stop in pairwise(starts)]
        if len(counts) != len(lengths) or len(self.block_table) != len(lengths) or starts[0] != 0:
            raise AttnscopeError(
                f"found {len(lengths)} lengths, {len(self.block_table)} rows of pages and {len(starts)} starts of "
                "queries; expected one length and one row of pages a sequence, and the starts from 0 with an end"
            )
        if min(counts, default=0) < 0 or starts[-1] > len(self.query):
            raise AttnscopeError(f"query_start_loc is {starts}; expected ascending numbers up to {len(self.query)}")
        room = self.block_table.shape[1] * self.key_cache.shape[1]
        for sequence, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            if not count <= length <= room:
                raise AttnscopeError(
                    f"sequence {sequence} has {length} keys; expected at least its {count} queries, and at most the "
                    f"{room} keys of its pages"
                )

    def calls(self) -> Iterator[tuple[list[int], AttentionCall]]:
        """Sequences with equally many queries, and keys within a factor of 2, as one call each.

        The keys of a shorter sequence are padded on the right; a sequence without queries is in no call.
        """
        starts, lengths = self.query_start_loc.tolist(), self.seq_lens.tolist()
        alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for sequence, (first, stop) in enumerate(pairwise(starts)):
            if stop > first:
                alike[stop - first, lengths[sequence].bit_length()].append(sequence)
        for (queries, _), sequences in alike.items():
            longest = max(lengths[sequence] for sequence in sequences)
            yield sequences, self._of(sequences, queries, longest)

    def _of(self, sequences: Sequence[int], queries: int, longest: int) -> AttentionCall:
        slots, device = self.key_cache.shape[1], self.query.device
        at = torch.tensor(sequences)
        lengths = self.seq_lens.cpu()[at].to(device)[:, None]
        page = torch.arange(-(-longest // slots), device=device)
        table = self.block_table.to(device)[at.to(device), : len(page)].long()
        table = table.where(page * slots < lengths, 0)
        key = self.key_cache[table.flatten()].unflatten(0, table.shape).flatten(1, 2)[:, :longest]
        # slots that no token has written yet may hold anything
        unwritten = torch.arange(longest, device=device) >= lengths
        key = key.masked_fill(unwritten[..., None, None], 0.0).transpose(1, 2)
        row = torch.arange(queries, device=device)
        starts = self.query_start_loc.to(device)[at.to(device), None]
        query = self.query[(starts + row).long()].transpose(1, 2)
        position = (lengths - queries + row).long()
        first = torch.zeros_like(position) if self.window is None else (position - self.window + 1).clamp_min(0)
        return AttentionCall(
            query=query,
            key=key,
            value=key[..., :1],  # the output is not asked for
            scale=self.scale,
            mask=RowMask(first, position + 1, longest),
            softcap=self.softcap,
            sinks=self.sinks,
            # whole prompts need none, and the CUDA kernel takes calls without
            positions=None if queries == longest else position,
        )


@dataclass(frozen=True, eq=False)
class SequenceRows:
    """The measured rows of one sequence: those of its queries."""

    first: int  # position of the first query among the keys
    measures: RowMeasures  # ``(1, head, query)`` each
    received: Float[Tensor, "head key"] | None = None  # weight that each key receives from these queries; float64


def measure_paged(
    call: PagedCall, need: Need, *, received: bool = False, last: int | None = None
) -> list[SequenceRows | None]:
    r"""Measure the rows of the new queries of every sequence, in O(n) memory.

    Parameters
    ----------
    call
        The attention call, whose keys are in the cache already.
    need
        Measures to take; ``columns`` are ``(sequence, key, column)``, with as many keys as the longest sequence.
    received
        Also sum the weights of each column: sums of several chunks add up to those of the whole text.
    last
        Count only the last queries of each sequence in these sums, as many as this.

    Returns
    -------
    list
        One `SequenceRows` for each sequence; None for one without queries. Positions, offsets and largest keys count
        from the beginning of the sequence, so chunks of a text give the rows of one pass over it.

    Raises
    ------
    AttnscopeError
        If `last` is below 1.

    Examples
    --------
    Two sequences in pages of 4 keys: a prompt of 3 tokens, and the 6th token of another while it decodes.

    >>> import torch
    >>> from attnscope.kernels import Need
    >>> from attnscope_vllm.paged import PagedCall, measure_paged
    >>> keys = torch.zeros(4, 4, 1, 8)  # equal keys: attention is uniform
    >>> table, starts, lengths = torch.tensor([[2, 0], [0, 3]]), torch.tensor([0, 3, 4]), torch.tensor([3, 6])
    >>> prompt, token = measure_paged(PagedCall(torch.zeros(4, 2, 8), keys, table, starts, lengths, 1.0), Need())
    >>> token.first, token.measures.log_sum_exp.exp()[0, 0].round().tolist()
    (5, [6.0])
    >>> prompt.measures.log_sum_exp.exp()[0, 0].round().tolist()
    [1.0, 2.0, 3.0]
    """
    check_whole(1, last=last)
    found: list[SequenceRows | None] = [None] * len(call.seq_lens)
    for sequences, alike in call.calls():
        rows, sums = measure_alike(alike, sequences, need, received=received, last=last)
        for text, sequence in enumerate(sequences):
            length = int(call.seq_lens[sequence])
            parts = {name: part[text : text + 1] for name, part in vars(rows).items() if part is not None}
            of_keys = None if sums is None else sums[text, :, :length]
            found[sequence] = SequenceRows(length - alike.query.shape[2], RowMeasures(**parts), of_keys)
    return found


def measure_alike(
    alike: AttentionCall, sequences: Sequence[int], need: Need, *, received: bool, last: int | None = None
) -> tuple[RowMeasures, Tensor | None]:
    """Rows of one of the `PagedCall.calls`, and the sums of its columns if they are requested."""
    if need.columns is not None:
        keys = alike.key.shape[2]
        if need.columns.shape[1] < keys:
            raise AttnscopeError(f"columns have {need.columns.shape[1]} keys; expected those of {keys} at least")
        need = replace(need, columns=need.columns[sequences, :keys])
    rows = measure(alike, need)[1]
    if not received:
        return rows, None
    queries = alike.query.shape[2]
    if queries > _FEW:
        return rows, column_sums(alike, rows.log_sum_exp, last=last)
    # a few rows of weights are no more than what a cache holds for them
    weights = (scores_of(alike).double() - rows.log_sum_exp[..., None]).exp_()
    return rows, weights[:, :, -min(last or queries, queries) :].sum(2)
