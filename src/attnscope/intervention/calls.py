"""Outputs of attention calls with gradients, their weights in tiles, and the layers that read them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from attnscope.capture.placement import device_of
from attnscope.capture.watch import Site
from attnscope.capture.watching import attached, watching
from attnscope.capture.weights import linear_layers
from attnscope.explanation.inputs import ids_of
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attended, weights_of
from attnscope.kernels.reference import causal_mask
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError


def output_with_gradient(call: AttentionCall) -> Tensor:
    """The differentiable output of a call, ``(batch, head, query, value_width)``."""
    if call.softcap is not None or call.sinks is not None:
        return attended(call)[0]
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


@torch.no_grad()
def unread_sites(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:
    """Attention calls whose heads no linear layer reads: whole, as some of its columns, or each times a gate."""
    waiting: list[tuple[Site, Tensor]] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        waiting.append((site, output.transpose(1, 2).flatten(2)))
        return output

    def look(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], Tensor):
            waiting[:] = [(site, output) for site, output in waiting if not _holds(arguments[0], output)]

    linears = linear_layers(model)
    with attached(module.register_forward_pre_hook(look) for _, module in linears), watching(model, observe):
        model(**inputs)
    return [site for site, _ in waiting if not _reads_apart(model, inputs, site)]


def _reads_apart(model: PreTrainedModel, inputs: dict[str, Tensor], site: Site) -> bool:
    """Whether a layer reads each head in columns of its own, all else equal, as behind a gate (Qwen3-Next)."""
    runs, apart = list[tuple[Tensor, Tensor]](), False
    heads, moved, at = 0, False, iter(())

    def observe(current: Site, call: AttentionCall) -> Tensor:
        nonlocal heads
        output = output_of(call)
        if current.index != site.index:
            return output
        heads = output.shape[1]
        if moved:
            output = output.clone()
            output[:, ::2] += 1 + output.abs().max()
        return output

    def compare(_: nn.Module, arguments: tuple[Any, ...], returned: Tensor) -> Tensor | None:
        nonlocal apart
        if not moved:
            runs.append((arguments[0].clone(), returned.clone()))
            return None
        before, after = next(at)
        changed = (arguments[0] != before).flatten(0, -2).any(0)
        if heads and len(changed) % heads == 0:
            by_head = changed.unflatten(0, (heads, -1)).any(1)
            apart = apart or (bool(by_head[::2].all()) and not bool(by_head[1::2].any()))
        return after  # all that follows is equal

    linears = [module for _, module in linear_layers(model)]
    with attached(module.register_forward_hook(compare) for module in linears), watching(model, observe):
        model(**inputs)
        moved, at, heads = True, iter(runs), 0
        model(**inputs)
    return apart


def _holds(received: Tensor, output: Tensor) -> bool:
    """Whether some columns of a layer's input are the output of the heads, ``(text, query, width)``."""
    width = output.shape[2]
    columns = received.shape[-1]
    if columns < width or received.numel() // columns != output.shape[0] * output.shape[1]:
        return False
    rows = received.reshape(*output.shape[:2], columns)
    limit = 1e-4 * float(output.abs().max())
    return any(
        float((rows[..., start : start + width] - output).abs().max()) <= limit
        for start in range(columns - width + 1)
        if abs(float(rows[0, 0, start] - output[0, 0, 0])) <= limit
    )


_WEIGHTS_AT_ONCE = 1 << 22  # 16 MiB in float32, all heads of some rows


def weight_tiles(call: AttentionCall) -> Iterator[tuple[slice, Float[Tensor, "head row key"]]]:
    """Weights of the first text, some rows of all heads at a time, so that no whole matrix is in memory."""
    _, heads, queries, _ = call.query.shape
    height = max(1, _WEIGHTS_AT_ONCE // (heads * call.key.shape[2]))
    for first in range(0, queries, height):
        rows = slice(first, min(queries, first + height))
        yield rows, weights_of(call, rows)[0]


def band_of(matrix: Float[Tensor, "*head row key"], first: int, band: int) -> Float[Tensor, "*head row offset"]:
    """The entries of rows at offsets ``-band..band``, 0 beyond the text; `first` is the number of the first row."""
    rows, keys = matrix.shape[-2:]
    offset = torch.arange(-band, band + 1, device=matrix.device)
    at = torch.arange(first, first + rows, device=matrix.device)[:, None] + offset
    return matrix.gather(-1, at.clamp(0, keys - 1).expand(*matrix.shape[:-2], -1, -1)) * ((at >= 0) & (at < keys))


def inputs_of(model: PreTrainedModel, window: Window | Sequence[int]) -> dict[str, Tensor]:
    """Arguments of a forward pass over one window; without a target, a decoder reads the source too."""
    texts = {"input_ids": window}
    if model.config.is_encoder_decoder:
        texts["decoder_input_ids"] = getattr(window, "target", None) or window
    return {name: torch.tensor([list(ids_of(text))], device=device_of(model)) for name, text in texts.items()}


def checked_heads(
    heads: Sequence[tuple[int, int]], existing: Sequence[tuple[int, int]], name: str
) -> list[tuple[int, int]]:
    """Heads that exist, each once."""
    chosen = list(dict.fromkeys((int(layer), int(head)) for layer, head in heads))
    for layer, head in chosen:
        if (layer, head) not in existing:
            raise AttnscopeError(
                f"there is no head {layer}.{head} ({name}): layers go from 0 to {max(existing)[0]}, heads from 0 to "
                f"{max(number for _, number in existing)}"
            )
    if not chosen:
        raise AttnscopeError(f"found no heads ({name}); expected at least one, such as [(0, 1), (0, 3)], or 0.1,0.3")
    return chosen
