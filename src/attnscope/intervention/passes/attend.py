"""Attention as fast as PyTorch has it, and with a gradient: for passes in which nothing is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers.pytorch_utils import Conv1D

from attnscope.capture.watching import watching
from attnscope.kernels.engines import output_of
from attnscope.kernels.reference import attend, causal_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall


def output_with_gradient(call: AttentionCall) -> Tensor:
    """The output of a call, ``(batch, head, query, value_width)``, which a gradient can flow through."""
    if call.softcap is not None or call.sinks is not None:
        return _written_out(call)
    mask, causal = call.mask, call.causal
    square = call.query.shape[2] == call.key.shape[2]
    if causal and (mask is not None or call.bias is not None or not square):
        past = causal_mask(call.query.shape[2], call.key.shape[2], call.query.device)
        mask, causal = past if mask is None else mask & past, False
    if call.bias is not None:
        added = call.bias.to(call.query.dtype)
        mask = added if mask is None else added.masked_fill(~mask, torch.finfo(added.dtype).min)
    return F.scaled_dot_product_attention(
        call.query, call.key, call.value, attn_mask=mask, is_causal=causal, scale=call.scale, enable_gqa=call.group > 1
    )


def _written_out(call: AttentionCall) -> Tensor:
    mask = call.mask
    if call.causal:
        past = causal_mask(call.query.shape[2], call.key.shape[2], call.query.device)
        mask = past if mask is None else mask & past
    key, value = (side.repeat_interleave(call.group, 1) for side in (call.key, call.value))
    sinks = None if call.sinks is None else call.sinks[:, None, None]
    return attend(call.query, key, value, mask, call.scale, bias=call.bias, softcap=call.softcap, sinks=sinks)[0]


@torch.no_grad()
def unread_sites(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:
    """Attention calls whose output no linear layer reads, whole or as columns beside others."""
    waiting: list[tuple[Site, Tensor]] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        waiting.append((site, output.transpose(1, 2).flatten(2)))
        return output

    def look(_: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            waiting[:] = [(site, output) for site, output in waiting if not _holds(given[0], output)]

    linears = [module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    hooks = [module.register_forward_pre_hook(look) for module in linears]
    try:
        with watching(model, observe):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [site for site, _ in waiting]


def _holds(given: Tensor, output: Tensor) -> bool:
    """Whether some columns of what a layer reads are what the heads gave, ``(text, query, width)``."""
    width = output.shape[2]
    columns = given.shape[-1]
    if columns < width or given.numel() // columns != output.shape[0] * output.shape[1]:
        return False
    rows = given.reshape(*output.shape[:2], columns)
    limit = 1e-4 * float(output.abs().max())
    return any(
        float((rows[..., start : start + width] - output).abs().max()) <= limit
        for start in range(columns - width + 1)
        if abs(float(rows[0, 0, start] - output[0, 0, 0])) <= limit
    )
