"""Measurements of one attention call: its rows, sums over them and statistics; and uniform attention."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from attnscope.kernels.bins import bin_ranges, segments, weights_at_offsets
from attnscope.kernels.by_head import each_tile
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.engines import measure
from attnscope.kernels.full import scores_of
from attnscope.kernels.masks import forbids
from attnscope.kernels.sums import column_sums, weight_sums
from attnscope.measure.quantities import (
    BY_GROUP,
    CHOSEN,
    EVERY_WEIGHT,
    KNOWN,
    SECOND_PASS,
    RowMeasure,
    by_group,
    of_rows,
)
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from attnscope.measure.maps import BlockSums


def without_gaps(call: AttentionCall) -> bool:
    """Whether each query may see all keys from a first to a last: those of `AttentionCall.extent`."""
    bias = call.bias  # a mask if it is very low
    return call.is_contiguous and (bias is None or not bool(forbids(bias.amin())))


def keys_at(edges: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """The first key from each edge (an offset) on, between `start` and `stop` of each query: ``(..., edge)``."""
    key_position = torch.arange(start.shape[-1], device=edges.device)
    # the lower bound last: where a query sees no key both ends are equal, and the range is empty
    return torch.maximum(torch.minimum(key_position[:, None] + edges, stop[..., None]), start[..., None])


def allowed_by_rows(call: AttentionCall, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The visible keys of blocks of queries, by text, for masks with gaps: of the first head."""
    queries = call.query.shape[2]
    for text in range(call.query.shape[0]):
        for begin in range(0, queries, rows):
            block = slice(begin, min(begin + rows, queries))
            allowed = call.allowed(text, 0, block)
            yield text, torch.arange(block.start, block.stop, device=allowed.device), allowed


def evenly(call: AttentionCall) -> AttentionCall:
    """A call of one head with uniform attention over the keys that the first head may see."""
    query, key, value = (torch.zeros_like(side[:, :1, :, :1]) for side in (call.query, call.key, call.value))
    bias = None
    if call.bias is not None:
        masked = forbids(call.bias[:, :1])
        bias = masked.to(call.bias.dtype).masked_fill(masked, -torch.inf)  # also a bias by offset
    mask = None if call.mask is None else call.mask[:, :1]
    return replace(call, query=query, key=key, value=value, mask=mask, bias=bias, softcap=None, sinks=None)


def equal_rows(call: AttentionCall, need: Need) -> RowMeasures:
    """Measure uniform attention over the visible keys of each query: ``(batch, 1, query)`` each."""
    if not without_gaps(call):
        return measure(evenly(call), need)[1]
    # arithmetic on the first and last key that each query may see
    start, stop = (bound.expand(len(call.query), -1) for bound in call.extent)
    count = stop - start
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    columns = None
    if need.columns is not None:
        # prefix sums with a 0 in front: a sum over keys first to last is a difference of two
        before = torch.nn.functional.pad(need.columns.double().cumsum(1), (0, 0, 1, 0))
        first, last = (bound[..., None].expand(-1, -1, before.shape[-1]) for bound in (start, stop))
        columns = (before.gather(1, last) - before.gather(1, first)) * share[..., None]

    def within(edges: Tensor) -> Tensor:
        """Share of a row between each edge, an offset, and the next."""
        return keys_at(edges, start, stop).diff(dim=-1) * share[..., None]

    band = bins = None
    if need.band is not None:
        band = within(torch.arange(-need.band, need.band + 2, device=count.device)).float()[:, None]
    if need.bins:
        sides = within(torch.from_numpy(segments(need.bins)).to(count.device))
        bins = torch.cat([sides[..., : len(need.bins)], sides[..., len(need.bins) + 1 :]], -1).float()[:, None]
    # of n equal scores 0, ln n is the log-sum-exp as well as the entropy
    entropy, mass = count.clamp_min(1).double().log()[:, None], (share > 0).double()[:, None]
    columns = None if columns is None else columns[:, None]
    more: dict[str, Tensor] = {}
    if need.largest or need.collision:
        more |= {"largest": share.double()[:, None], "collision": share.double()[:, None]}
    if need.largest_key:  # the first of all equal ones
        more["largest_key"] = start.where(count > 0, -1).double()[:, None]
    if need.offsets or need.variance:
        more["mean_offset"] = ((start + stop - 1) / 2 - call.query_positions).double().where(count > 0, 0.0)[:, None]
        # n consecutive offsets of equal weight have the variance (n^2 - 1) / 12
        more["offset_variance"] = ((count.double() ** 2 - 1) / 12).clamp_min(0)[:, None]
    return RowMeasures(entropy, mass, entropy, band=band, bins=bins, columns=columns, **more)


_ROUNDS = 50
_NEAR = 1e-6  # of all weight: tolerance of the fit at each position
NONE = 1e-300  # instead of 0 below a fraction
Array = TypeVar("Array", Tensor, np.ndarray)


def fitted_places(sums: Array, mass: Array, counts: Array) -> tuple[Array, Array]:
    """Factors of the weight of a key in each bin, ``(..., head, bin)``, and of each row."""
    # iterative proportional fitting (Deming and Stephan 1940): rows get their sums, then bins theirs, until both have
    # ones in the type of the sums, of PyTorch or NumPy
    share, row = sums * 0.0 + 1.0, mass
    near = _NEAR * float(mass.sum(-1).max())
    for _ in range(_ROUNDS):
        row = row_factors(share, mass, counts)
        reached = row @ counts
        if float(abs(share * reached - sums).max()) <= near:
            break
        share = sums / reached.clip(min=NONE)
    return share, row


def row_factors(share: Array, mass: Array, counts: Array) -> Array:
    """Factors of the rows, ``(..., head, row)``, that give each its sum."""
    return mass / (share @ counts.mT).clip(min=NONE)


_AT_ONCE = 1 << 22  # numbers in memory, for masks with gaps


@dataclass(frozen=True, eq=False)
class GroupPlaces:
    """Bins of the keys of a query: offsets of the band and far bins, and separate bins for the first token."""

    edges: Tensor  # ``(bin,)``: the first offset of each bin, and one past the last
    far: int  # the first offset to the right in a far bin of the pass; some of its offsets may be in the band
    # ``(batch, query)``: the bin of the first real key, and its number among those that occur
    offset_of_first: Tensor
    first_at: Tensor
    seen: Tensor  # ``(batch, query, bin, group)``: visible keys of each group in each bin

    @classmethod
    def of(cls, call: AttentionCall, need: Need, first: Tensor, groups: Tensor) -> GroupPlaces:
        """Count the keys of each group; `first` and `groups` are indicators, ``(batch, key[, group])``."""
        band = need.band or 0
        starts = (band + 1, *need.bins[1:])  # each offset of the band is a bin
        far = torch.from_numpy(segments(starts)).to(groups.device)
        near = torch.arange(1 - band, band + 1, device=groups.device)
        left, right = far.split(len(starts) + 1)
        edges = torch.cat([left, near, right])
        others = groups * ~first[..., None]
        of_first = (groups * first[..., None]).sum(1)
        # the first of equal maxima; booleans have no argmax
        first_key = first.to(torch.uint8).argmax(1)
        count = _groups_of_extents if without_gaps(call) else _groups_of_allowed
        offsets, first_seen = count(call, edges, others, first_key)
        query_position = torch.arange(call.query.shape[2], device=edges.device)
        # the bin whose first offset is at most this one
        offset_of_first = torch.bucketize(first_key[:, None] - query_position, edges, right=True) - 1
        occurring, first_at = offset_of_first.unique(return_inverse=True)
        on_first = (first_seen[..., None] * of_first[:, None])[:, :, None]
        at_first = one_hot(first_at, len(occurring))[..., None] * on_first
        return cls(edges, need.bins[0], offset_of_first, first_at, torch.cat([offsets, at_first], dim=2))

    def sums(self, rows: RowMeasures, on_first: Tensor, counted: Tensor) -> Tensor:
        """The weights in each bin, summed over rows: ``(batch, head, bin)``; `on_first` are on the first token."""
        band, bins = rows.band, rows.bins
        if band is None or bins is None:  # the planner requests both
            return on_first.new_zeros(())
        band, middle = band.double(), band.shape[-1] // 2
        left, right = bins.double().split(bins.shape[-1] // 2, dim=-1)
        # far bins of the pass begin at a power of two: the nearest ones include the ends of the band
        left_end = left[..., -1:] - band[..., : middle + 1 - self.far].sum(-1, keepdim=True)
        right_end = right[..., :1] - band[..., middle + self.far :].sum(-1, keepdim=True)
        each = torch.cat([left[..., :-1], left_end, band, right_end, right[..., 1:]], dim=-1)
        on_first = on_first.double()[..., None]
        offset, at = (place[:, None, :, None].expand_as(on_first) for place in (self.offset_of_first, self.first_at))
        # a first token draws attention wherever it is: its weight leaves the bin of its offset
        others = each.scatter_add(3, offset, -on_first).clamp_min(0.0)
        firsts = each.new_zeros(*each.shape[:3], self.seen.shape[2] - each.shape[3]).scatter(3, at, on_first)
        return torch.cat([others, firsts], dim=-1).where(counted[..., None], 0.0).sum(2)

    def fitted(self, sums: Tensor, mass: Tensor, members: Tensor) -> Tensor:
        """Weights predicted from offsets alone, summed over queries of one group and keys of another."""
        seen = self.seen.double()
        share, row = fitted_places(sums, mass, seen.sum(-1))
        on_keys = torch.einsum("bhp,bqpk->bhqk", share, seen) * row[..., None]
        whole = on_keys.sum(-1, keepdim=True)
        on_keys = on_keys * (mass[..., None] / whole.clamp_min(NONE))  # rows have the sums of the head's
        return members.mT @ on_keys


def _groups_of_extents(call: AttentionCall, edges: Tensor, others: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Arithmetic on the first and last key that each query may see."""
    start, stop = (bound.expand(len(call.query), -1) for bound in call.extent)
    at = keys_at(edges, start, stop)
    before = pad(others.cumsum(1), (0, 0, 1, 0))
    flat = at.flatten(1)[..., None].expand(-1, -1, before.shape[-1])
    offsets = before.gather(1, flat).unflatten(1, at.shape[1:]).diff(dim=2)
    return offsets, (start <= first[:, None]) & (first[:, None] < stop)


def _groups_of_allowed(call: AttentionCall, edges: Tensor, others: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Counts from the allowed keys, for masks with gaps."""
    batch, _, queries, _ = call.query.shape
    keys, groups = others.shape[1:]
    offsets: list[Tensor] = []
    seen: list[Tensor] = []
    for text, queries_at, allowed in allowed_by_rows(call, max(1, _AT_ONCE // (keys * groups))):
        before = pad((allowed[..., None] * others[text]).cumsum(1), (0, 0, 1, 0))
        at = (queries_at[:, None] + edges).clamp(0, keys)
        offsets.append(before.gather(1, at[..., None].expand(-1, -1, groups)).diff(dim=1))
        seen.append(allowed[:, first[text]])
    shape = (batch, queries)
    return torch.cat(offsets).unflatten(0, shape), torch.cat(seen).unflatten(0, shape)


Measured = TypeVar("Measured")
#: Value columns of the keys, by the statistic that is the weight on them: see `indicator_columns`.
COLUMNS = ("first_token", "special_tokens")
FIRST, GROUPS = COLUMNS.index("first_token"), len(COLUMNS)  # the columns of groups, if there are some, are behind


@dataclass(frozen=True, eq=False)
class GroupMarks:
    """The group of each token of an attention call, by number; -1 for none, such as padding."""

    queries: Tensor  # ``(batch, query)`` and ``(batch, key)``
    keys: Tensor
    count: int  # number of groups
    places: GroupPlaces | None = None  # positions of each group relative to each query; set by `measure_call`

    def columns(self, numbers: Tensor) -> Tensor:
        """Indicators of the groups, ``(batch, token, group)``, float32."""
        return (numbers[..., None] == torch.arange(self.count, device=numbers.device)).float()


LEAST_KEYS = 8  # keys that the query of an example must see: with few, some weight is always large


@dataclass(frozen=True, eq=False)
class Eligible:
    """Queries ``(batch, query)`` and keys ``(batch, key)`` that an example of a head may have."""

    queries: Tensor
    keys: Tensor

    def on(self, device: torch.device) -> Eligible:
        """The same on a device."""
        return Eligible(self.queries.to(device), self.keys.to(device))


@dataclass(frozen=True, eq=False)
class Marks:
    """Which queries ``(batch, query)`` and keys ``(batch, key)`` of a call are real tokens, and which are special."""

    queries: Tensor
    keys: Tensor
    special: Tensor
    groups: GroupMarks | None = None
    special_queries: Tensor | None = None
    with_first: bool = False  # whether the first key may be that of an example
    ids: tuple[Tensor, Tensor] | None = None  # of the tokens of queries and keys, where a text is read token by token

    def columns(self) -> Tensor:
        """The value columns of the keys; see `indicator_columns`."""
        return indicator_columns(self.keys, self.special, self.groups)

    def eligible(self, call: AttentionCall) -> Eligible:
        """The tokens that an example may have: queries that see enough keys; neither special tokens nor the first."""
        # e to the log-sum-exp of n scores of 0 is n
        sees = equal_rows(call, Need()).log_sum_exp[:, 0].exp().round()  # keys
        queries, keys = self.queries & (sees >= LEAST_KEYS), self.keys & ~self.special
        if self.special_queries is not None:
            queries &= ~self.special_queries
        if not self.with_first:
            keys &= torch.arange(keys.shape[1], device=keys.device) != first_of(self.keys)[:, None]
        return Eligible(queries, keys)


@dataclass(frozen=True, eq=False)
class SecondPass:
    """Results of a second pass over the weights of one attention call; None if not requested."""

    # ``(batch, head, key)``: what each key receives from all queries that are real tokens
    received: Tensor | None = None
    recent: Tensor | None = None  # the same from the last queries only, the observation window
    offsets: Tensor | None = None  # ``(batch, head, offset)``: the weights at every offset
    blocks: BlockSums | None = None  # the weights in blocks
    chosen: Tensor | None = None  # ``(batch, head, chosen offset)``: the weights at chosen offsets
    rows: Mapping[RowMeasure, Tensor] = field(default_factory=dict[RowMeasure, Tensor])  # ``(batch, head, query)`` each
    weights: Callable[[], Iterator[tuple[Tensor, Tensor]]] | None = None  # see `weights_in_blocks`
    group: int = 1  # query heads that share one key-value head


@dataclass(frozen=True, eq=False)
class Rows:
    """The measured rows of one attention call, with marks of its texts."""

    measures: RowMeasures  # ``(batch, head, query)`` each
    # ``(batch, head, query)``: True for rows of the averages, False for padding and for rows without visible keys
    counted: Tensor
    queries: Tensor  # ``(batch,)``: real tokens on either side
    keys: Tensor
    first_key: Tensor  # ``(batch,)``: position of the first real key
    groups: GroupMarks | None = None  # the groups of the tokens, if there are any
    second: SecondPass = SecondPass()  # results of a second pass over the scores
    eligible: Eligible | None = None  # tokens of examples, if these are measured
    ids: tuple[Tensor, Tensor] | None = None  # of the tokens of queries and keys; see `query_ids`
    sums: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # sums over the counted rows, where known

    @classmethod
    def of_sums(cls, sums: Mapping[str, Tensor], queries: Tensor, keys: Tensor) -> Rows:
        """Rows of which only sums are there, and the numbers of queries and keys of each text."""
        absent = torch.full_like(sums[COUNT][..., None], torch.nan)
        return cls(RowMeasures(absent, absent), absent.isnan(), queries, keys, keys, sums=sums)

    @property
    def query_ids(self) -> Tensor:
        """Token ids of the queries, ``(batch, 1, query)``, with padding where `counted` is False; of texts alone."""
        return self._ids(0)

    @property
    def key_ids(self) -> Tensor:
        """Token ids of the keys, ``(batch, 1, key)``."""
        return self._ids(1)

    def _ids(self, side: int) -> Tensor:
        if self.ids is None:
            raise AttnscopeError(
                "the tokens of rows are known in scans of texts only, token by token and with all rows: leave out rows "
                "(--rows) and words (--words), or the statistic that needs tokens"
            )
        return self.ids[side][:, None]

    def summed(self, name: str) -> Any:
        """A field of `SecondPass`."""
        return there(getattr(self.second, name))

    def summed_by_cache(self, name: str) -> Tensor:
        """A field of `SecondPass` over heads, for each the sum over the query heads that share its key-value head."""
        values = self.summed(name)
        # query heads that share a key head are adjacent (grouped queries)
        shared = values.unflatten(1, (-1, self.second.group))
        return shared.sum(2, keepdim=True).expand_as(shared).flatten(1, 2)

    def total(self, values: Tensor) -> Tensor:
        """Sum over the counted rows of ``(batch, head, query, ...)``: ``(batch, head, ...)``, float64."""
        left_out = self._left_out[(...,) + (None,) * (values.ndim - self.counted.ndim)]
        return values.masked_fill(left_out, 0.0).sum(2, dtype=torch.float64)

    @cached_property
    def _left_out(self) -> Tensor:
        return ~self.counted

    def total_of(self, name: str) -> Tensor:
        """Sum over the counted rows of what `row_values` names: ``(batch, head, ...)``."""
        return self.sums[name] if name in self.sums else self.total(row_values(self.measures, name))

    @cached_property
    def count(self) -> Tensor:
        """The number of counted rows, ``(batch, head)``."""
        return self.sums[COUNT] if COUNT in self.sums else self.total(self.counted.double())

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the counted rows: ``(batch, head)``; NaN without rows."""
        return self.total(values.double()) / self.count

    @cached_property
    def band_sum(self) -> Tensor:
        """tr_t, ``(batch, head, offset)``: the weights at offset t, summed over rows."""
        return self.total_of("band")

    @cached_property
    def bin_sum(self) -> Tensor:
        """``(batch, head, bin)``: the weights in each bin, summed over rows; near bins come from the band."""
        return self._with_near_bins(self.total_of("bins"))

    def _with_near_bins(self, far: Tensor) -> Tensor:
        band = self.band_sum
        reach = band.shape[-1] // 2
        ranges = [(first, last) for first, last in bin_ranges(0, reach) if max(-first, last) <= reach]
        near = [
            band[..., first + reach] if first == last else band[..., first + reach : last + reach + 1].sum(-1)
            for first, last in ranges
        ]
        # the pass has only far bins, farthest left to farthest right: the near ones belong in their middle
        left, right = far.split(far.shape[-1] // 2, dim=-1)
        return torch.cat([left, torch.stack(near, -1), right], dim=-1)

    def within(self, distance: int) -> Tensor:
        """``(batch, head)``: share of the weight on tokens within a power of two."""
        sums = self.bin_sum
        beyond = max(0, sums.shape[-1] - len(bin_ranges(0, distance))) // 2
        return sums[..., beyond : sums.shape[-1] - beyond].sum(-1) / sums.sum(-1)

    @property
    def attention_distance(self) -> Tensor:
        """``(batch, head)``: mean distance of the weight; under a causal mask, from the mean offset."""
        offsets = self.second.offsets
        if offsets is None:
            return -self.mean(self.measures.mass * there(self.measures.mean_offset)) / self.mass
        reach = offsets.shape[-1] // 2
        return offsets @ torch.arange(-reach, reach + 1, device=offsets.device).abs().double() / offsets.sum(-1)

    @cached_property
    def profile(self) -> Tensor:
        """``(batch, head, offset)``: `band_sum` divided by the number of pairs with the offset; NaN without pairs."""
        band = self.band_sum.shape[-1] // 2
        offset = torch.arange(-band, band + 1, device=self.keys.device)
        queries, keys = self.queries[:, None], self.keys[:, None]
        # query i has a key at offset t for max(0, -t) <= i < min(queries, keys - t)
        pairs = (torch.minimum(queries, keys - offset) - (-offset).clamp_min(0)).clamp_min(0)[:, None].double()
        return torch.where(pairs > 0, self.band_sum / pairs, torch.nan)

    @property
    def outside(self) -> Tensor:
        """``(batch, head)``: share of the weight beyond the band."""
        return (self.mass - self.band_sum.sum(-1) / self.count).clamp_min(0.0)

    @property
    def mass(self) -> Tensor:
        """``(batch, head)``: sum of a row's weights, below 1 with a learned sink."""
        return self.mean_of("mass")

    @property
    def gini_simpson(self) -> Tensor:
        """``(batch, head)``: 1 less the sum of squares of a row of the softmax, whose learned sink is one entry."""
        return 1.0 - self.mean_of("collision") - self.mean_of(_SINK)

    @property
    def first_token(self) -> Tensor:
        """``(batch, head)``: weight on the first real key."""
        return self.mean_of("first_token")

    @property
    def special_tokens(self) -> Tensor:
        """``(batch, head)``: weight on special tokens."""
        return self.mean_of("special_tokens")

    @property
    def places(self) -> Tensor:
        """``(batch or 1, head or 1, row)``: position of each row's query among the keys."""
        return torch.arange(self.counted.shape[-1], device=self.counted.device)[None, None]

    @property
    def largest_offset(self) -> Tensor:
        """``(batch, head, row)``: offset of the key with the largest weight."""
        return there(self.measures.largest_key) - self.places

    @property
    def largest_first(self) -> Tensor:
        """``(batch, head)``: share of the rows whose largest weight is on the first real key."""
        return self.mean(there(self.measures.largest_key) == self.first_key[:, None, None])

    @property
    def strongest(self) -> Tensor:
        """``(batch, head, 3)``: weight, query and key of the row with the largest weight; NaN if no row is eligible."""
        eligible, largest_key = there(self.eligible), there(self.measures.largest_key).long()
        on_key = eligible.keys[:, None].expand(-1, largest_key.shape[1], -1).gather(2, largest_key.clamp_min(0))
        counts = self.counted & eligible.queries[:, None] & on_key
        # below every weight, so that such a row is chosen only where no other is left
        weight, query = there(self.measures.largest).double().masked_fill(~counts, -1.0).max(-1, keepdim=True)
        return torch.cat([weight, query, largest_key.gather(-1, query)], -1).masked_fill(weight < 0, torch.nan)

    def weight_at(self, offset: int) -> Tensor:
        """``(batch, head)``: mean over rows of the weight at an offset of the band."""
        return self.band_sum[..., self.band_sum.shape[-1] // 2 + offset] / self.count

    @property
    def group_weight(self) -> Tensor:
        """``(batch, head, query group, key group)``: mean over the rows of one group of the weight on another."""
        on_keys = there(self.measures.columns)[..., GROUPS:].double()
        return self._by_groups(self._members.mT @ on_keys.where(self.counted[..., None], 0.0))

    @property
    def group_rows(self) -> Tensor:
        """The number of counted rows of each group, ``(batch, head, query group)``."""
        return self._members.sum(2)

    @property
    def position_group_weight(self) -> Tensor:
        """Group weights predicted from the weights at each offset alone; see `GroupPlaces`."""
        places = there(there(self.groups).places)
        sums = places.sums(self.measures, there(self.measures.columns)[..., FIRST], self.counted)
        return self._by_groups(places.fitted(sums, self.measures.mass.double().where(self.counted, 0.0), self._members))

    @property
    def _members(self) -> Tensor:
        """Indicators of the groups of queries, ``(batch, head, query, group)``, for counted rows."""
        groups = there(self.groups)
        return groups.columns(groups.queries).double()[:, None] * self.counted[..., None]

    def _by_groups(self, sums: Tensor) -> Tensor:
        """Means over queries from sums over them; NaN if either group is missing."""
        groups = there(self.groups)
        rows = self.group_rows[..., None]
        present = (rows > 0) & groups.columns(groups.keys).any(1)[:, None, None]
        return (sums / rows.clamp_min(1)).where(present, torch.nan)

    def of_weights(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """``(batch, head, query)``: a number of each row from its weights.

        The function gets a block of weights ``(batch, head, some queries, key)``, 0 where masked, and the positions of
        its queries, and returns ``(batch, head, some queries)``.
        """
        return torch.cat([function(weights, own).double() for own, weights in there(self.second.weights)()], 2)

    def mean_of(self, measure: str | RowMeasure) -> Tensor:
        """``(batch, head)``: mean over rows of what `row_values` names, or of a measure of the second pass."""
        if isinstance(measure, RowMeasure):
            return self.mean(there(self.second.rows.get(measure)))
        return self.total_of(measure) / self.count


def there(measured: Measured | None) -> Measured:
    if measured is None:  # the planner requests it
        raise AttnscopeError("found no such measure of the rows: a statistic names in its needs what it uses")
    return measured


COUNT = "count"  # of counted rows
_SINK = "squared sink"
_LONG = ("band", "bins")  # of several numbers a row


def row_values(measures: RowMeasures, name: str) -> Tensor:
    """A number of each row, ``(batch, head, query)``: a field, the weight on a column, or the square of the sink's."""
    if name in COLUMNS:
        return there(measures.columns)[..., COLUMNS.index(name)]
    return (1.0 - measures.mass) ** 2 if name == _SINK else there(getattr(measures, name))


@dataclass(frozen=True, eq=False)
class PackedSums:
    """Sums over the rows of several calls, their heads side by side, in one tensor that goes to the host at once."""

    names: Sequence[str]
    widths: Sequence[int]  # numbers of each
    packed: Tensor  # ``(batch, head, number)``, float64

    @classmethod
    def of(cls, several: Sequence[RowMeasures], valid: Tensor) -> PackedSums:
        """The sums over rows of `valid` queries, ``(batch, query)``."""
        has = [name for name, part in vars(several[0]).items() if part is not None and name != "log_sum_exp"]
        names = [name for name in has if name not in {*_LONG, "columns", "largest_key"}]
        names += [*COLUMNS] if "columns" in has else []
        values = torch.cat([row_values(rows, name) for name in names for rows in several], 1)
        # heads of one measure are adjacent: measures first, then layers and heads
        values = values.unflatten(1, (len(names), -1))
        mass = values[:, names.index("mass")]
        counted = valid[:, None] & (mass > 0)
        left_out, sink = ~counted, (1.0 - mass) ** 2
        parts = [
            values.masked_fill_(left_out[:, None], 0.0).sum(3).mT,
            counted.sum(2, dtype=torch.float64)[..., None],
            sink.masked_fill_(left_out, 0.0).sum(2)[..., None],
        ]
        for name in _LONG:
            if name in has:
                longer = torch.cat([there(getattr(rows, name)) for rows in several], 1)
                parts.append(longer.masked_fill_(left_out[..., None], 0.0).sum(2, dtype=torch.float64))
        widths = [1] * (len(names) + 2) + [part.shape[-1] for part in parts[3:]]
        return cls([*names, COUNT, _SINK, *(name for name in _LONG if name in has)], widths, torch.cat(parts, -1))

    def unpacked(self, packed: Tensor) -> dict[str, Tensor]:
        """The sums by name, from what arrived: ``(batch, head)``, or with the dimension of the band or the bins."""
        parts = zip(self.names, packed.split([*self.widths], -1), strict=True)
        return {name: part if name in _LONG else part[..., 0] for name, part in parts}


def indicator_columns(valid: Tensor, special: Tensor, groups: GroupMarks | None = None) -> Tensor:
    """Indicators of the keys of each of `COLUMNS`, ``(batch, key, column)``, and of each group; float32."""
    first = torch.zeros_like(special)
    # the first token that is not padding: tokenizers may pad on the left
    first.scatter_(1, first_of(valid)[:, None], value=True)
    indicators = {"first_token": first, "special_tokens": special & valid}
    columns = torch.stack([indicators[name] for name in COLUMNS], dim=-1).float()
    return columns if groups is None else torch.cat([columns, groups.columns(groups.keys)], dim=-1)


def first_of(valid: Tensor) -> Tensor:
    """Position of the first real token of each text, ``(batch,)``."""
    return valid.to(torch.uint8).argmax(1)


def reduce_call(
    rows: RowMeasures,
    names: Sequence[str],
    query_valid: Tensor,
    key_valid: Tensor,
    groups: GroupMarks | None = None,
    second: SecondPass = SecondPass(),
    eligible: Eligible | None = None,
    *,
    equal: bool = False,
    ids: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Statistics of one attention call: ``(batch, head)`` or with more dimensions, float64."""
    counted = query_valid[:, None] & (rows.mass > 0)
    sizes = query_valid.sum(1), key_valid.sum(1)
    whole = Rows(rows, counted, *sizes, first_of(key_valid), groups, second, eligible, ids)

    def of(name: str, own: Rows) -> Tensor:
        return ((KNOWN[name].of_equal if equal else None) or KNOWN[name].reduce)(own)

    reduced = {name: of(name, whole) for name in names}
    if groups is None:
        return reduced
    members = [replace(whole, counted=counted & (groups.queries == number)[:, None]) for number in range(groups.count)]
    return reduced | {
        f"{name}{BY_GROUP}": torch.stack([of(name, own) for own in members], -1) for name in by_group(names)
    }


def row_measures(call: AttentionCall, log_sum_exp: Tensor, measures: Sequence[RowMeasure]) -> dict[RowMeasure, Tensor]:
    """Measures of every row in one pass over the weights, float64; NaN where the log-sum-exp is."""
    level = log_sum_exp.masked_fill(log_sum_exp < torch.finfo(torch.float32).min / 2, torch.inf)
    totals = [torch.zeros_like(level, dtype=torch.float64) for _ in measures]

    def add(weights: Tensor, rows: slice, _: slice, *of_measures: Tensor) -> None:
        for one, total in zip(measures, of_measures, strict=True):
            total[..., rows] = one.join(total[..., rows], one.of_tile(weights).double())

    each_tile(call, level, totals, add)
    both = zip(measures, totals, strict=True)
    return {one: one.finish(total).masked_fill(level.isnan(), torch.nan) for one, total in both}


_WEIGHTS_AT_ONCE = 1 << 23  # numbers of a block of weights, 64 MiB


def weights_in_blocks(call: AttentionCall, log_sum_exp: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every weight, float64: the positions of some queries, and their rows ``(batch, head, some queries, key)``."""
    level = log_sum_exp.masked_fill(log_sum_exp < torch.finfo(torch.float32).min / 2, torch.inf)
    batch, heads, queries, keys = *call.query.shape[:3], call.key.shape[2]
    step = max(1, _WEIGHTS_AT_ONCE // (batch * heads * keys))
    for own in torch.arange(queries, device=call.query.device).split(step):
        rows = slice(int(own[0]), int(own[-1]) + 1)
        yield own, (scores_of(call, rows).double() - level[..., rows, None]).exp_()


_OFFSETS_AT_ONCE = 16  # offsets whose weights are in memory for every query before they are summed


def second_pass(
    call: AttentionCall,
    log_sum_exp: Tensor,
    valid: Tensor,
    needs: Collection[str | RowMeasure],
    observation: int,
    reach: int,
    chosen: Sequence[int] = (),
) -> SecondPass:
    """Sums over the `valid` queries, ``(batch, query)``: `recent` over the last `observation`, offsets to `reach`."""
    at_chosen = None
    if CHOSEN in needs:
        forbidden = log_sum_exp < torch.finfo(torch.float32).min / 2  # a bias forbids all, as -inf does
        counted = (valid[:, None] & ~forbidden)[..., None]
        sums = [
            weights_at_offsets(call, log_sum_exp, chosen[first : first + _OFFSETS_AT_ONCE])
            .where(counted, 0.0)
            .sum(2, dtype=torch.float64)
            for first in range(0, len(chosen), _OFFSETS_AT_ONCE)
        ]
        at_chosen = torch.cat(sums, -1)
    measures = of_rows(needs)
    rows = row_measures(call, log_sum_exp, measures) if measures else {}
    weights = partial(weights_in_blocks, call, log_sum_exp) if EVERY_WEIGHT in needs else None
    if not SECOND_PASS & {*needs}:
        return SecondPass(chosen=at_chosen, rows=rows, weights=weights, group=call.group)
    # where no query may attend to a later key, the mean offset is the mean distance
    by_offset = "distance" in needs and not bool((call.extent[1] <= call.query_positions + 1).all())
    by_offset |= "offset_sum" in needs
    both = weight_sums(call, log_sum_exp, valid, received="received" in needs, offsets=by_offset)
    recent = column_sums(call, log_sum_exp, valid, observation) if "recent" in needs else None
    offsets = both.offsets
    if offsets is not None:  # from -reach to reach; 0 at offsets that the text lacks
        offsets = pad(offsets, (reach - call.query.shape[2] + 1, reach - call.key.shape[2] + 1))
    return SecondPass(both.received, recent, offsets, chosen=at_chosen, rows=rows, weights=weights, group=call.group)
