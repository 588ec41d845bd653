"""What weights miss, by the definitions: parts of a block, and attention in the column space of the values."""

import numpy as np
import torch

from attnscope.capture.watching import watching
from attnscope.kernels.full import attend_in_full


def block(weights, values, output, residual, *, bias=0.0, norm=None, place="sum", gain=1.0, shift=0.0, epsilon=1e-5):
    """Norms of what each token gives to a block's output, ``(query, key)``, and the mean of its mixing ratios."""

    def linear(part, size):
        centred = part - part.mean(-1, keepdims=True) if norm == "layer" else part
        return centred / size.reshape(-1, *[1] * (part.ndim - 1)) * gain

    through = np.einsum("hqk,hkr,hrw->qkw", weights, values, output)
    whole = through.sum(1) + bias + (residual if place == "sum" else 0.0)
    if norm is not None:
        centred = whole - whole.mean(-1, keepdims=True) if norm == "layer" else whole
        size = np.sqrt((centred**2).mean(1) + epsilon)
        through = linear(through, size)
        residual = linear(residual, size) if place == "sum" else residual
        whole = linear(whole, size) + (0.0 if shift is None else shift)
    index = np.arange(len(through))
    through[index, index] += residual
    own = through[index, index]
    sizes = [np.linalg.norm(part, axis=-1) for part in (through.sum(1) - own, own)]
    return np.linalg.norm(through, axis=-1), (sizes[0] / (sizes[0] + sizes[1])).mean()


def effective(weights, values, allowed, tolerance=1e-6):
    """Rows of A U U^T, U spanning the visible values; shares outside, also permuted; rank; free dimensions."""
    rows = np.zeros_like(weights)
    found = []
    for query, keys in enumerate(allowed):
        own, visible = weights[query, keys], values[keys]
        count, power = len(own), (own**2).sum()
        basis, sizes, _ = np.linalg.svd(visible, full_matrices=False)
        basis = basis[:, sizes > tolerance * sizes.max()]
        rows[query, keys] = own @ basis @ basis.T
        same = power if count == 1 else (power - own.sum() ** 2 / count) / (count - 1)
        other = 0.0 if count == 1 else (own.sum() ** 2 / count - same) / count
        permuted = same * basis.shape[1] + other * (basis.sum(0) ** 2).sum()
        with_ones = np.column_stack([visible, np.full(count, np.linalg.norm(visible, 2) / np.sqrt(count))])
        rank = np.linalg.matrix_rank(with_ones, rtol=tolerance)
        found.append((1 - (rows[query] ** 2).sum() / power, 1 - permuted / power, basis.shape[1], count - rank))
    return rows, np.array(found).T


def loss_by_text(model, questions, change=None, layer=None):
    """Loss of each text in a whole pass; `change` edits the output of a layer in place, by its weights."""
    calls = []

    def observe(site, call):
        output, weights = attend_in_full(call)
        if len(calls) == layer:
            output = output.clone()
            change(call, output, weights)
        calls.append(site)
        return output

    with torch.no_grad(), watching(model, observe):
        logits = model(**questions.batch.inputs(model)).logits
    at = questions.positions[..., None].expand(-1, -1, logits.shape[-1])
    answers = torch.log_softmax(logits, -1).gather(1, at)
    right = answers.gather(-1, questions.labels.clamp(min=0)[..., None])[..., 0]
    real = questions.labels >= 0
    return (-right * real).sum(1) / real.sum(1)
