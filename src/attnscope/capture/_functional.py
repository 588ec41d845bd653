"""Calls of PyTorch's attention functions, as attention calls."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.attention import AttentionCall, call_of_weights, causal_mask
from attnscope.errors import AttnscopeError

_FOUR = 4  # batch, head, position, width
_NAMED = inspect.signature(functional.multi_head_attention_forward)


@dataclass(frozen=True, eq=False)
class SeenCall:
    """An attention call, with what can be told of its texts.

    Attributes
    ----------
    call
        Its arguments; made of weights where the module has no more to show.
    kind
        ``self``, ``causal`` or ``cross``.
    queries, keys
        ``(batch, query)`` and ``(batch, key)``: False on padding.
    output
        What PyTorch gave for these arguments, ``(batch, head, query, width)``; None for a call made of weights.
    """

    call: AttentionCall
    kind: str
    queries: Tensor
    keys: Tensor
    output: Tensor | None


def of_scaled_dot_product(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001 the numbers of heads say so too
) -> SeenCall:
    """A call of ``torch.nn.functional.scaled_dot_product_attention``, and what it gave.

    A key that no query of a text may look at is padding; so is, where queries and keys are the same tokens, the query
    in its place. A call with as many queries as keys is of the kind ``self``, or ``causal`` if nothing may look to the
    right; any other is ``cross``.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> mask = torch.tensor([True, True, False])[None, None, None]
    >>> seen = of_scaled_dot_product(torch.zeros(1, 2, 3, 4), x, x, x, mask)
    >>> seen.kind, seen.queries.tolist()
    ('self', [[True, True, False]])
    """
    _refuse_dropout(dropout_p)
    if query.is_nested or key.is_nested or value.is_nested:
        raise AttnscopeError("scaled_dot_product_attention was called with nested tensors: pad the texts")
    if query.ndim != _FOUR or key.ndim != _FOUR or value.ndim != _FOUR:
        raise AttnscopeError(
            f"scaled_dot_product_attention was called with a query of shape {tuple(query.shape)}; expected "
            "(batch, head, query, width), from which heads and texts can be told"
        )
    batch, heads = output.shape[:2]
    query = query.expand(batch, heads, -1, -1)
    shared = max(key.shape[1], value.shape[1])
    key, value = (one.expand(batch, shared, -1, -1) for one in (key, value))
    mask = bias = None
    if attn_mask is not None:
        spread = attn_mask[(None,) * (_FOUR - attn_mask.ndim)]
        spread = spread.expand(*spread.shape[:2], query.shape[2], key.shape[2])
        mask, bias = (spread, None) if attn_mask.dtype == torch.bool else (None, spread)
    call = AttentionCall(
        query.detach(),
        key.detach(),
        value.detach(),
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        causal=is_causal,
        mask=mask,
        bias=None if bias is None else bias.detach(),
    )
    return _seen(call, _allowed(call), None, output.detach())


def of_multi_head(*given: Any, **named: Any) -> SeenCall:
    """A call of ``torch.nn.functional.multi_head_attention_forward``, the function behind ``nn.MultiheadAttention``.

    The function is asked once more, for the weights of each head: what it returns itself stays as it is.
    """
    options = _NAMED.bind(*given, **named).arguments
    if options.get("training", True):
        _refuse_dropout(options["dropout_p"])
    if options["bias_k"] is not None or options["add_zero_attn"]:
        raise AttnscopeError(
            "nn.MultiheadAttention has add_bias_kv or add_zero_attn: its last keys are no tokens, so offsets mean "
            "nothing there. Take attnscope.measure_weights for its weights without these keys"
        )
    asked: dict[str, Any] = options | {"need_weights": True, "average_attn_weights": False}
    with torch.no_grad():
        weights = functional.multi_head_attention_forward(**asked)[1]
    if weights is None:
        raise AttnscopeError(
            "nn.MultiheadAttention returns no weights: is it a subclass that leaves them out?"
        )
    weights = weights if weights.ndim == _FOUR else weights[None]
    query, key, padding = options["query"], options["key"], options.get("key_padding_mask")
    keys = weights.new_ones(weights.shape[0], weights.shape[3], dtype=torch.bool)
    if padding is not None:
        hidden = padding if padding.dtype == torch.bool else padding == -math.inf
        keys = ~hidden.reshape(keys.shape)
    same = query is key or (query.shape == key.shape and torch.equal(query, key))
    return _seen(call_of_weights(weights), weights != 0, keys, None, is_cross=not same)


def _seen(
    call: AttentionCall,
    allowed: Tensor,
    keys: Tensor | None,
    output: Tensor | None,
    *,
    is_cross: bool = False,
) -> SeenCall:
    batch, _, queries, places = (*call.query.shape[:3], call.key.shape[2])
    if keys is None:
        keys = allowed.any(1).any(1).expand(batch, places)
    if is_cross or queries != places:
        return SeenCall(call, "cross", keys.new_ones(batch, queries), keys, output)
    is_causal = queries > 1 and not bool(allowed.triu(1).any())
    return SeenCall(call, "causal" if is_causal else "self", keys, keys, output)


def _allowed(call: AttentionCall) -> Tensor:
    """Where queries may look, ``(batch or 1, head or 1, query, key)``."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=call.query.device)
    if call.causal:
        allowed = causal_mask(queries, keys, call.query.device)[None, None]
    if call.mask is not None:
        allowed = allowed & call.mask
    if call.bias is not None:
        allowed = allowed & (call.bias > torch.finfo(call.bias.dtype).min / 2)
    return allowed


def _refuse_dropout(share: float) -> None:
    if share > 0:
        raise AttnscopeError(
            f"attention drops weights at random (dropout_p = {share:g}): call module.eval() first, so that what is "
            "measured is what the module means"
        )
