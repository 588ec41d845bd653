"""The example of a first lesson: one head, random numbers, nothing to load."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnscope._caller import own_random_numbers
from attnscope.attention import SelfAttention
from attnscope.checks import check_seed
from attnscope.walkthrough._module import walk_module
from attnscope.walkthrough._result import Walk

_TEXTS, _TOKENS, _WIDTH = 2, 4, 8


@torch.no_grad()
def walk_toy(*, token: int = 0, seed: int = 0) -> Walk:
    """Walk through `attnscope.attention.SelfAttention` of width 8, over 2 texts of 4 tokens of random numbers.

    Parameters
    ----------
    token
        Position of the query whose row is followed.
    seed
        Seed of the numbers.

    Raises
    ------
    AttnscopeError
        If there is no such token.

    Examples
    --------
    >>> toy = walk_toy()
    >>> toy["weights"].shape, toy["head_output"].shape, toy.texts
    ((4, 4), (4, 8), 2)
    >>> float(toy["weights"].sum(-1).round(12)[0])
    1.0
    """
    check_seed(seed)
    with own_random_numbers():
        torch.default_generator.manual_seed(seed)
        x, attention = torch.rand(_TEXTS, _TOKENS, _WIDTH), SelfAttention(_WIDTH)
    return replace(walk_module(attention, x, token=token), drawn=True)
