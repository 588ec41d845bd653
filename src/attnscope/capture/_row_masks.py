"""The mask that transformers asks for, without its matrix wherever each row is one stretch of keys."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from attnscope.attention import MASK_ENTRIES, RowMask, extent_by_rows

_ASKED = signature(sdpa_mask)


def row_mask(*sizes: Any, **asked: Any) -> Tensor | None:
    """Give what `sdpa_mask` gives, as a `RowMask` where it would be long and no row has gaps.

    Transformers' own function makes some rows at a time, of which the first and the last allowed key are kept: so
    windows, padding, packed texts and whatever else a model makes of its mask count as they do there, in O(n) memory.

    Examples
    --------
    >>> from transformers.masking_utils import sliding_window_causal_mask_function as window
    >>> mask = row_mask(1, 2048, 2048, mask_function=window(3), local_size=3)
    >>> type(mask).__name__, mask.shape, mask.start[0, -1].item(), mask.stop[0, -1].item()
    ('RowMask', torch.Size([1, 1, 2048, 2048]), 2045, 2048)
    """
    named: dict[str, Any] = dict(_ASKED.bind(*sizes, **asked).arguments)
    named |= named.pop("kwargs", {})
    batch, queries, keys = (named[name] for name in ("batch_size", "q_length", "kv_length"))
    if (
        not all(isinstance(size, int) for size in (batch, queries, keys))
        or batch * queries * keys <= MASK_ENTRIES
    ):
        return sdpa_mask(**named)
    if torch.compiler.is_compiling() or torch.device(named.get("device", "cpu")).type == "meta":
        return sdpa_mask(**named)  # nothing can be known there of what a row allows
    probe: dict[str, Any] = {"mask_function": _everything, "use_vmap": False}
    if sdpa_mask(**(named | probe)) is None:
        return None
    extent = extent_by_rows(partial(_some_rows, named), queries, batch * keys)
    if not extent.is_contiguous:
        return sdpa_mask(**named)
    return RowMask(extent.start, extent.stop, keys)


def _everything(_text: Tensor, _head: Tensor, query: Tensor, _key: Tensor) -> Tensor:
    """A mask function that forbids nothing, in one number: for whether transformers would make a mask at all."""
    return query.new_ones((1, 1, 1, 1), dtype=torch.bool)


def _some_rows(named: dict[str, Any], rows: slice) -> Tensor:
    some: dict[str, Any] = {
        "q_length": rows.stop - rows.start,
        "q_offset": named.get("q_offset", 0) + rows.start,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
    }
    return cast("Tensor", sdpa_mask(**(named | some)))  # None only where it may skip
