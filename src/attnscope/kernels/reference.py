"""Attention as it is written: scores, mask, softmax, weighted sum."""

import math

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from attnscope.support.errors import AttnscopeError


def attend(
    query: Float[Tensor, "*batch query width"],
    key: Float[Tensor, "*batch key key_width"],
    value: Float[Tensor, "*batch value value_width"],
    mask: Shaped[Tensor, "..."] | None = None,
    scale: float | None = None,
    *,
    bias: Float[Tensor, "..."] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*batch query value_width"], Float[Tensor, "*batch query key"]]:
    r"""Explicit attention: :math:`A = \mathrm{softmax}(\text{scale}\, Q K^T + M)`, :math:`O = A V`.

    All weights are in memory. This is the definition of attention (Vaswani et al. 2017, equation 1), and the reference
    of the tests of faster passes.

    Parameters
    ----------
    query, key, value
        Shapes ``(..., query, width)``, ``(..., key, width)`` and ``(..., key, value_width)``.
    mask
        Broadcastable to ``(..., query, key)``; True where a query may attend.
    scale
        Factor of the scores; ``1 / sqrt(width)`` where it is None.
    bias
        Added to the scores before the softmax (ALiBi, T5), broadcastable to ``(..., query, key)``.
    softcap
        Scores become ``softcap * tanh(scores / softcap)`` (Gemma 2), before the bias.
    sinks
        One extra logit a head that takes part in the softmax and carries no value (GPT-OSS),
        broadcastable to ``(..., query, 1)``. The weights then sum to less than 1.

    Returns
    -------
    output : Tensor
        ``(..., query, value_width)``.
    weights : Tensor
        ``(..., query, key)``; masked entries are exactly 0. A row without allowed keys is all
        zeros, and so is its output.

    Raises
    ------
    AttnscopeError
        If the widths of query and key, or the lengths of key and value, differ, or the mask is not of booleans.

    Examples
    --------
    >>> import torch
    >>> x = torch.eye(3).unsqueeze(0)
    >>> output, weights = attend(x, x, x, mask=causal_mask(3, 3))
    >>> weights[0, 0].tolist()
    [1.0, 0.0, 0.0]
    >>> bool(torch.allclose(weights.sum(-1), torch.ones(1, 3)))
    True
    """
    check_operands(query, key, value)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = scale * query @ key.transpose(-2, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    weights = masked_softmax(scores, mask, sinks)
    return weights @ value, weights


def masked_softmax(
    scores: Float[Tensor, "..."], mask: Shaped[Tensor, "..."] | None = None, sinks: Float[Tensor, "..."] | None = None
) -> Float[Tensor, "..."]:
    r"""Softmax over the last dimension, of what the mask allows; all zeros where it allows nothing.

    Parameters
    ----------
    scores
        ``(..., query, key)``.
    mask
        Booleans that broadcast to the scores, True where attention is allowed.
    sinks
        Logits that broadcast to ``(..., query, 1)``: each adds :math:`e^{s}` to the denominator and has no weight
        itself, so that a row's weights add up to less than 1.

    Raises
    ------
    AttnscopeError
        If the mask is not of booleans: a mask of zeros and ones, or one that is added to the scores.
    """
    if mask is not None:
        if mask.dtype != torch.bool:
            raise AttnscopeError(
                f"mask holds {str(mask.dtype).removeprefix('torch.')}: expected booleans, True where attention is "
                "allowed (mask.bool() of zeros and ones; bias=mask for what is added to the scores)"
            )
        scores = scores.masked_fill(~mask, -math.inf)
    largest = scores.amax(-1, keepdim=True)
    if sinks is not None:
        largest = torch.maximum(largest, sinks.to(scores.dtype))
    largest = largest.clamp_min(torch.finfo(scores.dtype).min)  # a row of -inf must not give NaN
    # softmax cancels the constant, so its gradient does not count
    weights = torch.exp(scores - largest.detach())
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - largest.detach())
    return weights / torch.where(total > 0, total, 1.0)


def padding_mask(valid: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Mask that excludes padding for every query, for `attend`.

    Parameters
    ----------
    valid
        True for tokens, False for padding.
    """
    return valid[:, None, None, :]


def causal_mask(queries: int, keys: int, device: torch.device | str = "cpu") -> Bool[Tensor, "query key"]:
    """Mask that lets query ``i`` attend to keys ``0..i``, on `device`."""
    return window_mask(queries, keys, left=None, right=0, device=device)


def window_mask(
    queries: int, keys: int, *, left: int | None, right: int | None, device: torch.device | str = "cpu"
) -> Bool[Tensor, "query key"]:
    """Mask that lets query ``i`` attend to keys ``i - left .. i + right``.

    Parameters
    ----------
    queries, keys
        Lengths, tokens; the first query is at the first key.
    left, right
        Tokens on each side; None means without limit.
    device
        Device of the mask.
    """
    offset = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
    allowed = torch.ones_like(offset, dtype=torch.bool)
    if left is not None:
        allowed &= offset >= -left
    if right is not None:
        allowed &= offset <= right
    return allowed


def check_width(name: str, states: Tensor, width: int) -> None:
    """Check that states have the width of a layer."""
    if states.shape[-1] != width:
        raise AttnscopeError(
            f"{name} are {states.shape[-1]} wide; expected {width}, as this was made: give those, or make it for width "
            f"{states.shape[-1]}"
        )


def check_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that queries and keys have one width, and keys and values one length."""
    if query.shape[-1] != key.shape[-1]:
        raise AttnscopeError(
            f"query is {query.shape[-1]} wide and key {key.shape[-1]}: they must be equally wide to be compared"
        )
    if key.shape[-2] != value.shape[-2]:
        raise AttnscopeError(f"there are {key.shape[-2]} keys and {value.shape[-2]} values: every key needs its value")
