"""Equal weights over what a call allows, held against the mask written out."""

import pytest
import torch

from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.reference import causal_mask, padding_mask, window_mask
from attnscope.measure.rows import equal_rows
from tests.attention.oracle import from_weights

N, BINS = 20, (3, 5, 9)
SQUARE = (2, 1, N, N)
RIGHT = torch.arange(N)[None] < torch.tensor([N, 13])[:, None]
GAPS = torch.rand(SQUARE, generator=torch.Generator().manual_seed(0)) > 0.4
CALLS = {
    "plain": {},
    "causal": {"causal": True},
    "padding": {"mask": padding_mask(RIGHT).expand(SQUARE)},
    "padding, causal": {"mask": padding_mask(RIGHT) & causal_mask(N, N)},
    "window": {"mask": window_mask(N, N, left=4, right=2)[None, None]},
    "gaps": {"mask": GAPS},
    "gaps, causal": {"mask": GAPS, "causal": True},
    "a mask in numbers": {"bias": torch.zeros(1, 1, N, N).masked_fill(~causal_mask(N, N), -torch.inf)},
    "a very low number": {
        "bias": torch.zeros(1, 1, N, N).masked_fill(~causal_mask(N, N), torch.finfo(torch.float32).min)
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_equal_weights_are_those_of_the_mask(name):
    x = torch.zeros(2, 3, N, 4)
    call = AttentionCall(x, x, x, scale=1.0, **CALLS[name])
    allowed = torch.ones(SQUARE, dtype=torch.bool) if call.mask is None else call.mask.expand(SQUARE)
    if call.causal or call.bias is not None:
        allowed = allowed & causal_mask(N, N)
    weights = allowed.double() / allowed.sum(-1, keepdim=True).clamp_min(1)
    columns = torch.rand(2, N, 2, generator=torch.Generator().manual_seed(1))
    rows = equal_rows(call, Need(band=2, bins=BINS, entropy=True, columns=columns))
    expected = from_weights(weights, 2, BINS)
    for measure in ("mass", "entropy", "band", "bins"):
        torch.testing.assert_close(
            getattr(rows, measure).double(), expected[measure], atol=1e-6, rtol=1e-6, msg=measure
        )
    torch.testing.assert_close(rows.columns, weights @ columns.double()[:, None])
