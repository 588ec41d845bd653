"""Calls of FlexAttention, compiled or not, while a module is watched."""

from __future__ import annotations

import inspect
import types
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._dynamo.eval_frame import skip_code
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from attnscope.attention import AttentionCall
from attnscope.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_original = types.FunctionType(
    flex_attention.__code__, flex_attention.__globals__, flex_attention.__name__, flex_attention.__defaults__
)
_original.__kwdefaults__ = flex_attention.__kwdefaults__
_watching: list[Callable[[Callable[..., Any], Any, dict[str, Any]], Any]] = []


@contextmanager
def flex_attention_seen(
    called: Callable[[Callable[..., Any], Any, dict[str, Any]], Any],
) -> Generator[None]:
    """Let `called` answer every call of ``flex_attention``, with the function itself and its arguments.

    Modules hold the function under names of their own, and mostly as ``torch.compile`` made it, so the code of the one
    function is changed while the context lasts. Compiled or not, it then runs as it does without ``torch.compile``.
    """
    before = flex_attention.__code__, flex_attention.__defaults__, flex_attention.__kwdefaults__
    _watching.append(called)
    code = inspect.unwrap(_trampoline).__code__
    skip_code(code)  # what is compiled cannot be watched
    try:
        flex_attention.__defaults__, flex_attention.__kwdefaults__ = None, None
        flex_attention.__code__ = code
        yield
    finally:
        _watching.pop()
        flex_attention.__code__, flex_attention.__defaults__, flex_attention.__kwdefaults__ = before


def _trampoline(*args: Any, **options: Any) -> Any:
    from attnscope.capture._flex import answered

    return answered(*args, **options)


@torch.compiler.disable
def answered(*args: Any, **options: Any) -> Any:
    """What `flex_attention_seen` was given, asked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return _watching[-1](_original, args, options)


def call_of_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    **_: Any,
) -> AttentionCall:
    """Arguments of ``flex_attention`` as an attention call, whose scores are written out as its bias.

    Raises
    ------
    AttnscopeError
        If its ``score_mod`` does not take all scores of a call at once.

    Examples
    --------
    >>> x = torch.zeros(1, 1, 2, 4)
    >>> call = call_of_flex(x, x, x, lambda score, b, h, q, k: score + (k - q))
    >>> call.bias[0, 0].tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    key, value = (states.expand(batch, -1, -1, -1).detach() for states in (key, value))
    wide = torch.promote_types(query.dtype, torch.float32)
    shared = key.repeat_interleave(heads // key.shape[1], 1).to(wide)
    scores = (width**-0.5 if scale is None else scale) * query.detach().to(wide) @ shared.mT
    if score_mod is not None:
        scores = _changed(score_mod, scores)
    mask = None
    if block_mask is not None:
        texts, each = (
            size if shape > 1 else 1 for size, shape in zip((batch, heads), block_mask.shape, strict=False)
        )
        mask = create_mask(block_mask.mask_mod, texts, each, queries, keys, device=str(query.device))
    return AttentionCall(
        query=scores.new_empty(batch, heads, queries, 0),
        key=scores.new_empty(batch, heads, keys, 0),
        value=value.repeat_interleave(heads // value.shape[1], 1).to(wide),
        scale=1.0,
        mask=mask,
        bias=scores,
    )


def _changed(score_mod: Callable[..., Tensor], scores: Tensor) -> Tensor:
    """Scores as the module's own function changes them; it is written for one score, with its four places."""
    places = [
        torch.arange(size, device=scores.device).reshape([-1 if axis == i else 1 for i in range(4)])
        for axis, size in enumerate(scores.shape)
    ]
    advice = "Give the weights to attnscope.measure_weights"
    with (
        torch.no_grad(),
        explaining("the score_mod of flex_attention does not take all scores at once", advice),
    ):
        changed = score_mod(scores, *places)
    if changed.shape != scores.shape:
        raise AttnscopeError(
            f"the score_mod of flex_attention gives the shape {tuple(changed.shape)} for scores of "
            f"{tuple(scores.shape)} taken at once. {advice}"
        )
    return changed.to(scores.dtype)
