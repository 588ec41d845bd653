"""What is had of a call once its log-sum-exp is known: sums over keys and over offsets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, column_sums, weight_sums, weights_at_offsets
from attnscope.statistics._catalogue import CHOSEN, KNOWN, SECOND_PASS
from attnscope.statistics._rows import SecondPass

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

OBSERVATION = 32  # queries, as SnapKV has them
_OFFSETS_AT_ONCE = 16  # whose weights are there for every query before they are summed


@dataclass(frozen=True)
class Asking:
    """What is asked of a second pass.

    Attributes
    ----------
    needs
        Which of `SECOND_PASS`, and `CHOSEN`.
    observation
        Queries at the end of each text whose weights `recent` sums.
    reach
        Largest offset: what lies beyond is left out.
    chosen
        Offsets that were chosen.

    Examples
    --------
    >>> from attnscope.attention import Need, measure
    >>> x = torch.zeros(1, 1, 3, 8)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> lse = measure(call, Need())[1].log_sum_exp
    >>> sums = Asking({"recent"}, observation=1, reach=2).of(call, lse, torch.tensor([[True, True, False]]))
    >>> sums.recent[0, 0].tolist()
    [0.5, 0.5, 0.0]
    """

    needs: Collection[str]
    observation: int
    reach: int
    chosen: Sequence[int] = ()

    @classmethod
    def for_names(
        cls,
        names: Sequence[str],
        observation: int,
        reach: int,
        chosen: Sequence[int] = (),
        *,
        equal: bool = False,
    ) -> Asking:
        """What these statistics need, of heads or of equal weights."""
        needs = {need for name in names for need in KNOWN[name].asks(equal=equal)}
        return cls(needs, observation, reach, chosen)

    def of(self, call: AttentionCall, log_sum_exp: Tensor, valid: Tensor) -> SecondPass:
        """Sums over the `valid` queries, ``(batch, query)``, of a call with this log-sum-exp."""
        wanted = SECOND_PASS & set(self.needs)
        chosen = self._at_chosen(call, log_sum_exp, valid) if CHOSEN in self.needs else None
        if not wanted:
            return SecondPass(chosen=chosen)
        offsets = "offset_sum" in wanted or ("distance" in wanted and not _looks_back(call))
        sums = weight_sums(call, log_sum_exp, valid, received="received" in wanted, offsets=offsets)
        recent = column_sums(call, log_sum_exp, valid, self.observation) if "recent" in wanted else None
        return SecondPass(sums.received, recent, self._centred(call, sums.offsets), chosen=chosen)

    def of_equal(self, call: AttentionCall, log_sum_exp: Tensor, valid: Tensor) -> SecondPass:
        """The same of equal weights over whatever the first head may see: one head."""
        if not {*SECOND_PASS, CHOSEN} & set(self.needs):
            return SecondPass()
        # equal weights have no mean offset to tell the distance by
        every = replace(self, needs={*self.needs} | ({"offset_sum"} if "distance" in self.needs else set()))
        return every.of(evenly(call), log_sum_exp, valid)

    def _at_chosen(self, call: AttentionCall, log_sum_exp: Tensor, valid: Tensor) -> Tensor:
        """Sums over the `valid` queries at each chosen offset; n d work for each."""
        nowhere = log_sum_exp < torch.finfo(torch.float32).min / 2  # a bias forbids all, as -inf does
        counted = (valid[:, None] & ~nowhere)[..., None]
        sums = [
            weights_at_offsets(call, log_sum_exp, self.chosen[first : first + _OFFSETS_AT_ONCE])
            .where(counted, 0.0)
            .sum(2, dtype=torch.float64)
            for first in range(0, len(self.chosen), _OFFSETS_AT_ONCE)
        ]
        return torch.cat(sums, -1)

    def _centred(self, call: AttentionCall, offsets: Tensor | None) -> Tensor | None:
        """From ``-reach`` to ``reach``; 0 where the text has no such offset."""
        if offsets is None:
            return None
        sides = (self.reach - size + 1 for size in (call.query.shape[2], call.key.shape[2]))
        return torch.nn.functional.pad(offsets, tuple(sides))


def _looks_back(call: AttentionCall) -> bool:
    """Whether no query may look at a later key."""
    return bool((call.extent[1] <= call.query_positions + 1).all())


def settings_of(names: Sequence[str], observation: int) -> dict[str, int]:
    """What a signature says of the observation window: nothing where no statistic is over it.

    Examples
    --------
    >>> settings_of(["entropy"], 32), settings_of(["recent_top_key"], 32)
    ({}, {'observation': 32})
    """
    return {"observation": observation} if "recent" in Asking.for_names(names, observation, 0).needs else {}


def evenly(call: AttentionCall) -> AttentionCall:
    """A call of one head with equal weights over whatever the first head may see.

    Examples
    --------
    >>> x = torch.randn(1, 2, 3, 8)
    >>> evenly(AttentionCall(x, x, x, scale=1.0)).query.shape
    torch.Size([1, 1, 3, 1])
    """
    query, key, value = (torch.zeros_like(side[:, :1, :, :1]) for side in (call.query, call.key, call.value))
    bias = None
    if call.bias is not None:
        forbids = call.bias[:, :1] <= torch.finfo(call.bias.dtype).min / 2
        bias = forbids.to(call.bias.dtype).masked_fill(forbids, -torch.inf)  # also one by offset alone
    mask = None if call.mask is None else call.mask[:, :1]
    return replace(call, query=query, key=key, value=value, mask=mask, bias=bias, softcap=None, sinks=None)
