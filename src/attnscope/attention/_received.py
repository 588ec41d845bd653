"""Attention received: what each key is given by all queries, or by the last ones."""

from __future__ import annotations

from typing import cast

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.attention._call import AttentionCall
from attnscope.attention._sizes import check_least
from attnscope.attention._weight_sums import weight_sums


def column_sums(
    call: AttentionCall,
    log_sum_exp: Float[Tensor, "batch head query"],
    counted: Bool[Tensor, "_ query"] | None = None,
    last: int | None = None,
) -> Float[Tensor, "batch head key"]:
    r"""Sum of the weights on each key, :math:`\sum_i A_{ij}`: the column sums, exact and in O(n) memory.

    On CUDA the kernel attends once more with queries and keys exchanged (see `exchanged`); elsewhere tiles of weights
    are made anew and summed. Either costs about what the first pass does, or less; of the last w of n queries, w/n.

    Parameters
    ----------
    call
        The attention call.
    log_sum_exp
        Log-sum-exp of each row, as `measure` gives it.
    counted
        ``(batch or 1, query)``: which queries count, as those of padding should not; by default all.
    last
        The last so many of these alone: the observation window of SnapKV (Li et al. 2024) and the like.

    Returns
    -------
    Tensor
        ``(batch, head, key)``, in queries: over all keys it adds up to how many queries count, less what learned sinks
        take. A query head has its own, also where it shares keys.

    Raises
    ------
    AttnscopeError
        If `last` is below 1.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import Need, measure
    >>> x = torch.zeros(1, 1, 4, 8)
    >>> call = AttentionCall(x, x, x, scale=1.0, causal=True)
    >>> lse = measure(call, Need())[1].log_sum_exp
    >>> column_sums(call, lse)[0, 0].round(decimals=3).tolist()
    [2.083, 1.083, 0.583, 0.25]
    >>> column_sums(call, lse, last=1)[0, 0].round(decimals=3).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    if last is not None:
        check_least(1, last=last)
        counted = last_of(
            log_sum_exp.new_ones(1, log_sum_exp.shape[-1]) > 0 if counted is None else counted, last
        )
    return cast("Tensor", weight_sums(call, log_sum_exp, counted, received=True).received)


def last_of(counted: Bool[Tensor, "batch query"], last: int) -> Bool[Tensor, "batch query"]:
    """The last so many of those that count.

    Parameters
    ----------
    counted
        Mask of the queries that count, ``(batch, query)``.
    last
        Number of queries of each text that are kept.

    Examples
    --------
    >>> import torch
    >>> last_of(torch.tensor([[True, True, False, True, False]]), 2).tolist()
    [[False, True, False, True, False]]
    """
    return counted & (counted.flip(-1).cumsum(-1).flip(-1) <= last)
