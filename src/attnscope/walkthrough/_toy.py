"""The example of a first lesson: one head, random numbers, nothing to load."""

from __future__ import annotations

import torch

from attnscope._caller import own_random_numbers
from attnscope.attention import SelfAttention
from attnscope.checks import check_seed
from attnscope.walkthrough._compute import HeadInputs, check_number, difference, follow, with_matrices
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
    output, weights = attention(x)
    first = x[0].double().numpy()
    matrices = {
        symbol: (layer.weight.double().numpy().T, layer.bias.double().numpy())
        for symbol, layer in (("Q", attention.query), ("K", attention.key), ("V", attention.value))
    }
    Q, K, V = (first @ matrix + bias for matrix, bias in matrices.values())
    scale = _WIDTH**-0.5
    arrays = follow(HeadInputs(Q, K, V, scale)).assign(with_matrices(first, first, matrices))
    own = {"weights": weights[0].double().numpy(), "head_output": output[0].double().numpy()}
    names = tuple(f"x{'₁₂₃₄'[position]}" for position in range(_TOKENS))
    return Walk(
        model="SelfAttention(8)",
        module="",
        layer=0,
        head=0,
        heads=1,
        kv_heads=1,
        kinds=("self",),
        form="bilinear",
        reason="",
        scale=scale,
        softcap=None,
        tokens=names,
        keys=names,
        token=check_number("token", token, _TOKENS),
        arrays=arrays,
        errors={name: difference(arrays[name].values, array) for name, array in own.items()},
        texts=_TEXTS,
    )
