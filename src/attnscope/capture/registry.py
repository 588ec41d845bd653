"""The first method of capture: a function on transformers' attention registry, and one that builds its masks."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import signature
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from attnscope.capture.borrow import implementations, quiet, restore
from attnscope.capture.eager import UncapturedError, disentangled
from attnscope.capture.functional import products, sees_ahead
from attnscope.capture.watch import Observer, Site, current, passes_of
from attnscope.kernels.call import AttentionCall, with_masked_keys
from attnscope.kernels.engines import output_of
from attnscope.kernels.masks import MASK_ENTRIES, RowMask, extent_by_rows
from attnscope.support.errors import AttnscopeError, reason_of
from attnscope.support.state import replaced

NAME = "attnscope"
_ROWS = 256  # rows of a mask that are computed at once


def attnscope_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend by the registry's protocol: ``(batch, head, query, width)`` in, ``(batch, query, head, width)`` out."""
    if dropout:
        raise AttnscopeError(f"the model drops attention weights at random ({dropout}). Call model.eval() first")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    bias, mask = position_bias, None
    if attention_mask is None:
        causal = causal and query.shape[2] > 1 and not _written_out.get()
    else:  # a mask includes causality
        causal = False
        attention_mask = _four(attention_mask)[..., : key.shape[2]].expand(-1, -1, query.shape[2], -1)
        if isinstance(attention_mask, RowMask):  # the model may have written to it
            attention_mask = attention_mask.settled()
        if attention_mask.dtype == torch.bool:
            mask = attention_mask
        else:
            bias = attention_mask if bias is None else _four(bias) + attention_mask
    watch = current.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    bias = None if bias is None else _four(bias)
    extent = None if watch is None or mask is None else watch.extent_of(mask)
    call = with_masked_keys(
        AttentionCall(query, key, value, scale, causal, mask, bias, softcap, s_aux, mask_extent=extent)
    )
    if watch is None:
        return output_of(call).transpose(1, 2).contiguous(), None
    if watch.before is not None and watch.before[0]() is query and watch.before[1]() is key:
        # the second half of the values (DiffLlama) belongs to the same layer
        return output_of(call).transpose(1, 2).contiguous(), None
    # weak references: a strong one would hold the states of one layer through the next
    watch.before = ref(query), ref(key)
    is_cross = id(module) in watch.cross
    kind = "cross" if is_cross else "causal" if _is_causal(module, call, is_causal=is_causal) else "self"
    site = Site(watch.calls, watch.names.get(id(module), type(module).__name__), kind)

    def as_pytorch() -> Tensor:
        if softcap is not None or s_aux is not None:  # PyTorch's function supports neither
            return output_of(call)
        settings: dict[str, Any] = {"scaling": scaling, "is_causal": call.causal, "position_bias": position_bias}
        # all rows at once, unless the mask would have to be written out whole
        of_rows = [slice(None)]
        if isinstance(attention_mask, RowMask) and settings["position_bias"] is None:  # avoid the whole mask in memory
            of_rows = [slice(at, at + _ROWS) for at in range(0, query.shape[2], _ROWS)]
        cut = [(query[:, :, rows], None if attention_mask is None else attention_mask[:, :, rows]) for rows in of_rows]
        parts = [sdpa_attention_forward(module, some, key, value, mask, **settings)[0] for some, mask in cut]
        return torch.cat(parts, 1).transpose(1, 2)

    return watch.observe(site, call, compute=as_pytorch).transpose(1, 2).contiguous(), None


def _four(tensor: Tensor) -> Tensor:
    return tensor[None, None] if tensor.ndim == 2 else tensor[:, None] if tensor.ndim == 3 else tensor  # noqa: PLR2004


def _is_causal(module: nn.Module, call: AttentionCall, *, is_causal: bool | None) -> bool:
    """Whether the module is causal by its settings, or by its mask alone (Doge)."""
    implicit = not _written_out.get() and getattr(module, "is_causal", False)
    return bool(implicit if is_causal is None else is_causal) or not sees_ahead(call)


# Whether masks are always built in full, as in eager attention, so that the causal settings of layers do not matter
_written_out: ContextVar[bool] = ContextVar("attnscope_written_out", default=False)

_SIGNATURE = signature(sdpa_mask)


def row_mask(*sizes: Any, **options: Any) -> Tensor | None:
    """Return the result of `sdpa_mask`, as a `RowMask` if it is long and no row has gaps."""
    named: dict[str, Any] = dict(_SIGNATURE.bind(*sizes, **options).arguments)
    named |= named.pop("kwargs", {})
    batch, queries, keys = (named[name] for name in ("batch_size", "q_length", "kv_length"))
    if not all(isinstance(size, int) for size in (batch, queries, keys)) or batch * queries * keys <= MASK_ENTRIES:
        return sdpa_mask(**named)
    if torch.compiler.is_compiling() or torch.device(named.get("device", "cpu")).type == "meta":
        return sdpa_mask(**named)  # the rows are unknown there
    probe: dict[str, Any] = {"mask_function": _everything, "use_vmap": False}
    # transformers builds no mask where causality suffices: a mask that forbids nothing shows whether this is so
    if sdpa_mask(**(named | probe)) is None:
        return None
    extent = extent_by_rows(partial(_some_rows, named), queries, batch * keys)
    if not extent.is_contiguous:
        return sdpa_mask(**named)
    return RowMask(extent.start, extent.stop, keys)


def _everything(_text: Tensor, _head: Tensor, query: Tensor, _key: Tensor) -> Tensor:
    """A mask function that forbids nothing, to test whether transformers would build a mask at all."""
    return query.new_ones((1, 1, 1, 1), dtype=torch.bool)


def _some_rows(named: dict[str, Any], rows: slice) -> Tensor:
    # `q_offset` makes rows from anywhere: the mask is never built whole to find its extent
    some: dict[str, Any] = {
        "q_length": rows.stop - rows.start,
        "q_offset": named.get("q_offset", 0) + rows.start,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    return cast("Tensor", sdpa_mask(**(named | some)))  # None only where it may skip


def _mask(*sizes: Any, **options: Any) -> Tensor | None:
    """Build a mask for PyTorch's attention, or None if the modules' `is_causal` suffices."""
    if _written_out.get():
        options["allow_is_causal_skip"] = False
    return row_mask(*sizes, **options)


AttentionInterface.register(NAME, attnscope_attention)
AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def on_registry(
    model: PreTrainedModel,
    observer: Observer,
    *,
    masks_written_out: bool = False,
    modules: Mapping[str, nn.Module] | None = None,
) -> Generator[None]:
    """Pass every attention call of `model` to `observer(site, call)`, which returns the output: see `watching`."""
    outer = current.get()
    if outer is not None and outer.held is model and _written_out.get() == masks_written_out:
        with replaced(vars(outer), observer=observer):
            yield
        return
    modules = modules or dict(model.named_modules())
    before = implementations(modules.values())
    try:
        with quiet():  # models that do not use the registry are recognised by their calls
            model.set_attn_implementation(NAME)
    except (ValueError, ImportError) as error:
        restore(before)
        raise UncapturedError(
            f"the attention of {type(model).__name__} cannot be replaced: {reason_of(error)}"
        ) from error
    written = _written_out.set(masks_written_out)
    try:
        # off the registry: DeBERTa computes its scores by hand, and some layers call PyTorch's functions themselves
        hooked = disentangled(modules.values(), attnscope_attention), passes_of(model, observer, modules)
        with hooked[0], hooked[1] as watch, products(model, watch):
            yield
    finally:
        _written_out.reset(written)
        restore(before)
