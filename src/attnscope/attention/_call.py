"""What one attention call is, and what can be measured of it without its matrix."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.attention._masks import Extent, extent_of
from attnscope.attention._row_mask import RowMask
from attnscope.errors import AttnscopeError


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The arguments of one multi-head attention call, as the model gives them.

    Attributes
    ----------
    query, key, value
        ``(batch, head, query, width)``, ``(batch, kv_head, key, width)``, ``(batch, kv_head, key, value_width)``.
        With grouped queries, head ``h`` reads key head ``h // (heads / kv_heads)``.
    scale
        Factor of the scores.
    causal
        Query ``i`` may look at keys ``0..i`` only.
    mask
        Boolean ``(batch or 1, head or 1, query, key)``, True where a query may look.
    bias
        Added to the scores after scale and cap, ``(batch or 1, head or 1, query, key)``. One that depends on the offset
        alone, as T5's and ALiBi's, is an `OffsetBias`: a number an offset, and no queries by keys in memory.
    softcap
        Scores become ``softcap * tanh(scores / softcap)``.
    sinks
        ``(head,)``: an extra logit in each softmax that carries no value.
    positions
        ``(batch or 1, query)``: place of each query among the keys, where these are not 0, 1, 2, ...: see `take`.
    mask_extent
        What `extent_of` says of `mask`, where it is known already: layers often share one mask. A changed copy of the
        call (`dataclasses.replace`) looks at its own mask again.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 2, 5, 4)
    >>> call = AttentionCall(x, x, x, scale=0.5, causal=True)
    >>> call.extent[1].tolist()
    [[1, 2, 3, 4, 5]]
    >>> call.allowed(text=0, head=1, rows=slice(2, 3)).tolist()
    [[True, True, True, False, False]]
    """

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch kv_head key width"]
    value: Float[Tensor, "batch kv_head key value_width"]
    scale: float
    causal: bool = False
    mask: Bool[Tensor, "_ _ query key"] | None = None
    bias: Float[Tensor, "_ _ query key"] | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " head"] | None = None
    positions: Int[Tensor, "_ query"] | None = None
    mask_extent: InitVar[Extent | None] = None
    _mask_extent: Extent | None = field(init=False, repr=False)

    def __post_init__(self, mask_extent: Extent | None) -> None:
        object.__setattr__(self, "_mask_extent", mask_extent)
        heads, kv_heads = self.query.shape[1], self.key.shape[1]
        if heads % kv_heads:
            raise AttnscopeError(
                f"{heads} query heads cannot share {kv_heads} key heads: the first must be a multiple of the second"
            )

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def extent(self) -> tuple[Int[Tensor, "_ query"], Int[Tensor, "_ query"]]:
        """First key that each query may see and the one after the last, ``(batch or 1, query)`` each.

        Between the two, `mask` still decides unless `is_contiguous`.
        """
        return self._extent_and_contiguity[0]

    @property
    def is_contiguous(self) -> bool:
        """Whether `extent` says all that `mask` says (padding, causal and window masks)."""
        return self._extent_and_contiguity[1]

    @cached_property
    def query_positions(self) -> Int[Tensor, "_ query"]:
        """Place of each query among the keys, ``(batch or 1, query)``."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.query.shape[2], device=self.query.device)[None]

    def take(self, queries: Int[Tensor, "batch row"]) -> AttentionCall:
        """The same of some queries alone, which keep their places; each text has its own, so many of each.

        Examples
        --------
        >>> x = torch.zeros(1, 2, 5, 4)
        >>> some = AttentionCall(x, x, x, scale=0.5, causal=True).take(torch.tensor([[1, 4]]))
        >>> some.query.shape, some.extent[1].tolist()
        (torch.Size([1, 2, 2, 4]), [[2, 5]])
        """
        queries = queries.expand(self.query.shape[0], -1)

        def of(pairs: Tensor | None) -> Tensor | None:
            if pairs is None:
                return None
            if isinstance(pairs, RowMask) and pairs.is_known:
                return pairs.taken(queries)
            texts = torch.arange(len(pairs), device=pairs.device)[:, None]
            return pairs[texts, :, queries].transpose(1, 2)

        index = queries[:, None, :, None].expand(-1, self.query.shape[1], -1, self.query.shape[3])
        return replace(
            self,
            query=self.query.gather(2, index),
            mask=of(self.mask),
            bias=of(self.bias),
            positions=self.query_positions.expand(len(queries), -1).gather(1, queries),
        )

    def take_by_key_head(self, queries: Int[Tensor, "batch kv_head row"]) -> AttentionCall:
        """Some queries of the heads of each key head, which become texts of a batch; no values are taken along.

        The batch is ``(batch * kv_head,)`` long, each with the query heads that share its key head. Not for learned
        sinks, which are numbers of heads.

        Examples
        --------
        >>> x = torch.zeros(1, 2, 5, 4)
        >>> call = AttentionCall(x, x, x, scale=0.5, causal=True)
        >>> some = call.take_by_key_head(torch.tensor([[[1, 4], [0, 2]]]))
        >>> some.query.shape, some.extent[1].tolist()
        (torch.Size([2, 1, 2, 4]), [[2, 5], [1, 3]])
        """
        batch, heads = self.query.shape[:2]
        kv_heads = queries.shape[1]
        by_key_head = self.query.unflatten(1, (kv_heads, self.group))
        index = queries[:, :, None, :, None].expand(-1, -1, self.group, -1, self.query.shape[3])

        def of(pairs: Tensor | None) -> Tensor | None:
            if pairs is None:
                return None
            if isinstance(pairs, RowMask) and pairs.is_known:
                return pairs.taken(queries.flatten(0, 1))
            texts = (
                torch.arange(batch, device=pairs.device)
                if len(pairs) > 1
                else torch.zeros(batch, dtype=torch.long, device=pairs.device)
            )
            group = torch.arange(heads, device=pairs.device).view(1, kv_heads, -1, 1)
            group = group if pairs.shape[1] > 1 else torch.zeros_like(group[:, :, :1])
            return pairs[texts[:, None, None, None], group, queries[:, :, None]].flatten(0, 1)

        places = self.query_positions.expand(batch, -1)[:, None].expand(-1, kv_heads, -1)
        return replace(
            self,
            query=by_key_head.gather(3, index).flatten(0, 1),
            key=self.key.flatten(0, 1)[:, None],
            value=self.value[..., :0].flatten(0, 1)[:, None],
            mask=of(self.mask),
            bias=of(self.bias),
            positions=places.gather(2, queries).flatten(0, 1),
        )

    def allowed(self, text: int, head: int, rows: slice = slice(None)) -> Bool[Tensor, "query key"]:
        """Which keys these queries of one head of one text may look at: a bias of -inf or near it forbids."""

        def own(tensor: Tensor) -> Tensor:
            return tensor[min(text, len(tensor) - 1), min(head, tensor.shape[1] - 1), rows]

        start, stop = (bound[min(text, len(bound) - 1), rows, None] for bound in self.extent)
        index = torch.arange(self.key.shape[2], device=self.key.device)
        allowed = (index >= start) & (index < stop)
        if self.mask is not None and not self.is_contiguous:
            allowed &= own(self.mask)
        if self.bias is not None:
            allowed &= own(self.bias) > torch.finfo(self.bias.dtype).min / 2
        return allowed

    @cached_property
    def _extent_and_contiguity(self) -> tuple[tuple[Tensor, Tensor], bool]:
        queries, keys = self.query.shape[2], self.key.shape[2]
        device = self.query.device
        start = torch.zeros(1, queries, dtype=torch.int64, device=device)
        stop = torch.full_like(start, keys)
        contiguous = True
        if self.mask is not None:
            start, stop, contiguous = self._mask_extent or extent_of(self.mask)
        if self.causal:
            stop = torch.minimum(stop, self.query_positions + 1)
        return (start, torch.maximum(start, stop)), contiguous


@dataclass(frozen=True, eq=False)
class Need:
    """What the statistics want from one pass over the scores.

    Attributes
    ----------
    band
        Largest offset whose weights are wanted, or None for no band.
    entropy, offsets, variance, largest, largest_key, collision
        Whether row entropies, mean offsets, their variances, largest weights, the keys that have them, and sums of
        squared weights are wanted.
    bins
        First offsets of bins on either side, ascending, whose weights are wanted: the bin that begins at 9 holds what
        lies before the next one, on the right and, apart, on the left (-9 and beyond). The last one has no end.
    columns
        ``(batch, key, column)``: value columns whose weighted sums are wanted, such as the indicator of
        special tokens.

    Examples
    --------
    >>> need = Need.everything(band=2)
    >>> need.entropy, need.largest, need.band, Need(entropy=True).largest
    (True, True, 2, False)
    """

    band: int | None = None
    entropy: bool = False
    offsets: bool = False
    variance: bool = False
    largest: bool = False
    largest_key: bool = False
    collision: bool = False
    bins: tuple[int, ...] = ()
    columns: Float[Tensor, "batch key column"] | None = None

    @classmethod
    def everything(cls, band: int, columns: Tensor | None = None, bins: tuple[int, ...] = ()) -> Need:
        """All that there is, with offsets up to `band`."""
        flags = {f.name: True for f in fields(cls) if f.type == "bool"}
        return cls(band=band, bins=bins, columns=columns, **flags)


@dataclass(frozen=True, eq=False)
class RowMeasures:
    """What one pass found, a number a row: ``(batch, head, query)`` unless stated; float64.

    Attributes
    ----------
    log_sum_exp
        Natural log of the softmax denominator, learned sinks included; -inf where a row may look nowhere.
    mass
        Sum of the weights: 1, less with learned sinks, 0 for an empty row.
    entropy
        Nats, over the real keys.
    mean_offset, offset_variance
        Mean and variance of ``key - query`` under the row's weights (renormalised where `mass` is below 1), tokens and
        tokens².
    largest
        Largest weight.
    largest_key
        Place among the keys of the one with the largest score, and so weight; of several, the first. Scores are
        compared as the pass rounds them. -1 where a row may look nowhere.
    collision
        Sum of squared weights.
    band
        ``(batch, head, query, offset)``, float32: the weight at each offset from ``-band`` to ``band``, 0 outside
        the text.
    bins
        ``(batch, head, query, bin)``, float32: the weight in each bin of offsets, from left to right.
    columns
        ``(batch, head, query, column)``: weighted sums of the wanted value columns.

    What was not asked for may be None. A row is NaN in all of them, and in the output, if its query or a score that it
    may look at is NaN or infinite, by its operands or by overflow. A bias of -inf is no such score: it forbids, as a
    mask does. A value that is not finite changes no weight: it is NaN in the outputs that mix it.

    Examples
    --------
    >>> import torch
    >>> from attnscope.attention import measure
    >>> x = torch.zeros(1, 1, 3, 8)
    >>> rows = measure(AttentionCall(x, x, x, scale=1.0, causal=True), Need(offsets=True))[1]
    >>> rows.mean_offset[0, 0].round(decimals=3).tolist(), rows.mass[0, 0].tolist()
    ([0.0, -0.5, -1.0], [1.0, 1.0, 1.0])
    """

    log_sum_exp: Float[Tensor, "batch head query"]
    mass: Float[Tensor, "batch head query"]
    entropy: Float[Tensor, "batch head query"] | None = None
    mean_offset: Float[Tensor, "batch head query"] | None = None
    offset_variance: Float[Tensor, "batch head query"] | None = None
    largest: Float[Tensor, "batch head query"] | None = None
    largest_key: Float[Tensor, "batch head query"] | None = None
    collision: Float[Tensor, "batch head query"] | None = None
    band: Float[Tensor, "batch head query offset"] | None = None
    bins: Float[Tensor, "batch head query bin"] | None = None
    columns: Float[Tensor, "batch head query column"] | None = None
