"""The loss of efficient forms of attention against full attention: the same statistics side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.kernels.call import AttentionCall, RowMeasures
from attnscope.kernels.reference import attend, causal_mask
from attnscope.measure.quantities import Wording, wording
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.efficient import (
    block_sparse_attention,
    block_sparse_mask,
    linear_attention,
    sliding_window_attention,
)

Form = Callable[[Tensor, Tensor, Tensor], Tensor]
_SHARED = ("profile", "entropy", "first_token")  # with scan
_OWN = {
    "weight_moved": Wording("Share of a row's weight that moved from its position in full attention", "share"),
    "output_error": Wording("Distance of the output from that of full attention, relative to the latter", "share"),
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
    r"""Compare efficient forms of attention with full attention, on the same queries, keys and values."""
    forms = usual_forms(causal=causal) if forms is None else forms
    if FULL in forms:
        raise AttnscopeError(
            f"the name {FULL!r} is reserved for full attention, which is always included: choose another name"
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
    """Compare efficient forms with full attention on a captured call of a model; see `compare_forms`."""
    causal = call.causal
    if call.mask is not None and not bool(call.mask.all()):
        causal = torch.equal(
            call.mask, causal_mask(call.mask.shape[-2], call.mask.shape[-1], call.mask.device).expand_as(call.mask)
        )
        if not causal:
            raise AttnscopeError("found a mask beyond the causal one: use a text without padding or window")
    for name in ("bias", "softcap", "sinks"):
        if getattr(call, name) is not None:
            raise AttnscopeError(
                f"the call has {name}, which the efficient forms lack: use plain dot-product attention"
            )
    key, value = (states.repeat_interleave(call.group, dim=1).double() for states in (call.key, call.value))
    query = call.query.double() * (call.scale * math.sqrt(call.query.shape[-1]))
    return compare_forms(query, key, value, forms, band, causal=causal)


def usual_forms(*, reach: int = 8, causal: bool = False) -> dict[str, Form]:
    """A sliding window, blocks with the first token for all, and linear attention."""
    return {
        f"window of {reach}": partial(sliding_window_attention, left=reach, right=0 if causal else reach),
        f"blocks of {reach}": partial(block_sparse_attention, block=reach, neighbours=0, causal=causal),
        "linear": partial(linear_attention, causal=causal),
    }


def weights_of_form(form: str, length: int, *, reach: int = 8, causal: bool = False) -> int:
    """How many weights full attention or a usual form computes for a text; linear attention none."""
    at = torch.arange(length)
    masks = {
        FULL: torch.ones(length, length, dtype=torch.bool),
        f"window of {reach}": (at - at[:, None]).abs() <= reach,
        f"blocks of {reach}": block_sparse_mask(length, block=reach, neighbours=0),
    }
    seen = masks.get(form, torch.zeros(1, 1, dtype=torch.bool))
    return int((seen.tril() if causal else seen).sum())


def _statistics(weights: Tensor, full: Tensor, output: Tensor, expected: Tensor, band: int) -> dict[str, np.ndarray]:
    batch, _, queries, keys = weights.shape
    own, other = (torch.ones(batch, count, dtype=torch.bool, device=weights.device) for count in (queries, keys))
    reduced = reduce_call(_rows(weights, band, indicator_columns(other, ~other)), _SHARED, own, other)
    reduced["weight_moved"] = (weights - full).abs().sum(-1).mean(-1) / 2
    reduced["output_error"] = (output - expected).flatten(2).norm(dim=-1) / expected.flatten(2).norm(dim=-1)
    return {name: values.double().cpu().numpy() for name, values in reduced.items()}


def _rows(weights: Tensor, band: int, columns: Tensor) -> RowMeasures:
    queries, keys = weights.shape[-2:]
    at = torch.arange(queries, device=weights.device)[:, None] + torch.arange(-band, band + 1, device=weights.device)
    near = weights.gather(-1, at.clamp(0, keys - 1).expand(*weights.shape[:2], -1, -1)) * ((at >= 0) & (at < keys))
    return RowMeasures(
        log_sum_exp=torch.zeros_like(weights[..., 0]),  # no statistic here reads it
        mass=weights.sum(-1),
        entropy=torch.special.entr(weights).sum(-1),
        band=near,
        columns=weights @ columns[:, None].to(weights.dtype),
    )


def _labelled(measured: list[dict[str, np.ndarray]], names: list[str], band: int) -> xr.Dataset:
    words = {name: wording(name) for name in _SHARED} | _OWN
    dims = ("form", "window", "head", "offset")
    variables = {
        name: (dims[: measured[0][name].ndim + 1], np.stack([text[name] for text in measured]), said.attributes)
        for name, said in words.items()
    }
    return xr.Dataset(variables, coords={"form": names, "offset": np.arange(-band, band + 1)})
