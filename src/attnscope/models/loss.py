"""Cross-entropy of an output layer, without its matrix of logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

IGNORED = -100  # the label of padding and of what is not asked for, as PyTorch has it
_CELLS = 2**21  # logits at a time: what the processor's cache holds


def mean_cross_entropy(
    logits: Float[Tensor, "batch token vocabulary"],
    labels: Int[Tensor, "batch token"],
    count: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Mean over the places that have a label, in nats; the sum over `count` where that is given."""
    total = F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="mean" if count is None else "sum",
    )
    return total if count is None else total / count


def smoothed_cross_entropy(
    hidden: Float[Tensor, "token width"],
    weight: Float[Tensor, "vocabulary width"],
    labels: Int[Tensor, " token"],
    smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Float[Tensor, ""]:
    r"""Sum over tokens of the cross-entropy of ``softmax(hidden @ weight.T)``, in nats."""
    if r_drop:
        return _FusedRDrop.apply(hidden, weight, labels, smoothing, r_drop)
    return _FusedCrossEntropy.apply(hidden, weight, labels, smoothing)


class _Fused(torch.autograd.Function):
    """Loss and gradients in the forward pass, block of rows by block of rows."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        made = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *((own * gradient).to(dtype) for own, dtype in made), *[None] * (len(ctx.needs_input_grad) - 2)


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
        # Memory is taken once: a new block of it costs more time than what is computed in it.
        made = hidden_low.new_empty(rows, vocabulary)
        logits_of, shares_of = (hidden.new_empty(rows, vocabulary, dtype=torch.float32) for _ in range(2))
        more = torch.empty_like(weight_low)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                wanted = labels[part, None]
                low_logits, logits, shares = (buffer[: len(wanted)] for buffer in (made, logits_of, shares_of))
                logits.copy_(torch.mm(hidden_low[part], weight_low.T, out=low_logits))
                torch.softmax(logits, 1, out=shares)  # the largest of them is never 0
                norm = logits.amax(1, keepdim=True) - shares.amax(1, keepdim=True).log()
                total += (norm - (1 - smoothing) * logits.gather(1, wanted)).sum()
                if smoothing:
                    total -= smoothing / vocabulary * logits.sum()
                if grad_hidden is not None and grad_weight is not None:
                    if smoothing:
                        shares -= smoothing / vocabulary
                    shares.scatter_add_(1, wanted, torch.full_like(norm, smoothing - 1))
                    gradient = low_logits.copy_(shares)
                    torch.mm(gradient, weight_low, out=grad_hidden[part])
                    grad_weight += torch.mm(gradient.T, hidden_low[part], out=more)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total


class _FusedRDrop(_Fused):
    """Cross-entropy with R-Drop: each block holds the same tokens of both passes."""

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
        made = hidden_low.new_empty(rows, vocabulary)
        buffers = [hidden.new_empty(rows, vocabulary, dtype=torch.float32) for _ in range(4)]
        more = torch.empty_like(weight_low)
        share, pull = 0.5, alpha / 4
        with torch.autocast(device, enabled=False):
            for start in range(0, tokens, rows):
                parts = [slice(first + start, first + min(start + rows, tokens)) for first in (0, tokens)]
                wanted = labels[parts[0], None]
                low_logits, *logs, ahead, shares = (buffer[: len(wanted)] for buffer in (made, *buffers))
                for log, part in zip(logs, parts, strict=True):
                    ahead.copy_(torch.mm(hidden_low[part], weight_low.T, out=low_logits))
                    torch.log_softmax(ahead, 1, out=log)
                    total -= share * (1 - smoothing) * log.gather(1, wanted).sum()
                    if smoothing:
                        total -= share * smoothing / vocabulary * log.sum()
                torch.sub(logs[0], logs[1], out=ahead)
                first, second = (log.exp_() for log in logs)
                for own, other, part in ((first, second, parts[0]), (second, first, parts[1])):
                    divergence = torch.mul(own, ahead, out=shares).sum(1, keepdim=True)
                    total += pull * divergence.sum()
                    # By own logits: share * (own - wanted) + pull * (own * (ahead - divergence) + own - other).
                    shares.mul_(pull).addcmul_(own, share + pull - pull * divergence)
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
    """That of the products: autocast's where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
