"""What an efficient form of attention loses against full attention: the same statistics side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.kernels.bins import segments
from attnscope.kernels.call import AttentionCall, Need, RowMeasures
from attnscope.kernels.efficient import block_sparse_attention, linear_attention, sliding_window_attention
from attnscope.kernels.reference import attend, causal_mask
from attnscope.measure.observer import reduce_call
from attnscope.measure.quantities import Wording, wording
from attnscope.measure.rows import indicator_columns
from attnscope.measure.visible import allowed_by_rows, keys_at, without_gaps
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.kernels.call import AttentionCall

Form = Callable[[Tensor, Tensor, Tensor], Tensor]

_SHARED = ("profile", "entropy", "first_token")  # with scan
_OWN = {
    "weight_moved": Wording("Share of a row's weight that lies elsewhere than in full attention", "share"),
    "output_error": Wording("Distance of the output from that of full attention, over the latter's size", "share"),
}
FULL = "full"


@torch.no_grad()
def compare_forms(
    query: Float[Tensor, "batch head token width"],
    key: Float[Tensor, "batch head token width"],
    value: Float[Tensor, "batch head token value_width"],
    forms: Mapping[str, Form] | None = None,
    band: int = 10,
    *,
    causal: bool = False,
) -> xr.Dataset:
    r"""Set efficient forms of attention beside full attention, on the same queries, keys and values."""
    forms = usual_forms(causal=causal) if forms is None else forms
    if FULL in forms:
        raise AttnscopeError(
            f"the name {FULL!r} is that of full attention, which is always there: name the form otherwise"
        )
    mask = causal_mask(query.shape[2], key.shape[2], query.device) if causal else None
    expected, full = attend(query, key, value, mask)
    measured = [_statistics(full, full, expected, expected, band)]
    for name, form in forms.items():
        output = form(query, key, value)
        if output.shape != expected.shape:
            raise AttnscopeError(
                f"the form {name!r} gives {tuple(output.shape)}; expected {tuple(expected.shape)}: "
                "(batch, head, token, value width)"
            )
        same = torch.eye(key.shape[2], dtype=value.dtype, device=value.device)
        weights = form(query, key, same.expand(*value.shape[:2], -1, -1))
        measured.append(_statistics(weights, full, output, expected, band))
    return _labelled(measured, [FULL, *forms], band)


def compare_call(call: AttentionCall, forms: Mapping[str, Form] | None = None, band: int = 10) -> xr.Dataset:
    """Do the same for a captured call of a model.

    Parameters
    ----------
    call
        As `attnscope.capture.watching.watching` gives it.
    forms, band
        See `compare_forms`, which also describes the result.

    Raises
    ------
    AttnscopeError
        If the call has what the forms do not know: a bias, a soft cap, sinks, or a mask other than the causal one.

    Examples
    --------
    >>> x = torch.randn(1, 2, 30, 4, generator=torch.Generator().manual_seed(0))
    >>> compare_call(AttentionCall(x, x, x, scale=0.5, causal=True)).form.values.tolist()
    ['full', 'window of 8', 'blocks of 8', 'linear']
    """
    causal = call.causal
    if call.mask is not None and not bool(call.mask.all()):
        causal = torch.equal(call.mask, _causal_like(call.mask))
        if not causal:
            raise AttnscopeError("the call masks more than the future: take a text without padding or window")
    for name in ("bias", "softcap", "sinks"):
        if getattr(call, name) is not None:
            raise AttnscopeError(
                f"the call has {name}, which the efficient forms do not: take plain dot-product attention"
            )
    key, value = (states.repeat_interleave(call.group, dim=1).double() for states in (call.key, call.value))
    query = call.query.double() * (call.scale * math.sqrt(call.query.shape[-1]))
    return compare_forms(query, key, value, forms, band, causal=causal)


def _causal_like(mask: Tensor) -> Tensor:
    return causal_mask(mask.shape[-2], mask.shape[-1], mask.device).expand_as(mask)


def usual_forms(*, reach: int = 8, causal: bool = False) -> dict[str, Form]:
    """A sliding window, blocks with the first token for all, and linear attention."""
    return {
        f"window of {reach}": partial(sliding_window_attention, left=reach, right=0 if causal else reach),
        f"blocks of {reach}": partial(block_sparse_attention, block=reach, causal=causal),
        "linear": partial(linear_attention, causal=causal),
    }


def _statistics(weights: Tensor, full: Tensor, output: Tensor, expected: Tensor, band: int) -> dict[str, np.ndarray]:
    batch, _, queries, keys = weights.shape
    own, other = (torch.ones(batch, count, dtype=torch.bool, device=weights.device) for count in (queries, keys))
    reduced = reduce_call(_rows(weights, band, indicator_columns(other, ~other)), _SHARED, own, other)
    reduced["weight_moved"] = (weights - full).abs().sum(-1).mean(-1) / 2
    reduced["output_error"] = (output - expected).flatten(2).norm(dim=-1) / expected.flatten(2).norm(dim=-1)
    return {name: values.double().cpu().numpy() for name, values in reduced.items()}


def _rows(weights: Tensor, band: int, columns: Tensor) -> RowMeasures:
    """Measure weights that are written out."""
    queries, keys = weights.shape[-2:]
    offset = torch.arange(-band, band + 1, device=weights.device)
    at = torch.arange(queries, device=weights.device)[:, None] + offset
    there = (at >= 0) & (at < keys)
    near = weights.gather(-1, at.clamp(0, keys - 1).expand(*weights.shape[:2], -1, -1)) * there
    return RowMeasures(
        log_sum_exp=torch.zeros_like(weights[..., 0]),  # no statistic here reads it
        mass=weights.sum(-1),
        entropy=torch.special.entr(weights).sum(-1),
        band=near,
        columns=weights @ columns[:, None].to(weights.dtype),
    )


def _labelled(measured: list[dict[str, np.ndarray]], names: list[str], band: int) -> xr.Dataset:
    words = {name: wording(name) for name in _SHARED} | _OWN
    variables = {
        name: (
            ("form", "window", "head", "offset")[: measured[0][name].ndim + 1],
            np.stack([text[name] for text in measured]),
            said.attributes,
        )
        for name, said in words.items()
    }
    return xr.Dataset(variables, coords={"form": names, "offset": np.arange(-band, band + 1)})


_ROWS = 512  # whose allowed keys are written out at once, where a mask has gaps


def equal_rows(call: AttentionCall, need: Need) -> RowMeasures:
    """Measure equal weights over the keys that each query of a call may see: ``(batch, 1, query)`` each."""
    if without_gaps(call):
        return _of_extents(call, need)
    texts: list[list[RowMeasures]] = [[] for _ in call.query]
    for text, own, allowed in allowed_by_rows(call, _ROWS):
        texts[text].append(_of_allowed(need, text, own, allowed))
    return _joined([_joined(blocks, dim=2) for blocks in texts], dim=0)


def _of_extents(call: AttentionCall, need: Need) -> RowMeasures:
    """Arithmetic on the first and last key that each query may see."""
    start, stop = (bound.expand(len(call.query), -1) for bound in call.extent)
    count = stop - start
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    columns = None
    if need.columns is not None:
        before = torch.nn.functional.pad(need.columns.double().cumsum(1), (0, 0, 1, 0))
        first, last = (bound[..., None].expand(-1, -1, before.shape[-1]) for bound in (start, stop))
        columns = (before.gather(1, last) - before.gather(1, first)) * share[..., None]

    def within(edges: Tensor) -> Tensor:
        """Share of a row between each edge, an offset, and the next."""
        return keys_at(edges, start, stop).diff(dim=-1) * share[..., None]

    return _equal_rows(need, count, share, within, columns)


def _of_allowed(need: Need, text: int, own: Tensor, seen: Tensor) -> RowMeasures:
    """The same of some queries from the keys that they may see, where a mask has gaps."""
    allowed = seen[None].double()
    count = allowed.sum(-1)
    share = torch.where(count > 0, 1.0 / count.clamp_min(1), 0.0)
    before = torch.nn.functional.pad(allowed.cumsum(-1), (1, 0))
    columns = None
    if need.columns is not None:
        columns = allowed @ need.columns[text : text + 1].double() * share[..., None]

    def within(edges: Tensor) -> Tensor:
        at = (own[:, None] + edges).clamp(0, allowed.shape[-1])[None]
        return before.gather(-1, at).diff(dim=-1) * share[..., None]

    return _equal_rows(need, count, share, within, columns)


def _equal_rows(
    need: Need, count: Tensor, share: Tensor, within: Callable[[Tensor], Tensor], columns: Tensor | None
) -> RowMeasures:
    band = bins = None
    if need.band is not None:
        band = within(torch.arange(-need.band, need.band + 2, device=count.device))
    if need.bins:
        sides = within(torch.from_numpy(segments(need.bins)).to(count.device))
        bins = torch.cat([sides[..., : len(need.bins)], sides[..., len(need.bins) + 1 :]], -1)
    entropy = count.clamp_min(1).double().log()
    return RowMeasures(
        log_sum_exp=entropy[:, None],
        mass=(share > 0).double()[:, None],
        entropy=entropy[:, None],
        band=None if band is None else band.float()[:, None],
        bins=None if bins is None else bins.float()[:, None],
        columns=None if columns is None else columns[:, None],
    )


def _joined(parts: list[RowMeasures], dim: int) -> RowMeasures:
    def of(name: str) -> Tensor | None:
        measures = [getattr(part, name) for part in parts]
        return None if measures[0] is None else torch.cat(measures, dim)

    names = ("log_sum_exp", "mass", "entropy", "band", "bins", "columns")
    return RowMeasures(**{name: of(name) for name in names})  # pyright: ignore[reportArgumentType]


_ROUNDS = 50
_NEAR = 1e-6  # of all weight, to which each place must be met
NONE = 1e-300  # instead of 0 below a fraction

Array = TypeVar("Array", Tensor, np.ndarray)


def fitted_places(sums: Array, mass: Array, counts: Array) -> tuple[Array, Array]:
    """The weight of a key at each place, ``(..., head, place)``, and that of each row, ``(..., head, row)``:
    factors.
    """
    share, row = sums * 0.0 + 1.0, mass
    near = _NEAR * float(mass.sum(-1).max())
    for _ in range(_ROUNDS):
        row = row_factors(share, mass, counts)
        reached = row @ counts
        if float(abs(share * reached - sums).max()) <= near:
            break
        share = sums / reached.clip(min=NONE)
    return share, row


def row_factors(share: Array, mass: Array, counts: Array) -> Array:
    """What the rows are multiplied by, ``(..., head, row)``, so that each has its sum."""
    return mass / (share @ counts.mT).clip(min=NONE)


def text_mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over texts, NaN where no text has a value; what has no texts, as a pooled result, stays."""
    return values.mean("window", skipna=True) if "window" in values.dims else values
