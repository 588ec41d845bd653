"""An attention call of which nothing is known but its weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.attention._call import AttentionCall, RowMeasures

_NOTHING = -1e3  # score of a weight of 0 where a key is seen: e to that power is 0 in every float type


def call_of_weights(weights: Float[Tensor, "batch head query key"]) -> AttentionCall:
    r"""Turn weights into a call that has them: queries and keys without width, and :math:`\ln A` as the bias.

    Softmax gives back what it is made of: :math:`\mathrm{softmax}(\ln A) = A` where each row sums to 1. So whatever
    measures calls measures weights, to the rounding of a logarithm. There are no values either: the output has no
    width.

    Parameters
    ----------
    weights
        Each row sums to 1, or is all zeros. A key to which no head gives any weight counts as forbidden by a mask.

    Returns
    -------
    AttentionCall
        In float32 or wider.

    Examples
    --------
    >>> from attnscope.attention import Need, measure
    >>> weights = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
    >>> call = call_of_weights(weights)
    >>> call.query.shape, call.allowed(text=0, head=0).tolist()
    (torch.Size([1, 1, 2, 0]), [[True, False], [True, True]])
    >>> measure(call, Need(band=1))[1].band[0, 0].round(decimals=6).tolist()
    [[0.0, 1.0, 0.0], [0.25, 0.75, 0.0]]
    """
    batch, heads, queries, keys = weights.shape
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    there = ~(wide == 0)  # NaN too
    looks = there.any(-1, keepdim=True)
    seen = there.any(1, keepdim=True)
    if not bool((looks == looks[:, :1]).all()):  # some heads look nowhere from where others look
        seen = seen & looks
    return AttentionCall(
        query=wide.new_empty(batch, heads, queries, 0),
        key=wide.new_empty(batch, heads, keys, 0),
        value=wide.new_empty(batch, heads, keys, 0),
        scale=1.0,
        mask=None if bool(seen.all()) else seen,
        bias=wide.log().clamp_min_(_NOTHING),
    )


def with_mass(rows: RowMeasures, mass: Float[Tensor, "batch head query"]) -> RowMeasures:
    r"""What rows that sum to 1 measure once they are scaled to sum to `mass`: the rest lies on no token.

    Weights, band, bins and columns are scaled; :math:`\sum A^2` by the square; the entropy of :math:`m A` is
    :math:`m H(A) - m \ln m`; mean and variance of the offset are of the weights alone, and stay.

    Parameters
    ----------
    rows
        Measures of weights whose rows sum to 1, or are of zeros.
    mass
        0 to 1.

    Examples
    --------
    >>> from attnscope.attention import Need, measure
    >>> halves = torch.tensor([[[[0.5, 0.5]]]], dtype=torch.float64)
    >>> rows = measure(call_of_weights(halves), Need(entropy=True, largest=True))[1]
    >>> less = with_mass(rows, torch.tensor([[[0.5]]], dtype=torch.float64))  # weights of 1/4 and 1/4
    >>> less.largest.item(), round(less.entropy.exp().item(), 6)
    (0.25, 2.0)
    """
    scaled = {
        name: value * mass[(...,) + (None,) * (value.ndim - mass.ndim)]
        for name in ("largest", "band", "bins", "columns")
        if (value := getattr(rows, name)) is not None
    }
    entropy = None if rows.entropy is None else mass * rows.entropy - torch.xlogy(mass, mass)
    collision = None if rows.collision is None else rows.collision * mass**2
    return replace(rows, mass=rows.mass * mass, entropy=entropy, collision=collision, **scaled)
