"""How positions enter attention: sinusoids, rotations (RoPE), distance penalties (ALiBi), buckets (T5)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.errors import AttnscopeError
from attnscope.mechanism._rows import mean_profile


def sinusoidal_table(
    length: int, width: int, *, base: float = 10000.0
) -> Float[np.ndarray, "position width"]:
    r"""Sines and cosines of Vaswani et al. 2017, section 3.5.

    Row p holds :math:`\sin(p\,\omega_c)` in column ``2c`` and :math:`\cos(p\,\omega_c)` in the next.

    Parameters
    ----------
    length, width
        Rows and columns. With an odd width the last cosine is dropped.
    base
        :math:`\omega_c = \text{base}^{-2c/\text{width}}` radians per token.

    Returns
    -------
    numpy.ndarray
        ``(position, width)``, float64.

    Examples
    --------
    The product of two rows depends on their distance alone:

    >>> table = sinusoidal_table(20, 8)
    >>> products = table @ table.T
    >>> bool(np.allclose(products[3, 7], products[10, 14])), float(products[5, 5].round(9))
    (True, 4.0)
    """
    rates = np.exp(-np.arange((width + 1) // 2) * (2 / width) * math.log(base))
    angles = np.arange(length)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, -1)[:, :width]


def sinusoidal_shift(shift: int, width: int, *, base: float = 10000.0) -> Float[np.ndarray, "width width"]:
    r"""Orthogonal matrix :math:`M_k` with :math:`\mathrm{PE}[p+k] = M_k\,\mathrm{PE}[p]` for every position p.

    Its blocks are :math:`\begin{pmatrix}\cos k\omega & \sin k\omega\\ -\sin k\omega & \cos k\omega\end{pmatrix}`
    (Vaswani et al. 2017, section 3.5: "for any fixed offset k").

    Parameters
    ----------
    shift
        k, tokens.
    width
        Even.
    base
        As in `sinusoidal_table`.

    Raises
    ------
    AttnscopeError
        If the width is odd: a sine without its cosine cannot be turned.

    Examples
    --------
    >>> table = sinusoidal_table(20, 8)
    >>> bool(np.allclose(table[:-3] @ sinusoidal_shift(3, 8).T, table[3:]))
    True
    """
    if width % 2:
        raise AttnscopeError(f"width {width} is odd, so one sine has no cosine: give an even width")
    angles = shift * np.exp(-np.arange(width // 2) * (2 / width) * math.log(base))
    matrix = np.zeros((width, width))
    even = np.arange(0, width, 2)
    matrix[even, even] = matrix[even + 1, even + 1] = np.cos(angles)
    matrix[even, even + 1], matrix[even + 1, even] = np.sin(angles), -np.sin(angles)
    return matrix


@dataclass(frozen=True, eq=False)
class Rotation:
    r"""Rotary positions (RoPE, Su et al. 2021): pair c of a query or key at position p turns by an angle.

    Two layouts of the pairs are in use, and mixing them up goes unseen: ``"half"`` pairs column c with column
    ``c + pairs``, ``"pairs"`` pairs ``2c`` with ``2c + 1``. They differ by `layout_permutation`. Columns beyond
    ``2 * pairs`` stay as they are (partial RoPE).

    Attributes
    ----------
    cos, sin
        ``(position, pair)``, multiplied by the model's own factor where it has one (YaRN).
    layout
        ``"half"`` or ``"pairs"``.

    Examples
    --------
    Turning there and back changes nothing, and no turn changes a norm:

    >>> turn = rotation(6, 4)
    >>> x = torch.arange(24.0, dtype=torch.float64).reshape(6, 4)
    >>> bool(torch.allclose(turn.undo(turn(x)), x)), bool(torch.allclose(turn(x).norm(dim=-1), x.norm(dim=-1)))
    (True, True)
    """

    cos: Float[Tensor, "position pair"]
    sin: Float[Tensor, "position pair"]
    layout: str

    def __call__(self, x: Float[Tensor, "*batch position width"]) -> Float[Tensor, "*batch position width"]:
        """Turn."""
        return self._turn(x, self.cos, self.sin)

    def undo(self, x: Float[Tensor, "*batch position width"]) -> Float[Tensor, "*batch position width"]:
        """Turn back: what was there before the rotation (and before its factor)."""
        square = self.cos**2 + self.sin**2
        return self._turn(x, self.cos / square, -self.sin / square)

    def keep(self, pairs: Bool[Tensor, " pair"]) -> Rotation:
        """Return the rotation that turns these pairs only; the others keep the model's factor but not its angle."""
        factor = torch.sqrt(self.cos**2 + self.sin**2)
        return replace(self, cos=torch.where(pairs, self.cos, factor), sin=torch.where(pairs, self.sin, 0.0))

    @property
    def rates(self) -> Float[Tensor, " pair"]:
        """Radians per token of each pair, read off the first two positions, float64."""
        if self.cos.shape[0] < 2:  # noqa: PLR2004
            raise AttnscopeError("one position shows no rotation: give a window of 2 tokens or more")
        angle = torch.atan2(self.sin.double(), self.cos.double())
        return (angle[1] - angle[0]) % (2 * math.pi)

    @property
    def periods(self) -> Float[Tensor, " pair"]:
        """Tokens that each pair takes for one turn, float64; infinite where it does not turn."""
        return 2 * math.pi / self.rates

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        count = cos.shape[-1]
        length, width = x.shape[-2:]
        if length > cos.shape[0] or width < 2 * count:
            raise AttnscopeError(
                f"found {length} positions of width {width}; the rotation is for {cos.shape[0]} positions and at "
                f"least {2 * count} columns"
            )
        cos, sin = cos[:length].to(x.dtype), sin[:length].to(x.dtype)
        turned = x.clone()
        first, second = _pair_columns(self.layout, count)
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., second] * cos + x[..., first] * sin
        return turned


def _pair_columns(layout: str, count: int) -> tuple[slice, slice]:
    """First and second column of every pair."""
    if layout == "half":
        return slice(0, count), slice(count, 2 * count)
    return slice(0, 2 * count, 2), slice(1, 2 * count, 2)


def rotation(
    length: int, width: int, *, base: float = 10000.0, layout: str = "half", partial: float = 1.0
) -> Rotation:
    r"""RoPE in its plain form: pair c turns by :math:`p\,\omega_c` at position p.

    :math:`\omega_c=\text{base}^{-2c/r'}` radians per token, r' the rotated width (Su et al. 2021).

    Parameters
    ----------
    length
        Positions.
    width
        Head width r.
    base
        ``rope_theta``.
    layout
        ``"half"`` or ``"pairs"``.
    partial
        Share of the head width that is rotated.

    Raises
    ------
    AttnscopeError
        If there is no such layout.

    Examples
    --------
    >>> [round(period, 1) for period in rotation(8, 4).periods.tolist()]
    [6.3, 628.3]
    """
    if layout not in {"half", "pairs"}:
        raise AttnscopeError(f"layout {layout!r} is not known: choose 'half' or 'pairs'")
    rotated = int(width * partial) // 2 * 2
    rates = torch.exp(-torch.arange(0, rotated, 2, dtype=torch.float64) / max(1, rotated) * math.log(base))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return Rotation(angles.cos(), angles.sin(), layout)


def layout_permutation(width: int) -> Int[np.ndarray, " width"]:
    """Columns of the ``"pairs"`` layout in the order of the ``"half"`` layout: ``half = pairs[..., permutation]``.

    Examples
    --------
    >>> layout_permutation(6)
    array([0, 2, 4, 1, 3, 5])
    """
    return np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])


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
    first, second = _pair_columns(layout, count)
    product = (query[first] - 1j * query[second]) * (key[first] + 1j * key[second])
    turning = (product[:, None] * np.exp(1j * rates[:, None] * offsets)).real.sum(0)
    return turning + query[2 * count :] @ key[2 * count :]


def alibi_slopes(heads: int) -> Float[np.ndarray, " head"]:
    r"""Slopes of ALiBi (Press et al. 2022): :math:`m_h = 2^{-8h/n}`, h = 1..n, for n a power of two.

    For other numbers of heads: the slopes of the largest power of two below, then every second slope of
    the next power, as the authors' code has it.

    Examples
    --------
    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    """
    power = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    if power < heads:
        slopes = np.concatenate([slopes, alibi_slopes(2 * power)[::2][: heads - power]])
    return slopes


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


def t5_buckets(
    offsets: Int[np.ndarray, "*shape"], *, bidirectional: bool = True, buckets: int = 32, farthest: int = 128
) -> Int[np.ndarray, "*shape"]:
    """Bucket of each offset in T5's relative bias (Raffel et al. 2020, section 2.1).

    Half of the buckets (of each side) hold one distance each, the others grow logarithmically up to
    `farthest`, and all that is farther shares the last. Keys to the right have the second half of the buckets.

    Parameters
    ----------
    offsets
        Key position minus query position, tokens.
    bidirectional
        False in decoders: everything to the right falls into bucket 0.
    buckets, farthest
        ``relative_attention_num_buckets`` and ``relative_attention_max_distance``.

    Examples
    --------
    >>> t5_buckets(np.array([-200, -8, -1, 0, 1, 7, 8, 127]))
    array([15,  8,  1,  0, 17, 23, 24, 31])
    """
    side = np.zeros_like(offsets)
    if bidirectional:
        buckets //= 2
        side = np.where(offsets > 0, buckets, 0)
        distance = np.abs(offsets)
    else:
        distance = np.maximum(-offsets, 0)
    exact = buckets // 2
    # float32, as T5 computes it: at a bucket's edge float64 may fall on the other side
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(farthest / exact)
    )
    far = exact + (ratio * np.float32(buckets - exact)).astype(np.int64)
    return side + np.where(distance < exact, distance, np.minimum(far, buckets - 1))


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
