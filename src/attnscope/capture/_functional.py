"""Calls of PyTorch's attention functions, as attention calls."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnscope.attention import AttentionCall, call_of_weights, causal_mask
from attnscope.capture._flex import call_of_flex
from attnscope.errors import AttnscopeError

_FOUR = 4  # batch, head, position, width
_ROWS = 64  # of a mask in numbers that tell whether it hides the future
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

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> real = torch.ones(1, 3, dtype=torch.bool)
    >>> seen = SeenCall(call_of_product(x, x, x, is_causal=True), "causal", real, real, None)
    >>> seen.call.extent[1].tolist(), seen.output is None  # it is not known what PyTorch gave
    ([[1, 2, 3]], True)
    """

    call: AttentionCall
    kind: str
    queries: Tensor
    keys: Tensor
    output: Tensor | None


def call_of_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001 the numbers of heads say so too
) -> AttentionCall:
    """Arguments of ``torch.nn.functional.scaled_dot_product_attention`` as an attention call.

    Raises
    ------
    AttnscopeError
        If it drops weights at random, or its tensors are not ``(batch, head, position, width)``.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> call_of_product(x, x, x, is_causal=True).scale
    0.5
    """
    _refuse_dropout(dropout_p)
    if query.is_nested or key.is_nested or value.is_nested:
        raise AttnscopeError("scaled_dot_product_attention was called with nested tensors: pad the texts")
    if query.ndim != _FOUR or key.ndim != _FOUR or value.ndim != _FOUR:
        raise AttnscopeError(
            f"scaled_dot_product_attention was called with a query of shape {tuple(query.shape)}; expected "
            "(batch, head, query, width), from which heads and texts can be told"
        )
    shared = max(key.shape[1], value.shape[1])
    batch = max(states.shape[0] for states in (query, key, value))
    heads = max(query.shape[1], shared)
    query = query.expand(batch, heads, -1, -1)
    key, value = (states.expand(batch, shared, -1, -1) for states in (key, value))
    mask = bias = None
    if attn_mask is not None:
        spread = attn_mask[(None,) * (_FOUR - attn_mask.ndim)]
        spread = spread.expand(*spread.shape[:2], query.shape[2], key.shape[2])
        mask, bias = (spread, None) if attn_mask.dtype == torch.bool else (None, spread)
    return AttentionCall(
        query,
        key,
        value,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        causal=is_causal,
        mask=mask,
        bias=bias,
    )


def of_scaled_dot_product(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
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
    call = call_of_product(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    call = replace(
        call,
        query=call.query.detach(),
        key=call.key.detach(),
        value=call.value.detach(),
        bias=None if call.bias is None else call.bias.detach(),
    )
    return _seen(call, _allowed(call), None, output.detach())


def of_flex(output: Any, *given: Any, **named: Any) -> SeenCall:
    """A call of ``flex_attention``, and what it gave; see `call_of_flex`."""
    call = call_of_flex(*given, **named)
    first = output[0] if isinstance(output, tuple) else output
    return _seen(call, _allowed(call), None, first.detach())


def of_eager(output: Tensor, arguments: dict[str, Any]) -> SeenCall:
    """A call of a model's own ``eager_attention_forward``, by the names of its arguments, and what it gave."""
    named = arguments | arguments.get("kwargs", {})
    query, key, value = (named[name].detach() for name in ("query", "key", "value"))
    mask, bias = named.get("attention_mask"), named.get("position_bias")
    if mask is not None:
        mask = mask[..., : key.shape[2]].detach()
        if bias is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    if bias is not None:
        mask = bias.detach() if mask is None else bias.detach() + mask
    call = call_of_product(query, key, value, mask, named.get("dropout") or 0.0, scale=named.get("scaling"))
    call = replace(call, softcap=named.get("softcap"), sinks=named.get("s_aux"))
    return _seen(call, _allowed(call), None, output.detach().transpose(1, 2))


def of_multi_head(*given: Any, **named: Any) -> SeenCall:
    """A call of ``torch.nn.functional.multi_head_attention_forward``, the function behind ``nn.MultiheadAttention``.

    The function is asked once more, for the weights of each head: what it returns itself stays as it is.
    """
    options = arguments_of_multi_head(*given, **named)
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
    tokens, more = len(query), len(key) - len(query)  # (position, batch, width), whatever `batch_first`
    if more > 0 and tokens > 1 and torch.equal(key[more:], query):
        raise AttnscopeError(
            f"nn.MultiheadAttention is given {more} keys before its own tokens, so the positions of its queries are "
            "unknown: leave these keys out, or give the weights to attnscope.measure_weights"
        )
    return _seen(call_of_weights(weights), weights != 0, keys, None, is_cross=not same)


def arguments_of_multi_head(*given: Any, **named: Any) -> dict[str, Any]:
    """Arguments of ``torch.nn.functional.multi_head_attention_forward`` by name; refused where keys are no tokens."""
    options = _NAMED.bind(*given, **named).arguments
    if options.get("training", True):
        _refuse_dropout(options["dropout_p"])
    if options["bias_k"] is not None or options["add_zero_attn"]:
        raise AttnscopeError(
            "nn.MultiheadAttention has add_bias_kv or add_zero_attn: its last keys are not tokens, so offsets mean "
            "nothing there. Take attnscope.measure_weights for its weights without these keys"
        )
    return options


def call_of_multi_head(options: dict[str, Any]) -> tuple[AttentionCall, bool]:
    """What ``multi_head_attention_forward`` makes of its arguments, and whether keys are of other states than queries.

    Raises
    ------
    AttnscopeError
        If keys or values are given as they are, without a projection.

    Examples
    --------
    >>> layer = torch.nn.MultiheadAttention(4, 2).eval()
    >>> x = torch.zeros(3, 1, 4)
    >>> options = arguments_of_multi_head(
    ...     x, x, x, 4, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0,
    ...     layer.out_proj.weight, layer.out_proj.bias, training=False,
    ... )
    >>> call, is_cross = call_of_multi_head(options)
    >>> call.query.shape, is_cross
    (torch.Size([1, 2, 3, 2]), False)
    """
    if options.get("static_k") is not None or options.get("static_v") is not None:
        raise AttnscopeError("nn.MultiheadAttention is given keys or values that it does not project")
    states: list[Tensor] = [options[name] for name in ("query", "key", "value")]
    is_cross = states[0] is not states[1] and not (
        states[0].shape == states[1].shape and torch.equal(states[0], states[1])
    )
    states = [side if side.ndim == 3 else side[:, None] for side in states]  # noqa: PLR2004
    if options.get("use_separate_proj_weight", False):
        matrices = [options[f"{name}_proj_weight"] for name in "qkv"]
    else:
        matrices = options["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if options["in_proj_bias"] is None else options["in_proj_bias"].chunk(3)
    query, key, value = (
        functional.linear(side, matrix, bias).unflatten(-1, (options["num_heads"], -1)).permute(1, 2, 0, 3)
        for side, matrix, bias in zip(states, matrices, biases, strict=True)
    )
    bias = None
    for name in ("attn_mask", "key_padding_mask"):
        mask: Tensor | None = options.get(name)
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # True is hidden
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -math.inf)
        if name == "key_padding_mask":
            mask = mask.reshape(query.shape[0], 1, 1, -1)
        else:
            mask = mask.unflatten(0, query.shape[:2]) if mask.ndim == 3 and len(mask) > 1 else mask  # noqa: PLR2004
            mask = mask[(None,) * (_FOUR - mask.ndim)]
        bias = mask if bias is None else bias + mask
    return call_of_product(query, key, value, bias), is_cross


def have_same_weights(one: AttentionCall, other: AttentionCall) -> bool:
    """Whether two calls have the same queries in memory, and keys and masks of the same numbers."""
    first, second = one.query, other.query
    if not first.numel() or first.data_ptr() != second.data_ptr() or first.shape != second.shape:
        return False
    pairs = ((one.key, other.key), (one.mask, other.mask), (one.bias, other.bias))
    return (one.scale, one.causal) == (other.scale, other.causal) and all(
        a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs
    )


def sees_ahead(call: AttentionCall) -> bool:
    """Whether any query may look at a later key; a single token is taken to.

    Examples
    --------
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> sees_ahead(call_of_product(x, x, x, is_causal=True)), sees_ahead(call_of_product(x, x, x))
    (False, True)
    """
    queries, keys = call.query.shape[2], call.key.shape[2]
    if queries == 1:
        return True
    places = torch.arange(max(queries, keys), device=call.query.device)
    if call.mask is None and call.positions is None:  # known without asking the device
        ahead = keys > 1 and not call.causal
    else:
        ahead = bool((call.extent[1] > places[:queries] + 1).any())
    if not ahead:
        return False
    if call.bias is None:
        return True
    rows = call.bias[..., :_ROWS, :]
    later = places[:keys] > places[: rows.shape[-2], None]
    return bool((later & (rows > torch.finfo(rows.dtype).min / 2)).any())


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
