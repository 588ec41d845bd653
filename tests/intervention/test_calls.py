"""Weights written out, against the reference of the attention package."""

import pytest
import torch

from attnscope.intervention import calls as _calls
from attnscope.intervention.calls import weight_tiles
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full, attended, weights_of
from attnscope_lineage.weights.calls import output_by_rows

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


QUERY, KEY, VALUE = random(1, 4, 7, 5), random(1, 2, 9, 5), random(1, 2, 9, 3)
MASK = torch.rand(1, 1, 7, 9, generator=GENERATOR) > 0.4
MASK[:, :, 2] = False  # a row that may look nowhere
FORMS = {
    "plain": {},
    "causal": {"causal": True},
    "mask": {"mask": MASK},
    "mask and causal": {"mask": MASK, "causal": True},
    "bias by head": {"bias": random(1, 4, 7, 9)},
    "bias that forbids": {"bias": torch.zeros(1, 1, 7, 9).double().masked_fill(~MASK, torch.finfo(torch.float64).min)},
    "soft cap": {"softcap": 0.7},
    "sinks": {"sinks": random(4)},
    "all": {"mask": MASK, "bias": random(1, 1, 7, 9), "softcap": 1.5, "sinks": random(4), "causal": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_and_output_are_those_of_the_reference(form, monkeypatch):
    call = AttentionCall(QUERY, KEY, VALUE, scale=0.6, **FORMS[form])
    output, weights = attend_in_full(call)
    torch.testing.assert_close(weights_of(call), weights)
    torch.testing.assert_close(attended(call)[0], output)
    torch.testing.assert_close(weights_of(call, slice(2, 5)), weights[:, :, 2:5])
    monkeypatch.setattr(_calls, "_WEIGHTS_AT_ONCE", 4 * 9 * 3)  # three rows at a time
    assert [rows.stop for rows, _ in weight_tiles(call)] == [3, 6, 7]
    torch.testing.assert_close(torch.cat([tile for _, tile in weight_tiles(call)], 1), weights[0])
    torch.testing.assert_close(output_by_rows(call), output)


def test_half_precision_is_computed_in_single():
    call = AttentionCall(*(one.bfloat16() for one in (QUERY, KEY, VALUE)), scale=0.6)
    assert weights_of(call).dtype == torch.float32
    assert attended(call)[0].dtype == output_by_rows(call).dtype == torch.bfloat16
