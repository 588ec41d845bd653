"""How much may be in memory at once: how long a text may be of which matrices of all layers are."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnscope.attention import AttentionCall
from attnscope.errors import AttnscopeError

MATRIX_BYTES = 2 << 30
NUMBERS_AT_ONCE = 1 << 25  # 128 MiB of weights, or of probabilities
_IN_A_GRAPH = 4  # matrices of each head: scores, their exponentials and what makes weights of them


def check_matrices(calls: Iterable[AttentionCall], name: str, *, in_a_graph: bool) -> None:
    """Refuse a text whose weights, of all heads of these calls, take more than 2 GiB.

    Parameters
    ----------
    calls
        Attention calls of one text.
    name
        Name of the text.
    in_a_graph
        Whether a backward pass goes through them, which keeps several matrices a head.

    Raises
    ------
    AttnscopeError
        If they take more.

    Examples
    --------
    >>> x = torch.zeros(1, 16, 6000, 1)
    >>> check_matrices([AttentionCall(x, x, x, scale=1.0)], "essay.txt", in_a_graph=False)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: essay.txt has 6000 tokens, whose matrices of weights take more than 2 GiB: give a
    smaller window, or leave out what needs them
    """
    needed = longest = 0
    for call in calls:
        numbers = call.query.shape[1] * call.query.shape[2] * call.key.shape[2]
        wide = torch.promote_types(call.query.dtype, torch.float32).itemsize
        needed += numbers * wide * (_IN_A_GRAPH if in_a_graph else 1)
        longest = max(longest, call.query.shape[2], call.key.shape[2])
    if needed > MATRIX_BYTES:
        backward = " in a backward pass" if in_a_graph else ""
        raise AttnscopeError(
            f"{name} has {longest} tokens, whose matrices of weights take more than {MATRIX_BYTES >> 30} GiB"
            f"{backward}: give a smaller window, or leave out what needs them"
        )
