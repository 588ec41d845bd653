"""The Triton kernel against the definitions in float64: in Triton's interpreter, or on CUDA where there is a GPU."""

import math
from dataclasses import replace

import pytest
import torch

from attnscope import AttnscopeError
from attnscope.attention import (
    AttentionCall,
    Need,
    alibi_slopes,
    can_triton,
    causal_mask,
    choose_engine,
    measure,
    offsets,
    padding_mask,
    t5_buckets,
    window_mask,
)
from tests.attention.oracle import oracle

pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
N = 300 if CUDA else 70  # three tiles of queries and more of keys
BINS = (9, 17, 33)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def calls():
    q, k, v = (draw(1, 2, N, 16, seed=seed) for seed in range(3))
    plain = AttentionCall(q, k, v, 0.25)
    two = AttentionCall(*(draw(2, 1, N, 16, seed=seed) for seed in range(3)), 0.25)
    right = torch.arange(N)[None] < torch.tensor([N, N - 40])[:, None]
    left = torch.arange(N)[None] >= torch.tensor([0, 40])[:, None]
    slopes = alibi_slopes(2).float()[:, None, None]
    some = draw(1, 1, N, N) > 0.5
    some[..., 5, :] = False
    forbidding = torch.zeros(1, 1, N, N).masked_fill(~some, torch.finfo(torch.float32).min)
    wide = [draw(1, 1, N, 200, seed=seed) for seed in range(3)]
    return {
        "plain": plain,
        "causal": replace(plain, causal=True),
        "padding right": replace(two, mask=padding_mask(right).expand(2, 1, N, N)),
        "padding left, causal": replace(two, mask=padding_mask(left) & causal_mask(N, N)),
        "window": replace(plain, mask=window_mask(N, N, left=20, right=3)[None, None]),
        "window per head": replace(
            plain, mask=torch.stack([window_mask(N, N, left=left, right=0) for left in (3, 40)])[None]
        ),
        "random mask, a row without keys": replace(plain, mask=some),
        "random mask, causal": replace(plain, mask=draw(1, 2, N, N) > 0.5, causal=True),
        "any bias": replace(plain, bias=draw(1, 2, N, N), causal=True),
        "bias that forbids": replace(plain, bias=forbidding.masked_fill(~causal_mask(N, N), -math.inf)),
        "ALiBi, a line a head": replace(
            plain, bias=(slopes * torch.arange(N)).expand(1, 2, N, N), causal=True
        ),
        "T5": replace(plain, bias=draw(32, 2)[t5_buckets(offsets(N, N))].permute(2, 0, 1)[None], scale=1.0),
        "soft cap": replace(plain, query=4 * q, key=4 * k, softcap=5.0, causal=True),
        "soft cap and bias": replace(plain, softcap=3.0, bias=draw(1, 1, N, N)),
        "sinks": replace(plain, sinks=torch.tensor([3.0, -math.inf]), causal=True),
        "grouped queries": AttentionCall(draw(1, 4, 33, 16), k, v, 0.25),
        "narrow": AttentionCall(q[..., :5], k[..., :5], v[..., :3], 0.4),
        "wide": AttentionCall(*wide, 0.07, causal=True),
        "tokens before heads": AttentionCall(
            *(draw(1, N, 2, 24, seed=seed).transpose(1, 2) for seed in range(3)), 0.2
        ),
        "every second channel": AttentionCall(q[..., ::2], k[..., ::2], v[..., ::2], 0.3),
        "one token": AttentionCall(q[:, :, :1], k[:, :, :1], v[:, :, :1], 0.25),
        "more keys than queries, causal": AttentionCall(q[:, :, :20], k, v, 0.25, causal=True),
        "more queries than keys": AttentionCall(q, k[:, :, :20], v[:, :, :20], 0.25),
        "large scores": AttentionCall(40 * q, q, v, 1.0),
        "float16": AttentionCall(q.half(), k.half(), v.half(), 0.25, causal=True),
        "bfloat16": AttentionCall(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.25, sinks=draw(2)),
    }


CALLS = calls()
# float32 sums against float64: a few units in the last place of scores, or of offsets and their squares
CLOSE = {
    "mass": 1e-6,
    "entropy": 3e-6,
    "mean_offset": 1e-4 if CUDA else 2e-5,
    "offset_variance": 1e-2 if CUDA else 1e-3,
    "largest": 2e-6,
    "collision": 2e-6,
    "band": 2e-6,
    "bins": 2e-6,
}


def there(call):
    """The call on the device of these tests."""
    names = ("query", "key", "value", "mask", "bias", "sinks")
    sides = {name: getattr(call, name) for name in names}
    return replace(call, **{name: side.to(DEVICE) for name, side in sides.items() if side is not None})


def check(call, need, band=10):
    output, rows = measure(there(call), need, engine="triton")
    expected_output, expected, weights = oracle(call, band, need.bins)
    rough = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 5e-6}[call.query.dtype]
    torch.testing.assert_close(output.cpu().double(), expected_output, atol=rough, rtol=rough)
    assert output.dtype == call.query.dtype
    sharp = 1e-5 if call.query.dtype == torch.float32 else 3e-5
    sharper = max(1.0, float((call.scale * call.query.double() @ call.key.double()[:, :1].mT).abs().max()) / 16)
    for name, value in expected.items():
        found = getattr(rows, name)
        if found is not None:
            assert found.dtype == (torch.float32 if name in {"band", "bins"} else torch.float64)
            close = CLOSE[name] * sharper  # scores are rounded to a part of the largest
            torch.testing.assert_close(found.cpu().double(), value, atol=close, rtol=sharp * sharper, msg=name)
    if need.columns is not None:
        wanted = weights @ need.columns.cpu().double()[:, None]
        torch.testing.assert_close(rows.columns.cpu(), wanted, atol=1e-5 * sharper, rtol=1e-5)
    return rows


@pytest.mark.parametrize("name", CALLS)
def test_every_measure_equals_its_definition(name):
    call = CALLS[name]
    columns = draw(len(call.query), call.key.shape[2], 2).to(DEVICE)
    rows = check(call, Need.everything(10, columns, BINS))
    plain = measure(call, Need(), engine="plain")[1]
    torch.testing.assert_close(rows.log_sum_exp.cpu(), plain.log_sum_exp, atol=1e-5, rtol=1e-5)
