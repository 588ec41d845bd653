"""How much of the weight the best blocks hold: what block-sparse attention could leave out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from attnscope.attention import BLOCK, Need, block_weights, measure
from attnscope.statistics._equal import equal_rows
from attnscope.statistics._visible import bias_forbids

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.attention import AttentionCall

KEPT = (5, 10, 25)  # percent of the blocks


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Weights of a call in blocks of 64 queries by 64 keys.

    Attributes
    ----------
    total
        ``(batch, head, query_block, key_block)``: sum of the weights of the queries that count.
    seen
        ``(batch, 1, query_block, key_block)``: whether any of them may look at a key of the block.
    """

    total: Tensor
    seen: Tensor

    @classmethod
    def of(
        cls, call: AttentionCall, log_sum_exp: Tensor, counted: Tensor, equal: AttentionCall | None = None
    ) -> tuple[BlockSums, BlockSums]:
        """Those of a call and those of equal weights; `counted` is ``(batch, query)``, False on padding."""
        even = equal_call(call) if equal is None else equal
        level = (
            equal_rows(call, Need()).log_sum_exp if equal is None else measure(even, Need())[1].log_sum_exp
        )
        own, null = (
            block_weights(each, lse.masked_fill(~counted[:, None], torch.inf), BLOCK).total
            for each, lse in ((call, log_sum_exp), (even, level))
        )
        seen = null[:, :1] > 0
        return cls(own, seen), cls(null[:, :1], seen)

    def recall(self) -> Tensor:
        r"""Share of the weight that the best blocks of each row of blocks hold, ``(batch, head, kept)``.

        Of v blocks that a row of blocks may see, those :math:`\lceil k v / 100 \rceil` with the largest sums are kept:
        what a method would keep that knew the weights and gave each block of queries the same share of its keys (the
        block-sparse pattern of MInference, Jiang et al. 2024, section 3).
        """
        return self._held(self.total, self.seen)

    def map_recall(self) -> Tensor:
        """The same where the best blocks of the whole map are kept, in whatever rows they lie."""
        return self._held(self.total.flatten(2)[:, :, None], self.seen.flatten(2)[:, :, None])

    @staticmethod
    def _held(total: Tensor, seen: Tensor) -> Tensor:
        best = total.double().sort(-1, descending=True).values.cumsum(-1)
        count = seen.sum(-1)
        held: list[Tensor] = []
        for percent in KEPT:
            last = ((count * percent + 99) // 100).clamp_min(1) - 1
            held.append(best.gather(-1, last.expand(best.shape[:-1])[..., None])[..., 0].sum(-1))
        return torch.stack(held, -1) / best[..., -1].sum(-1, keepdim=True)


def equal_call(call: AttentionCall) -> AttentionCall:
    """A call of one head with equal weights over what may be seen: queries and keys without width."""
    forbidden = None
    if call.bias is not None and bias_forbids(call):
        least = torch.finfo(call.bias.dtype).min / 2
        forbidden = torch.zeros_like(call.bias[:, :1]).masked_fill_(call.bias[:, :1] <= least, -torch.inf)
    return replace(
        call,
        query=call.query[:, :1, :, :0],
        key=call.key[:, :1, :, :0],
        value=call.value[:, :1, :, :0],
        mask=None if call.mask is None else call.mask[:, :1],
        bias=forbidden,
        softcap=None,
        sinks=None,
    )
