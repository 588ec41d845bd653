"""Where a position scheme alone makes a head look: RoPE, ALiBi, and biases of the offset (T5)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int

from attnscope.attention import AttentionCall, pair_columns
from attnscope.errors import AttnscopeError
from attnscope.mechanism.evidence import mean_profile


def rotary_profile(
    query: Float[np.ndarray, " width"],
    key: Float[np.ndarray, " width"],
    rates: Float[np.ndarray, " pair"],
    offsets: Int[np.ndarray, " offset"],
    *,
    layout: str = "half",
) -> Float[np.ndarray, " offset"]:
    r"""Score of one unrotated query and key at each offset under RoPE, unscaled.

    :math:`s(t) = \mathrm{Re}\sum_c \bar q_c k_c e^{j\omega_c t} = \sum_c |q_c||k_c|\cos(\omega_c t + \varphi_c)` with
    :math:`q_c` the complex number that pair c makes, plus the plain product of the columns that do not turn.

    Parameters
    ----------
    query, key
        ``(width,)``, before rotation.
    rates
        Radians per token of each pair.
    offsets
        Key position minus query position, tokens.
    layout
        ``"half"`` or ``"pairs"``.

    Examples
    --------
    >>> q = np.array([1.0, 0.0])
    >>> rotary_profile(q, q, np.array([np.pi / 2]), np.array([-1, 0, 1, 2])).round(6) + 0.0
    array([ 0.,  1.,  0., -1.])
    """
    count = len(rates)
    first, second = pair_columns(layout, count)
    product = (query[first] - 1j * query[second]) * (key[first] + 1j * key[second])
    turning = (product[:, None] * np.exp(1j * rates[:, None] * offsets)).real.sum(0)
    return turning + query[2 * count :] @ key[2 * count :]


def alibi_profile(
    slope: float, offsets: Int[np.ndarray, " offset"], *, causal: bool
) -> Float[np.ndarray, " offset"]:
    r"""Weight at each offset that ALiBi alone gives, far from both ends of the text.

    Causal: :math:`(1-e^{-m})e^{-m|t|}` for :math:`t \le 0`; otherwise :math:`e^{-m|t|}(1-e^{-m})/(1+e^{-m})`, both
    sums of a geometric series.

    Parameters
    ----------
    slope
        m, nats per token, above 0.
    offsets
        Tokens.
    causal
        Whether queries look back only.

    Examples
    --------
    >>> float(alibi_profile(0.5, np.arange(-200, 201), causal=False).sum().round(12))
    1.0
    """
    share = -math.expm1(-slope)
    weights = share * np.exp(-slope * np.abs(offsets))
    return np.where(offsets <= 0, weights, 0.0) if causal else weights / (1 + math.exp(-slope))


def bias_profile(
    bias: Float[np.ndarray, "head offset"], length: int, band: int, *, causal: bool = False
) -> Float[np.ndarray, "head band"]:
    r"""Mean weight at each offset when the scores are the relative bias alone: softmax of :math:`b_h(j-i)`.

    Parameters
    ----------
    bias
        ``(head, offset)``: for offsets ``-(length-1) .. length-1``.
    length
        Tokens of the text, T.
    band
        Largest offset of the result.
    causal
        Whether queries look back only.

    Returns
    -------
    numpy.ndarray
        ``(head, 2 * band + 1)``; at offset t the mean over the T-\|t\| rows that have one.

    Raises
    ------
    AttnscopeError
        If `bias` is not for the offsets of a text of this length.

    Examples
    --------
    No bias gives uniform attention:

    >>> bias_profile(np.zeros((1, 7)), 4, 1)
    array([[0.25, 0.25, 0.25]])
    """
    if bias.shape[1] != 2 * length - 1:
        raise AttnscopeError(
            f"found a bias for {bias.shape[1]} offsets; expected {2 * length - 1}, from {1 - length} to {length - 1}"
        )
    heads = bias.shape[0]
    offset = np.arange(length) - np.arange(length)[:, None]
    nothing = torch.zeros(1, heads, length, 1, dtype=torch.float64)
    scores = torch.from_numpy(bias[:, offset + length - 1].astype(np.float64))[None]
    call = AttentionCall(nothing, nothing, nothing, scale=1.0, causal=causal, bias=scores)
    return mean_profile(call, band)[0].numpy()


def without_bias(call: AttentionCall) -> AttentionCall:
    r"""Set a call's bias to its mean over each head's pairs; what the bias forbids stays forbidden.

    A softmax is blind to a constant, so this is attention with the position bias (T5, ALiBi) taken out;
    ``profile(call) - profile(without_bias(call))`` is the effect of the bias on where the head looks.

    Parameters
    ----------
    call
        Any attention call. Without a bias it is returned as it is.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 3, 2)
    >>> call = AttentionCall(x, x, x, scale=1.0, bias=torch.tensor([[[[0.0, 1, 2], [3, 4, 5], [6, 7, -torch.inf]]]]))
    >>> without_bias(call).bias[0, 0, 2].tolist()
    [3.5, 3.5, -inf]
    """
    if call.bias is None:
        return call
    allowed = call.bias > torch.finfo(call.bias.dtype).min / 2
    total = torch.where(allowed, call.bias, 0.0).sum((-2, -1), keepdim=True)
    mean = total / allowed.sum((-2, -1), keepdim=True).clamp_min(1)
    return replace(call, bias=torch.where(allowed, mean.to(call.bias.dtype), call.bias))
