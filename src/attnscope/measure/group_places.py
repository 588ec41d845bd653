"""What a head's places alone give a group: the weight at each offset and on the first token, whatever stands there.

Of all tables of weights the one of `attnscope.measure.forms`, whose places are offsets and far bins of
offsets, of the first token and of all others: a head whose scores depend on the place alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import one_hot, pad

from attnscope.kernels.bins import segments
from attnscope.measure.forms import NONE, fitted_places
from attnscope.measure.visible import allowed_by_rows, keys_at, without_gaps

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.kernels.call import AttentionCall, Need, RowMeasures

_AT_ONCE = 1 << 22  # numbers, where a mask has gaps


@dataclass(frozen=True, eq=False)
class GroupPlaces:
    """The places that a query may attend to: offsets of the band and far bins; the same of the first token, apart."""

    edges: Tensor  # ``(place,)``: the first offset of each place of offsets, and one past the last
    far: int  # the first offset to the right that a far bin of the pass holds; some of its offsets may be in the band
    # ``(batch, query)``: the place of offsets that the first real key has, and its number among those that occur
    offset_of_first: Tensor
    first_at: Tensor
    seen: Tensor  # ``(batch, query, place, group)``: how many keys of each group a query may see at each place

    @classmethod
    def of(cls, call: AttentionCall, need: Need, first: Tensor, groups: Tensor) -> GroupPlaces:
        """Count the keys of each group; `first` and `groups` are indicators, ``(batch, key)`` and one more
        dimension.
        """
        band = need.band or 0
        starts = (band + 1, *need.bins[1:])  # each offset of the band is a place
        far = torch.from_numpy(segments(starts)).to(groups.device)
        near = torch.arange(1 - band, band + 1, device=groups.device)
        left, right = far.split(len(starts) + 1)
        edges = torch.cat([left, near, right])
        others = groups * ~first[..., None]
        of_first = (groups * first[..., None]).sum(1)
        first_key = first.to(torch.uint8).argmax(1)
        count = _of_extents if without_gaps(call) else _of_allowed
        offsets, first_seen = count(call, edges, others, first_key)
        own = torch.arange(call.query.shape[2], device=edges.device)
        offset_of_first = torch.bucketize(first_key[:, None] - own, edges, right=True) - 1
        occurring, first_at = offset_of_first.unique(return_inverse=True)
        at_first = (
            one_hot(first_at, len(occurring))[..., None] * (first_seen[..., None] * of_first[:, None])[:, :, None]
        )
        return cls(edges, need.bins[0], offset_of_first, first_at, torch.cat([offsets, at_first], dim=2))

    def sums(self, rows: RowMeasures, on_first: Tensor, counted: Tensor) -> Tensor:
        """The weights at each place, summed over rows: ``(batch, head, place)``; `on_first` are those on the first."""
        band, bins = rows.band, rows.bins
        if band is None or bins is None:  # the planner asked for both
            return on_first.new_zeros(())
        band, middle = band.double(), band.shape[-1] // 2
        left, right = bins.double().split(bins.shape[-1] // 2, dim=-1)
        # the pass counts from a power of two on: the nearest far bins hold the ends of the band too
        left_end = left[..., -1:] - band[..., : middle + 1 - self.far].sum(-1, keepdim=True)
        right_end = right[..., :1] - band[..., middle + self.far :].sum(-1, keepdim=True)
        each = torch.cat([left[..., :-1], left_end, band, right_end, right[..., 1:]], dim=-1)
        on_first = on_first.double()[..., None]
        offset, at = (place[:, None, :, None].expand_as(on_first) for place in (self.offset_of_first, self.first_at))
        others = each.scatter_add(3, offset, -on_first).clamp_min(0.0)
        firsts = each.new_zeros(*each.shape[:3], self.seen.shape[2] - each.shape[3]).scatter(3, at, on_first)
        return torch.cat([others, firsts], dim=-1).where(counted[..., None], 0.0).sum(2)

    def fitted(self, sums: Tensor, mass: Tensor, members: Tensor) -> Tensor:
        """Weights of a head that knows its places alone, summed over the queries of one group and the keys of
        another.
        """
        seen = self.seen.double()
        share, row = fitted_places(sums, mass, seen.sum(-1))
        on_keys = torch.einsum("bhp,bqpk->bhqk", share, seen) * row[..., None]
        whole = on_keys.sum(-1, keepdim=True)
        on_keys = on_keys * (mass[..., None] / whole.clamp_min(NONE))  # rows sum up as the head's own do
        return members.mT @ on_keys


def _of_extents(call: AttentionCall, edges: Tensor, others: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Arithmetic on the first and last key that each query may see."""
    start, stop = (bound.expand(len(call.query), -1) for bound in call.extent)
    at = keys_at(edges, start, stop)
    before = pad(others.cumsum(1), (0, 0, 1, 0))
    flat = at.flatten(1)[..., None].expand(-1, -1, before.shape[-1])
    offsets = before.gather(1, flat).unflatten(1, at.shape[1:]).diff(dim=2)
    seen = (start <= first[:, None]) & (first[:, None] < stop)
    return offsets, seen


def _of_allowed(call: AttentionCall, edges: Tensor, others: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the allowed keys themselves, where a mask has gaps."""
    batch, _, queries, _ = call.query.shape
    keys, groups = others.shape[1:]
    offsets: list[Tensor] = []
    seen: list[Tensor] = []
    for text, own, allowed in allowed_by_rows(call, max(1, _AT_ONCE // (keys * groups))):
        before = pad((allowed[..., None] * others[text]).cumsum(1), (0, 0, 1, 0))
        at = (own[:, None] + edges).clamp(0, keys)
        offsets.append(before.gather(1, at[..., None].expand(-1, -1, groups)).diff(dim=1))
        seen.append(allowed[:, first[text]])
    shape = (batch, queries)
    return torch.cat(offsets).unflatten(0, shape), torch.cat(seen).unflatten(0, shape)
