"""What a head's places alone give a group: the weight at each offset and on the first token, whatever stands there.

Of all tables of weights the one of `attnscope.statistics._fitted_places`, whose places are offsets, far bins of offsets
and the first token: a head whose scores know nothing but the place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from attnscope.attention import segments
from attnscope.statistics._fitted_places import NONE, fitted_places
from attnscope.statistics._visible import allowed_by_rows, keys_at, without_gaps

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.attention import AttentionCall, Need, RowMeasures

_AT_ONCE = 1 << 22  # numbers, where a mask has gaps


@dataclass(frozen=True, eq=False)
class GroupPlaces:
    """The places that a query may look at: each near offset, far bins of offsets, and at last the first token.

    Attributes
    ----------
    edges
        ``(place,)``: the first offset of each place of offsets, and one past the last.
    first
        ``(batch, key)``: True at the first real key.
    seen
        ``(batch, query, place, group)``: how many keys of each group a query may see at each place.
    """

    edges: Tensor
    first: Tensor
    seen: Tensor

    @classmethod
    def of(cls, call: AttentionCall, need: Need, first: Tensor, groups: Tensor) -> GroupPlaces:
        """Count the keys of each group; `first` and `groups` are indicators, ``(batch, key)`` and one more dimension.

        Heads with masks of their own share one answer, of the first head.

        Examples
        --------
        >>> from attnscope.attention import AttentionCall, Need
        >>> x = torch.zeros(1, 1, 3, 4)
        >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
        >>> first, groups = torch.tensor([[True, False, False]]), torch.ones(1, 3, 1)
        >>> places = GroupPlaces.of(call, Need(band=1, bins=(2,)), first, groups)
        >>> places.seen[0, :, :, 0].tolist()  # offsets below -1, -1, 0, 1, above 1; the first token
        [[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]]
        """
        far = torch.from_numpy(segments(need.bins)).to(groups.device)
        near = torch.arange(2 - need.bins[0], need.bins[0], device=groups.device)
        left, right = far.split(len(need.bins) + 1)
        edges = torch.cat([left, near, right])
        others = groups * ~first[..., None]
        of_first = (groups * first[..., None]).sum(1)
        count = _of_extents if without_gaps(call) else _of_allowed
        offsets, first_seen = count(call, edges, others, first.to(torch.uint8).argmax(1))
        at_first = (first_seen[..., None] * of_first[:, None])[:, :, None]
        return cls(edges, first, torch.cat([offsets, at_first], dim=2))

    def sums(self, rows: RowMeasures, on_first: Tensor, counted: Tensor) -> Tensor:
        """The weights at each place, summed over rows: ``(batch, head, place)``; `on_first` are those on the first."""
        band, bins = rows.band, rows.bins
        if band is None or bins is None:  # the planner asked for both
            return on_first.new_zeros(())
        near = len(self.edges) - 1 - bins.shape[-1]
        middle = band.shape[-1] // 2
        left, right = bins.double().split(bins.shape[-1] // 2, dim=-1)
        inner = band[..., middle - near // 2 : middle + near // 2 + 1].double()
        each = torch.cat([left, inner, right], dim=-1)
        own = torch.arange(each.shape[2], device=each.device)
        offset = self.first.to(torch.uint8).argmax(1)[:, None] - own  # of the first key
        place = torch.bucketize(offset, self.edges, right=True) - 1
        place = place[:, None, :, None].expand(-1, each.shape[1], -1, -1)
        each = each.scatter_add(3, place, -on_first.double()[..., None]).clamp_min(0.0)
        each = torch.cat([each, on_first.double()[..., None]], dim=-1)
        return each.where(counted[..., None], 0.0).sum(2)

    def fitted(self, sums: Tensor, mass: Tensor, members: Tensor) -> Tensor:
        """Weights of a head that knows its places alone, summed over the queries of one group and the keys of another.

        Parameters
        ----------
        sums
            From `sums`.
        mass
            Sum of each row, ``(batch, head, query)``; 0 where a row does not count.
        members
            Indicators of the groups of queries, ``(batch, head, query, group)``.

        Returns
        -------
        Tensor
            ``(batch, head, query group, key group)``.
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
