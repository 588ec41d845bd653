"""Positions: rotary (RoPE), sinusoidal and learned tables, and the biases of ALiBi and T5."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.support.checks import check_least
from attnscope.support.errors import AttnscopeError


def rotation_rates(pairs: int, width: int, base: float = 10000.0) -> Float[Tensor, " pair"]:
    r"""Radians per token of each pair of columns: :math:`\omega_c = \text{base}^{-2c/\text{width}}`, float64.

    Parameters
    ----------
    pairs
        Number of pairs, c = 0 .. pairs - 1.
    width
        Columns that rotate; with partial rotation fewer than the width of a head.
    base
        10,000 as in Vaswani et al. (2017), section 3.5, and in RoPE (Su et al. 2021, equation 15).
    """
    return torch.exp(-torch.arange(pairs, dtype=torch.float64) * (2 / width) * math.log(base))


@dataclass(frozen=True, eq=False)
class Rotation:
    r"""Rotary positions (RoPE, Su et al. 2021): pair c of a query or key at position p turns by an angle.

    Two layouts of the pairs are in use, and mixing them up raises no error: ``"half"`` pairs column c with column
    ``c + pairs``, ``"pairs"`` pairs ``2c`` with ``2c + 1``. They differ by a permutation of columns. Columns beyond
    ``2 * pairs`` stay as they are (partial RoPE).

    Attributes
    ----------
    cos, sin
        ``(position, pair)``, multiplied by the model's own factor where it has one (YaRN).
    layout
        ``"half"`` or ``"pairs"``.
    """

    cos: Float[Tensor, "position pair"]
    sin: Float[Tensor, "position pair"]
    layout: str

    def __call__(self, x: Float[Tensor, "*batch position width"]) -> Float[Tensor, "*batch position width"]:
        """Turn each pair of dimensions by the angle of its position."""
        return self._turn(x, self.cos, self.sin)

    def at(self, x: Float[Tensor, "*batch token width"], start: int) -> Float[Tensor, "*batch token width"]:
        """Turn tokens, the first of which is at position `start`."""
        return replace(self, cos=self.cos[start:], sin=self.sin[start:])(x)

    def undo(self, x: Float[Tensor, "*batch position width"]) -> Float[Tensor, "*batch position width"]:
        """Undo the rotation and its factor."""
        square = self.cos**2 + self.sin**2
        return self._turn(x, self.cos / square, -self.sin / square)

    def keep(self, pairs: Bool[Tensor, " pair"]) -> Rotation:
        """Return the rotation that turns these pairs only; the others keep the model's factor but not its angle."""
        factor = torch.sqrt(self.cos**2 + self.sin**2)
        return replace(self, cos=torch.where(pairs, self.cos, factor), sin=torch.where(pairs, self.sin, 0.0))

    @property
    def rates(self) -> Float[Tensor, " pair"]:
        """Radians per token of each pair, from the first two positions, float64."""
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
        cos, sin = cos[:length].to(x), sin[:length].to(x)  # layers may be on several devices
        turned = x.clone()
        first, second = pair_columns(self.layout, count)
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., second] * cos + x[..., first] * sin
        return turned


def pair_columns(layout: str, count: int) -> tuple[slice, slice]:
    """First and second column of every pair."""
    if layout == "half":
        return slice(0, count), slice(count, 2 * count)
    return slice(0, 2 * count, 2), slice(1, 2 * count, 2)


def rotation(length: int, width: int, *, base: float = 10000.0, layout: str = "half", partial: float = 1.0) -> Rotation:
    r"""RoPE in its plain form (Su et al. 2021, equation 34): pair c turns by :math:`p\,\omega_c` at position p.

    Parameters
    ----------
    length
        Positions, 0 .. length - 1.
    width
        Columns of a head.
    base
        Base of `rotation_rates`.
    layout
        ``"half"`` or ``"pairs"``: see `Rotation`.
    partial
        Share of the columns that rotate.

    Returns
    -------
    Rotation
        Cosines and sines ``(position, pair)``, float64.

    Raises
    ------
    AttnscopeError
        If there is no such layout.
    """
    if layout not in {"half", "pairs"}:
        raise AttnscopeError(f"layout {layout!r} is not known: choose 'half' or 'pairs'")
    rotated = int(width * partial) // 2 * 2
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rotation_rates(rotated // 2, max(1, rotated), base)
    return Rotation(angles.cos(), angles.sin(), layout)


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
    r"""Penalty :math:`-m_h\,|j - i|` of ALiBi, float64; the last query is at the last key.

    Parameters
    ----------
    heads
        Number of heads; their slopes are `alibi_slopes`.
    queries, keys
        Number of queries and of keys, tokens.

    Returns
    -------
    Tensor
        ``(head, query, key)``, nats, to add to the scores.
    """
    return -alibi_slopes(heads)[:, None, None] * offsets(queries, keys).abs()


def alibi_by_offset(heads: int, queries: int, keys: int) -> Float[Tensor, "head offset"]:
    r"""The bias of `alibi_bias` as one number an offset, for `OffsetBias`.

    Parameters
    ----------
    heads
        Heads of the layer.
    queries, keys
        Lengths, tokens; the last query is at the last key.

    Returns
    -------
    Tensor
        ``(head, offset)``, float64: :math:`-m_h |o|` for the offsets o (key minus query), ascending.
    """
    return -alibi_slopes(heads)[:, None] * _each_offset(queries, keys).abs()


def _each_offset(queries: int, keys: int) -> Int[Tensor, " offset"]:
    """All offsets, ascending; the last query is at the last key."""
    return torch.arange(1 - keys, queries)


def offsets(queries: int, keys: int) -> Int[Tensor, "query key"]:
    """Key position minus query position, tokens; the last query is at the last key.

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

    Half of the buckets of each side have one distance each, the others grow logarithmically up to `farthest`, and
    all larger distances share the last. Keys to the right have the second half of the buckets.

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
        """Bias of every pair; the last query is at the last key."""
        return self._of(offsets(queries, keys)).permute(2, 0, 1)

    def by_offset(self, queries: int, keys: int) -> Float[Tensor, "head offset"]:
        r"""The bias of every offset, :math:`v_t = w_{\text{bucket}(t)}` (Raffel et al. 2020, section 2.1).

        ``(head, queries + keys - 1)``, for the offsets ``1 - keys`` to ``queries - 1``, with the last query at the last
        key: the argument of `OffsetBias`, for any length.
        """
        return self._of(_each_offset(queries, keys)).T

    def _of(self, offset: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape head"]:
        bucket = t5_buckets(offset, bidirectional=self.bidirectional, buckets=self.buckets, farthest=self.farthest)
        return self.weight[bucket.to(self.weight.device)]
