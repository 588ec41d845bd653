"""How positions enter attention: sinusoids, learned rows, distance penalties (ALiBi), buckets (T5)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.kernels.rotary import rotation_rates
from attnscope.support.checks import check_least
from attnscope.support.errors import AttnscopeError


def sinusoidal_table(length: int, width: int, *, base: float = 10000.0) -> Float[Tensor, "position width"]:
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
    Tensor
        ``(position, width)``, float64.
    """
    check_least(0, length=length)
    check_least(1, width=width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rotation_rates((width + 1) // 2, width, base)
    return torch.stack([angles.sin(), angles.cos()], -1).reshape(length, -1)[:, :width]


def sinusoidal_shift(shift: int, width: int, *, base: float = 10000.0) -> Float[Tensor, "width width"]:
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
    """
    if width % 2:
        raise AttnscopeError(f"width {width} is odd, so one sine has no cosine: give an even width")
    angles = shift * rotation_rates(width // 2, width, base)
    turn = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], -1)
    return torch.block_diag(*turn.reshape(-1, 2, 2))


class LearnedPositions(nn.Module):
    """A table with one trained row a position (BERT, GPT-2).

    Parameters
    ----------
    length, width
        Rows and columns of the table.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        check_least(1, length=length, width=width)
        self.weight = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, length: int, start: int = 0) -> Float[Tensor, "position width"]:
        """Rows of the positions ``start .. start + length - 1``.

        Raises
        ------
        AttnscopeError
            Beyond the table, on either side.
        """
        check_least(0, length=length, start=start)
        if start + length > len(self.weight):
            raise AttnscopeError(
                f"found {start + length} positions; the table was trained for {len(self.weight)}: give shorter text"
            )
        return self.weight[start : start + length]


def alibi_slopes(heads: int) -> Float[Tensor, " head"]:
    r"""Slopes of ALiBi (Press et al. 2022): :math:`m_h = 2^{-8h/n}`, h = 1..n, for n a power of two; float64.

    For other numbers of heads: the slopes of the largest power of two below, then every second slope of
    the next power, as the authors' code has it.
    """
    check_least(1, heads=heads)
    power = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    if power < heads:
        slopes = torch.cat([slopes, alibi_slopes(2 * power)[::2][: heads - power]])
    return slopes


def alibi_bias(heads: int, queries: int, keys: int) -> Float[Tensor, "head query key"]:
    r"""Penalty :math:`-m_h\,|j - i|` of ALiBi, float64; the last query stands at the last key.

    Parameters
    ----------
    heads
        Number of heads; their slopes are `alibi_slopes`.
    queries, keys
        Number of queries and of keys, tokens.

    Returns
    -------
    Tensor
        ``(head, query, key)``, nats: what is added to the scores.
    """
    distance = offsets(queries, keys).abs()
    return -alibi_slopes(heads)[:, None, None] * distance


def alibi_by_offset(heads: int, queries: int, keys: int) -> Float[Tensor, "head offset"]:
    r"""The numbers of `alibi_bias`, one an offset: what `OffsetBias` takes, in place of queries by keys."""
    return -alibi_slopes(heads)[:, None] * _each_offset(queries, keys).abs()


def _each_offset(queries: int, keys: int) -> Int[Tensor, " offset"]:
    """The offsets there are, ascending; the last query stands at the last key."""
    return torch.arange(1 - keys, queries)


def offsets(queries: int, keys: int) -> Int[Tensor, "query key"]:
    """Key position minus query position, tokens; the last query stands at the last key.

    Parameters
    ----------
    queries, keys
        Number of queries and of keys, tokens.
    """
    return torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]


def t5_buckets(
    offsets: Int[Tensor, "*shape"], *, bidirectional: bool = True, buckets: int = 32, farthest: int = 128
) -> Int[Tensor, "*shape"]:
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

    Raises
    ------
    AttnscopeError
        If a side has fewer than 2 buckets, or half of them reach as far as `farthest`.
    """
    side = torch.zeros_like(offsets)
    if bidirectional:
        buckets //= 2
        side = torch.where(offsets > 0, buckets, 0)
        distance = offsets.abs()
    else:
        distance = (-offsets).clamp_min(0)
    exact = buckets // 2
    if not 0 < exact < farthest:
        raise AttnscopeError(
            f"found {buckets} buckets a side and farthest={farthest}; expected 2 buckets or more, and a distance above "
            "half their number"
        )
    # float32, as T5 computes it: at a bucket's edge float64 may fall on the other side
    ratio = torch.log(distance.clamp_min(1).float() / exact) / math.log(farthest / exact)
    far = exact + (ratio * (buckets - exact)).long()
    return side + torch.where(distance < exact, distance, far.clamp_max(buckets - 1))


class RelativeBias(nn.Module):
    """A trained number for each head and bucket of offsets, added to the scores (T5, Raffel et al. 2020).

    Parameters
    ----------
    heads
        Number of heads.
    bidirectional, buckets, farthest
        As in `t5_buckets`.
    """

    def __init__(self, heads: int, *, bidirectional: bool = True, buckets: int = 32, farthest: int = 128) -> None:
        super().__init__()
        check_least(1, heads=heads)
        self.bidirectional, self.buckets, self.farthest = bidirectional, buckets, farthest
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: int, keys: int) -> Float[Tensor, "head query key"]:
        """Bias of every pair; the last query stands at the last key."""
        return self._of(offsets(queries, keys)).permute(2, 0, 1)

    def by_offset(self, queries: int, keys: int) -> Float[Tensor, "head offset"]:
        r"""The bias of every offset, :math:`v_t = w_{\text{bucket}(t)}` (Raffel et al. 2020, section 2.1).

        ``(head, queries + keys - 1)``, from the last query's first key, ``1 - keys``, to the first query's last one,
        ``queries - 1``, the last query standing at the last key: what `OffsetBias` takes, for any length, in place of
        queries by keys.
        """
        return self._of(_each_offset(queries, keys)).T

    def _of(self, offset: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape head"]:
        bucket = t5_buckets(offset, bidirectional=self.bidirectional, buckets=self.buckets, farthest=self.farthest)
        return self.weight[bucket.to(self.weight.device)]
