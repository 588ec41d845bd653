"""One attention call, and the measurements that need no full matrix of weights."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from typing import TypeVar, cast
from weakref import ref

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.kernels.masks import Extent, OffsetBias, RowMask, extent_by_rows, extent_of, forbids
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The arguments of one multi-head attention call, as the model passes them.

    Attributes
    ----------
    query, key, value
        ``(batch, head, query, width)``, ``(batch, kv_head, key, width)``, ``(batch, kv_head, key, value_width)``.
        With grouped queries, head ``h`` reads key head ``h // (heads / kv_heads)``.
    scale
        Factor of the scores.
    causal
        Query ``i`` may attend to keys ``0..i`` only.
    mask
        Boolean ``(batch or 1, head or 1, query, key)``, True where a query may attend.
    bias
        Added to the scores after scale and cap, ``(batch or 1, head or 1, query, key)``. A bias that
        depends on the offset alone (T5, ALiBi) is an `OffsetBias`: one number an offset, without a full matrix.
    softcap
        Scores become ``softcap * tanh(scores / softcap)``.
    sinks
        ``(head,)``: an extra logit in each softmax that carries no value.
    positions
        ``(batch or 1, query)``: position of each query among the keys, where these are not 0, 1, 2, ...: see `take`.
    mask_extent
        The `extent_of` the mask, where it is known already: layers often share one mask. A changed copy of the call
        (`dataclasses.replace`) computes it again.
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
        """First key of each query and the end of its keys, ``(batch or 1, query)``; `mask` may forbid some between."""
        if self.mask is None:
            start = torch.zeros(1, self.query.shape[2], dtype=torch.int64, device=self.query.device)
            stop = torch.full_like(start, self.key.shape[2])
        else:
            start, stop, _ = self._of_mask
        if self.causal:
            # a causal mask is a bound of the keys, so that no mask of query times key is needed
            stop = torch.minimum(stop, self.query_positions + 1)
        return start, torch.maximum(start, stop)

    @property
    def is_contiguous(self) -> bool:
        """Whether `extent` describes the mask fully (padding, causal and window masks)."""
        return self.mask is None or self._of_mask.is_contiguous

    @cached_property
    def _of_mask(self) -> Extent:
        return self._mask_extent or extent_of(cast("Tensor", self.mask))

    @cached_property
    def visible(self) -> Extent:
        """The keys that some head of each query may see: `extent` without those that the bias masks."""
        if self.bias is None:
            return Extent(*self.extent, self.is_contiguous)
        bias, mask, keys = self.bias, self.mask, torch.arange(self.key.shape[2], device=self.key.device)

        def written(rows: slice) -> Tensor:
            start, stop = (bound[:, None, rows, None] for bound in self.extent)
            allowed = ~forbids(bias[:, :, rows]) & (keys >= start) & (keys < stop)
            return (allowed if mask is None else allowed & mask[:, :, rows]).any(1, keepdim=True)

        return extent_by_rows(written, self.query.shape[2], len(self.query) * self.query.shape[1] * len(keys))

    @cached_property
    def query_positions(self) -> Int[Tensor, "_ query"]:
        """Position of each query among the keys, ``(batch or 1, query)``."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.query.shape[2], device=self.query.device)[None]

    def take(self, queries: Int[Tensor, "batch row"]) -> AttentionCall:
        """The same call for some queries of each text, equally many, at their own positions."""
        queries = queries.expand(self.query.shape[0], -1)

        def of(pairs: Tensor | None) -> Tensor | None:
            if pairs is None:
                return None
            if isinstance(pairs, RowMask) and pairs.is_known:
                return pairs.taken(queries)
            return pairs[torch.arange(len(pairs), device=pairs.device)[:, None], :, queries].transpose(1, 2)

        # gather needs one index for each entry of its result: expand makes no copy
        index = queries[:, None, :, None].expand(-1, self.query.shape[1], -1, self.query.shape[3])
        query, places = self.query.gather(2, index), self.query_positions.expand(len(queries), -1).gather(1, queries)
        return replace(self, query=query, mask=of(self.mask), bias=of(self.bias), positions=places)

    def part(self, heads: slice = slice(None), texts: slice = slice(None)) -> AttentionCall:
        """Some texts, and some heads: within a group that shares a key head, or of whole groups."""
        first, last, _ = heads.indices(self.query.shape[1])

        def of(pairs: Tensor | None) -> Tensor | None:
            # a size of 1 broadcasts over texts or heads, and cannot be cut
            pairs = pairs if pairs is None or len(pairs) == 1 else pairs[texts]
            return pairs if pairs is None or pairs.shape[1] == 1 else pairs[:, heads]

        # the key heads of these query heads: rounded down at the start, up at the end
        query, own = self.query[texts, heads], slice(first // self.group, -(-last // self.group))
        key, value = self.key[texts, own], self.value[texts, own]
        sinks = None if self.sinks is None else self.sinks[heads]
        return replace(self, query=query, key=key, value=value, mask=of(self.mask), bias=of(self.bias), sinks=sinks)

    def allowed(self, text: int, head: int, rows: slice = slice(None)) -> Bool[Tensor, "query key"]:
        """Keys that these queries of one head of one text may attend to; a bias of -inf or near it forbids."""

        def own(tensor: Tensor) -> Tensor:
            return tensor[min(text, len(tensor) - 1), min(head, tensor.shape[1] - 1), rows]

        start, stop = (bound[min(text, len(bound) - 1), rows, None] for bound in self.extent)
        index = torch.arange(self.key.shape[2], device=self.key.device)
        allowed = (index >= start) & (index < stop)
        if self.mask is not None and not self.is_contiguous:
            allowed &= own(self.mask)
        if self.bias is not None:
            allowed &= ~forbids(own(self.bias))
        return allowed


_VANISHES = 750.0  # e to the minus that power is 0 in every float type


def with_masked_keys(call: AttentionCall, scores: float | None = None) -> AttentionCall:
    """The call with the lowest number as bias of the keys whose weight is 0 in all heads, whatever the query.

    Models mask with numbers such as -1e4 and -1e9. Such a key is one whose bias is so far below the largest of its
    head that no score makes up for it. `scores` is the largest size of a score; by default, it is bounded by the norms
    of queries and keys.
    """
    bias = call.bias
    if bias is None or not bias.numel():
        return call
    values = (bias.by_offset if isinstance(bias, OffsetBias) else bias).detach()
    if scores is None:
        scores = largest_score(call.query, call.key, call.scale)
    scores = scores if call.softcap is None else min(scores, call.softcap)
    # softmax cancels a constant of the row: only the distance to the largest bias of the head counts
    largest = values.amax((0, *range(2, values.ndim)), keepdim=True)
    level = largest.double() - 2 * scores - _VANISHES
    if not bool(((values.amin() <= level) & (largest < torch.inf)).all()):
        return call
    # masked only where every head masks it: uniform attention counts the keys that some head sees
    masked = (values <= level).all(1, keepdim=True) & ~forbids(values)
    if not bool(masked.any()):
        return call
    lowest = torch.finfo(bias.dtype).min
    if isinstance(bias, OffsetBias):
        return replace(call, bias=OffsetBias(bias.by_offset.masked_fill(masked, lowest), bias.shape[-2]))
    return replace(call, bias=bias.masked_fill(masked, lowest))


def largest_score(query: Tensor, key: Tensor, scale: float) -> float:
    """A bound of the size of all products of queries and keys, by Cauchy and Schwarz."""
    sizes = (torch.linalg.vector_norm(side.detach(), dim=-1, dtype=torch.float64).amax() for side in (query, key))
    return abs(scale) * float(torch.stack([*sizes]).prod())


@dataclass(frozen=True, eq=False)
class Need:
    """The measures that statistics need from one pass over the scores.

    Attributes
    ----------
    band
        Largest offset whose weights are needed, or None for no band.
    entropy, offsets, variance, largest, largest_key, collision
        Whether row entropies, mean offsets, their variances, largest weights, the keys that have them, and sums of
        squared weights are needed.
    bins
        First offsets of the bins whose weights are needed, ascending. The bin of 9 ends before the next one; there is
        one on the right and one on the left (-9 and beyond). The last bin has no end.
    columns
        ``(batch, key, column)``: value columns whose weighted sums are needed, such as the indicator of
        special tokens.
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
        """Every measure, with offsets up to `band`."""
        return cls(band=band, bins=bins, columns=columns, **dict.fromkeys(FLAGS, True))


FLAGS = tuple(each.name for each in fields(Need) if each.type == "bool")  # names of measures that a need asks for


@dataclass(frozen=True, eq=False)
class RowMeasures:
    """Measures of one pass, one number a row: ``(batch, head, query)`` unless stated; float64.

    Attributes
    ----------
    log_sum_exp
        Natural log of the softmax denominator, learned sinks included; -inf for a row without allowed keys.
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
        Position of the first key with the largest score, and so weight. Scores are compared as the pass rounds them.
        -1 for a row without allowed keys.
    collision
        Sum of squared weights.
    band
        ``(batch, head, query, offset)``, float32: the weight at each offset from ``-band`` to ``band``, 0 outside
        the text.
    bins
        ``(batch, head, query, bin)``, float32: the weight in each bin of offsets, from left to right.
    columns
        ``(batch, head, query, column)``: weighted sums of the value columns (float32 from the CUDA kernel).

    Measures that were not requested may be None. A row is NaN in all measures and in the output if its query or one of
    its allowed scores is NaN or infinite, by its operands or by overflow. A bias of -inf forbids, as a mask does. A
    value that is not finite changes no weight: the outputs that mix it are NaN.
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


Result = TypeVar("Result")
Pass = Callable[[AttentionCall, Need], tuple[Tensor, RowMeasures]]

_ROWS = 512  # scores written out at once in the search for such numbers


def magnitude(tensor: Tensor) -> Tensor:
    """Norm of all entries: finite only if every entry is, in a tenth of the time of `isfinite`."""
    wide = torch.float32 if tensor.dtype == torch.float16 else None  # whose squares overflow
    return torch.linalg.vector_norm(tensor, dtype=wide)


_finite: ContextVar[tuple[ref[Tensor], int] | None] = ContextVar("attnscope_finite", default=None)


#: Magnitudes of tensors that are taken for finite until all are checked; None where each is checked at once.
_unchecked: ContextVar[list[Tensor] | None] = ContextVar("attnscope_unchecked", default=None)


def is_finite(tensor: Tensor) -> bool:
    """Whether every entry is finite; asked again of the last tensor that was, it does not look (or wait for a GPU)."""
    # tensors made in inference mode have no version, and reading it raises an error
    version = -1 if tensor.is_inference() else tensor._version  # noqa: SLF001 changes in place
    last, unchecked = _finite.get(), _unchecked.get()
    if last is None or last[0]() is not tensor or last[1] != version:
        if unchecked is not None:
            unchecked.append(magnitude(tensor))
        elif not bool(magnitude(tensor) < torch.inf):
            return False
        # a weak reference: a strong one would keep the last layer of a model in memory
        _finite.set((ref(tensor), version))
    return True


def checked_at_the_end(run: Callable[[], Result]) -> Result | None:
    """The result of `run`, in which `is_finite` waits for no GPU: all tensors are checked once at the end.

    None if one is not finite: run it again, so that each is checked in its place, where something may follow from it.
    """
    unchecked: list[Tensor] = []
    token = _unchecked.set(unchecked)
    try:
        result = run()
    finally:
        _unchecked.reset(token)
        _finite.set(None)
    for device in {each.device for each in unchecked}:
        if not bool((torch.stack([each.float() for each in unchecked if each.device == device]) < torch.inf).all()):
            return None
    return result


def shows_scores(call: AttentionCall) -> bool:
    """Whether a score of -inf must be a mistake: nothing else forbids keys, and no cap hides it."""
    return call.is_contiguous and call.bias is None and call.softcap is None


def without_flat_curves(
    run: Pass, call: AttentionCall, need: Need, *, shows_scores: bool = False, wide: Pass | None = None
) -> tuple[Tensor, RowMeasures]:
    """Run a pass in which exactly the rows that may attend to a number that is not finite are NaN."""
    if (call.sinks is None or bool((call.sinks < torch.inf).all())) and (shows_scores or _has_finite_scores(call)):
        output, rows = run(call, need)
        if is_finite(output if output.numel() else rows.mass):  # values may have no width
            return output, rows
    # run the pass on finite numbers alone, and find the affected rows from their scores
    query, key, value = (side.nan_to_num(0.0, posinf=0.0, neginf=0.0) for side in (call.query, call.key, call.value))
    finite = replace(call, query=query, key=key, value=value)
    if wide is not None and not _has_finite_scores(finite):
        run = wide
    output, rows = run(finite, need)
    of_scores, of_values = _reached(call)
    strange = of_scores | ~(rows.log_sum_exp < torch.inf)  # a bias or a sink shows there
    output.masked_fill_(of_values | strange[..., None], torch.nan)
    measures = {field.name: part for field in fields(rows) if (part := getattr(rows, field.name)) is not None}
    each = {3: strange, 4: strange[..., None]}
    return output, RowMeasures(
        **{name: part.masked_fill(each[part.ndim], torch.nan) for name, part in measures.items()}
    )


def _has_finite_scores(call: AttentionCall) -> bool:
    """Whether all entries are finite and, by Cauchy and Schwarz, all sums of products that scores need."""
    query, key = torch.stack([magnitude(call.query), magnitude(call.key)]).tolist()
    # twice: the sum of squared weights is a softmax of doubled scores
    largest = 2 * max(1.0, abs(call.scale)) * query * key
    return largest < torch.finfo(torch.promote_types(call.query.dtype, torch.float32)).max


def _reached(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Rows with an allowed score that is not finite, and entries of the output that mix such a value."""
    batch, heads, queries, _ = call.query.shape
    wide = torch.promote_types(call.query.dtype, torch.float32)
    scores = torch.zeros(batch, heads, queries, dtype=torch.bool, device=call.query.device)
    values = scores.new_zeros(batch, heads, queries, call.value.shape[-1])
    strange = (~call.value.isfinite()).float()
    for text in range(batch):
        for head in range(heads):
            at = head // call.group
            for first in range(0, queries, _ROWS):
                rows = slice(first, first + _ROWS)
                allowed = call.allowed(text, head, rows)
                query, key = call.query[text, head, rows].to(wide), call.key[text, at].to(wide)
                scores[text, head, rows] = (allowed & ~(query * call.scale @ key.T).isfinite()).any(-1)
                values[text, head, rows] = allowed.float() @ strange[text, at] > 0
    return scores, values


def weights_at(
    call: AttentionCall, log_sum_exp: Float[Tensor, "batch head query"], keys: Int[Tensor, "_ query chosen"]
) -> Float[Tensor, "batch head query chosen"]:
    r"""Weight of each query on chosen keys, from queries, keys and log-sum-exp: n d work for each column of keys."""
    batch, heads, _, _ = call.query.shape
    wide = torch.promote_types(call.query.dtype, torch.float32)
    query = call.query.to(wide) * call.scale
    query_position = torch.arange(call.query.shape[2], device=query.device)
    columns: list[Tensor] = []
    for at in keys.unbind(-1):
        column = at.clamp_min(0)[:, None].expand(batch, -1, -1)
        of_heads = column.expand(-1, call.key.shape[1], -1)[..., None].expand(-1, -1, -1, call.key.shape[3])
        scores = (query * call.key.gather(2, of_heads).to(wide).repeat_interleave(call.group, 1)).sum(-1)
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        seen = (at >= 0)[:, None] & (column <= query_position if call.causal else True)
        for grid in (call.bias, call.mask):
            if grid is None:
                continue
            at_keys = column.expand(-1, grid.shape[1], -1)[..., None]
            values = grid.expand(batch, *grid.shape[1:]).gather(3, at_keys)[..., 0]
            seen, scores = (seen & values, scores) if grid is call.mask else (seen, scores + values.to(wide))
        columns.append(torch.where(seen.expand(-1, heads, -1), torch.exp(scores.double() - log_sum_exp), 0.0).to(wide))
    return torch.stack(columns, -1)


_NOTHING = -1e3  # score of a weight of 0 on an allowed key: e to that power is 0 in every float type


def call_of_weights(weights: Float[Tensor, "batch head query key"]) -> AttentionCall:
    r"""Turn weights into a call: queries and keys without width, and :math:`\ln A` as the bias."""
    batch, heads, queries, keys = weights.shape
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    visible = ~(wide == 0)  # NaN too
    looks = visible.any(-1, keepdim=True)
    seen = visible.any(1, keepdim=True)
    if not bool((looks == looks[:, :1]).all()):  # some heads have no allowed keys in rows where others have some
        seen = seen & looks
    query, key, value = (wide.new_empty(batch, heads, length, 0) for length in (queries, keys, keys))
    mask = None if bool(seen.all()) else seen
    return AttentionCall(query, key, value, scale=1.0, mask=mask, bias=wide.log().clamp_min_(_NOTHING))


def with_mass(rows: RowMeasures, mass: Float[Tensor, "batch head query"]) -> RowMeasures:
    r"""The measures of rows that sum to 1, scaled to sum to `mass`; no token receives the rest."""
    scaled = {
        name: value * mass[(...,) + (None,) * (value.ndim - mass.ndim)]
        for name in ("largest", "band", "bins", "columns")
        if (value := getattr(rows, name)) is not None
    }
    entropy = None if rows.entropy is None else mass * rows.entropy - torch.xlogy(mass, mass)
    collision = None if rows.collision is None else rows.collision * mass**2
    return replace(rows, mass=rows.mass * mass, entropy=entropy, collision=collision, **scaled)
