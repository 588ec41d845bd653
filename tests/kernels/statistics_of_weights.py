"""What every statistic is, written down on the explicit weights: the independent answer."""

from dataclasses import replace

import torch

from attnscope.kernels.call import AttentionCall
from attnscope.kernels.reference import attend, causal_mask, window_mask


def oracle(call, band, bins=()):
    """Output, row measures by their definitions, and weights, all from float64 attend()."""
    output, weights = attended(call)
    if call.bias is not None:  # a row that it forbids has no weights to measure, whatever its output is
        nowhere = (call.bias <= torch.finfo(call.bias.dtype).min / 2).all(-1, keepdim=True)
        weights = weights.masked_fill(nowhere, 0)
    return output, from_weights(weights, band, bins), weights


def attended(call):
    """Output and weights (batch, head, query, key), from float64 attend()."""
    group = call.group
    query, key, value = call.query.double(), call.key.double(), call.value.double()
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    n, m = query.shape[2], key.shape[2]
    mask = torch.ones(n, m, dtype=torch.bool)[None, None] if call.mask is None else call.mask
    if call.causal:
        mask = mask & causal_mask(n, m)
    sinks = None if call.sinks is None else call.sinks.double()[:, None, None]
    bias = None if call.bias is None else call.bias.double()
    return attend(query, key, value, mask, call.scale, bias=bias, softcap=call.softcap, sinks=sinks)


def from_weights(weights, band, bins=()):
    """Row measures of explicit weights (batch, head, query, key)."""
    n, m = weights.shape[-2:]
    mass = weights.sum(-1)
    safe = torch.where(mass > 0, mass, 1.0)
    offset = torch.arange(m)[None, :] - torch.arange(n)[:, None]
    mean = (weights * offset).sum(-1) / safe
    variance = (weights * (offset - mean[..., None]) ** 2).sum(-1) / safe
    rows, around = torch.arange(n)[:, None], torch.arange(n)[:, None] + torch.arange(2 * band + 1)
    near = torch.nn.functional.pad(weights, (band, max(0, n - m) + band))[..., rows, around]
    ends = [*(start - 1 for start in bins[1:]), max(n, m)]
    sides = [(-last, -first) for first, last in zip(bins, ends, strict=bool(bins))][::-1]
    sides += [(first, last) for first, last in zip(bins, ends, strict=bool(bins))]
    inside = [(weights * ((offset >= first) & (offset <= last))).sum(-1) for first, last in sides]
    return {
        **({"bins": torch.stack(inside, -1)} if bins else {}),
        "mass": mass,
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "mean_offset": mean,
        "offset_variance": variance,
        "largest": weights.amax(-1),
        "collision": (weights**2).sum(-1),
        "band": near,
    }


def check_largest_keys(found, weights, rounding):
    """Keys of the largest weights: the very key, but for rows where another comes as near as rounding goes."""
    largest, key = weights.max(-1)
    seen = largest > 0
    assert torch.equal(found == -1, ~seen)
    chosen = weights.gather(-1, found.long().clamp_min(0)[..., None])[..., 0]
    assert bool((chosen >= largest * (1 - rounding))[seen].all())
    others = weights.scatter(-1, key[..., None], 0.0).amax(-1)
    is_clear = seen & (others < largest * (1 - rounding))
    assert is_clear.sum() > 0.2 * seen.sum()  # a soft cap makes many scores alike
    assert torch.equal(found[is_clear], key[is_clear].double())


def tied(queries, keys, heads=2):
    """Queries and keys of whole numbers, whose scores are exact: every third key is one of seven, so that many tie."""
    draws = torch.Generator().manual_seed(queries + keys)
    query = torch.randint(-3, 4, (1, heads, queries, 16), generator=draws).float()
    seven = torch.randint(-3, 4, (1, heads, 7, 16), generator=draws).float()
    key = torch.randint(-1, 2, (1, heads, keys, 16), generator=draws).float()
    key[:, :, ::3] = seven[:, :, torch.arange(0, keys, 3) % 7]
    return query, key


def first_of_the_largest(call):
    """The first key of the largest score, of scores of whole numbers; -1 where a row may look nowhere."""
    scores = (call.query @ call.key.mT).double() * call.scale
    heads = range(call.query.shape[1])
    allowed = torch.stack([call.allowed(0, head) for head in heads])[None]
    scores = scores.masked_fill(~allowed, -torch.inf)
    if call.bias is not None:
        scores = scores + call.bias.double()
    is_largest = allowed & (scores == scores.amax(-1, keepdim=True))
    assert bool((is_largest.sum(-1) > 1).any())
    first = torch.where(is_largest, torch.arange(scores.shape[-1]), scores.shape[-1]).amin(-1)
    return first.where(allowed.any(-1), -1).double()


def ties(queries, keys):
    """Calls in which many keys have the same score, the largest of a row."""
    query, key = tied(queries, keys)
    call = AttentionCall(query, key, key, 0.25)
    draws = torch.Generator().manual_seed(0)
    random = torch.randn(1, 1, queries, keys, generator=draws) > 0.5
    random[..., 5, :] = False
    return {
        "all keys": call,
        "causal": replace(call, causal=True),
        "window": replace(call, mask=window_mask(queries, keys, left=queries // 2, right=queries // 3)[None, None]),
        "random mask": replace(call, mask=random),
        "a bias of whole numbers": replace(call, bias=torch.randn(1, 2, queries, keys, generator=draws).round()),
        "equal scores": replace(call, query=0 * query, causal=True),
    }
