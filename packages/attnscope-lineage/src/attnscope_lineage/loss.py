"""The loss of training: cross-entropy with smoothing and R-Drop, without a matrix of all logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.models.common import IGNORED, TiedModel

_CELLS = 2**21  # logits at a time, to fit the processor's cache


def summed_loss(
    model: TiedModel,
    input_ids: Int[Tensor, "batch token"],
    attention_mask: Int[Tensor, "batch token"],
    labels: Int[Tensor, "batch label"],
    smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Float[Tensor, ""]:
    """Loss summed over the labels, in nats, without other logits. With R-Drop, two passes."""
    if r_drop:
        input_ids, attention_mask, labels = (torch.cat([one, one]) for one in (input_ids, attention_mask, labels))
    real = labels != IGNORED
    hidden = _hidden(model, input_ids, attention_mask, labels)[real]
    return smoothed_cross_entropy(hidden, model.lm_head.weight, labels[real], smoothing, r_drop)


def losses_of_texts(
    model: TiedModel,
    input_ids: Int[Tensor, "batch token"],
    attention_mask: Int[Tensor, "batch token"],
    labels: Int[Tensor, "batch label"],
) -> Float[Tensor, " batch"]:
    """Loss of each text, summed over its labels, in nats, without smoothing."""
    hidden = _hidden(model, input_ids, attention_mask, labels)
    return torch.stack(
        [
            smoothed_cross_entropy(states[row != IGNORED], model.lm_head.weight, row[row != IGNORED], 0.0, 0.0)
            for states, row in zip(hidden, labels, strict=True)
        ]
    )


def _hidden(
    model: Any,
    input_ids: Int[Tensor, "batch token"],
    attention_mask: Int[Tensor, "batch token"],
    labels: Int[Tensor, "batch label"],
) -> Float[Tensor, "batch label width"]:
    """The output layer's input; in an encoder-decoder, under teacher forcing."""
    states = model.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
    if not model.config.is_encoder_decoder:
        return states
    return model.decoder(model.decoder_inputs(labels), states, attention_mask).hidden


def smoothed_cross_entropy(
    hidden: Float[Tensor, "token width"],
    weight: Float[Tensor, "vocabulary width"],
    labels: Int[Tensor, " token"],
    smoothing: float,
    r_drop: float,
) -> Float[Tensor, ""]:
    r"""Sum over tokens of the cross-entropy of ``softmax(hidden @ weight.T)``, in nats."""
    if r_drop:
        return _FusedRDrop.apply(hidden, weight, labels, smoothing, r_drop)
    return _FusedCrossEntropy.apply(hidden, weight, labels, smoothing)


class _Fused(torch.autograd.Function):
    """Loss and gradients in the forward pass, block of rows by block of rows."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((each * gradient).to(dtype) for each, dtype in gradients), *[None] * (len(ctx.needs_input_grad) - 2)


class _FusedCrossEntropy(_Fused):
    """Cross-entropy with smoothing."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        device = hidden.device.type
        low = _precision(hidden)
        hidden_low, weight_low = hidden.to(low), weight.to(low)
        keep = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden_low) if keep else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if keep else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        vocabulary = len(weight)
        rows = min(max(1, _CELLS // vocabulary), len(hidden))
        # Memory is allocated once: a new block costs more time than the computation in it.
        logits_low = hidden_low.new_empty(rows, vocabulary)
        logits_of, shares_of = (hidden.new_empty(rows, vocabulary, dtype=torch.float32) for _ in range(2))
        more = torch.empty_like(weight_low)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                wanted = labels[part, None]
                low_logits, logits, shares = (buffer[: len(wanted)] for buffer in (logits_low, logits_of, shares_of))
                logits.copy_(torch.mm(hidden_low[part], weight_low.T, out=low_logits))
                torch.softmax(logits, 1, out=shares)  # the largest of them is never 0
                # the log of the sum of exponentials, from the largest logit and its share
                norm = logits.amax(1, keepdim=True) - shares.amax(1, keepdim=True).log()
                total += (norm - (1 - smoothing) * logits.gather(1, wanted)).sum()
                if smoothing:
                    total -= smoothing / vocabulary * logits.sum()
                if grad_hidden is not None and grad_weight is not None:
                    if smoothing:
                        shares -= smoothing / vocabulary
                    # the gradient by logits: shares - (1 - smoothing) at the label - smoothing / vocabulary
                    shares.scatter_add_(1, wanted, torch.full_like(norm, smoothing - 1))
                    gradient = low_logits.copy_(shares)
                    torch.mm(gradient, weight_low, out=grad_hidden[part])
                    grad_weight += torch.mm(gradient.T, hidden_low[part], out=more)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total


class _FusedRDrop(_Fused):
    """Cross-entropy with R-Drop (Liang et al. 2021): each block holds the same tokens of both passes."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        device = hidden.device.type
        low = _precision(hidden)
        hidden_low, weight_low = hidden.to(low), weight.to(low)
        grad_hidden = torch.empty_like(hidden_low)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        vocabulary, tokens = len(weight), len(hidden) // 2
        rows = min(max(1, _CELLS // vocabulary // 2), tokens)
        logits_low = hidden_low.new_empty(rows, vocabulary)
        buffers = [hidden.new_empty(rows, vocabulary, dtype=torch.float32) for _ in range(4)]
        more = torch.empty_like(weight_low)
        share, pull = 0.5, alpha / 4
        with torch.autocast(device, enabled=False):
            for start in range(0, tokens, rows):
                parts = [slice(first + start, first + min(start + rows, tokens)) for first in (0, tokens)]
                wanted = labels[parts[0], None]
                low_logits, *logs, ahead, shares = (buffer[: len(wanted)] for buffer in (logits_low, *buffers))
                for log, part in zip(logs, parts, strict=True):
                    ahead.copy_(torch.mm(hidden_low[part], weight_low.T, out=low_logits))
                    torch.log_softmax(ahead, 1, out=log)
                    total -= share * (1 - smoothing) * log.gather(1, wanted).sum()
                    if smoothing:
                        total -= share * smoothing / vocabulary * log.sum()
                torch.sub(logs[0], logs[1], out=ahead)
                first, second = (log.exp_() for log in logs)
                for this, other, part in ((first, second, parts[0]), (second, first, parts[1])):
                    divergence = torch.mul(this, ahead, out=shares).sum(1, keepdim=True)
                    total += pull * divergence.sum()
                    # by logits: share * (this - wanted) + pull * (this * (ahead - divergence) + this - other)
                    shares.mul_(pull).addcmul_(this, share + pull - pull * divergence)
                    shares.sub_(other, alpha=pull)
                    if smoothing:
                        shares -= share * smoothing / vocabulary
                    shares.scatter_add_(1, wanted, shares.new_full((len(wanted), 1), share * (smoothing - 1)))
                    gradient = low_logits.copy_(shares)
                    torch.mm(gradient, weight_low, out=grad_hidden[part])
                    grad_weight += torch.mm(gradient.T, hidden_low[part], out=more)
                    ahead.neg_()
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total


def _precision(hidden: Tensor) -> torch.dtype:
    """The type of products: that of autocast, if it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
