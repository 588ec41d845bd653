"""Weights over patches of one call, held against the written-out matrix, also where something is forbidden."""

import numpy as np
import pytest
import torch

from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.measure.geometry import Grid
from attnscope.measure.images import measure_patches
from attnscope.measure.rows import evenly
from tests.measure.images.test_scan import by_loops

GRID = Grid(rows=4, columns=4, start=1, tokens=17, class_token=0)


def random_call(**more):
    generator = torch.Generator().manual_seed(1)
    query, key = (2 * torch.randn(2, 3, 17, 8, generator=generator) for _ in range(2))
    return AttentionCall(query, key, key, 0.5, **more)


def forbidding():
    mask = torch.rand(2, 1, 17, 17, generator=torch.Generator().manual_seed(2)) > 0.4
    return mask | torch.eye(17, dtype=torch.bool)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mask": forbidding()},
        {"bias": torch.zeros(2, 1, 17, 17).masked_fill(~forbidding(), torch.finfo(torch.float32).min)},
        {"softcap": 2.0},
    ],
    ids=("plain", "mask", "bias", "soft cap"),
)
def test_every_statistic_of_patches_is_that_of_the_matrix(more):
    call = random_call(**more)
    for of in (call, evenly(call)):
        weights = attend_in_full(of)[1].double().numpy()
        found = measure_patches(of, GRID, band=2)
        for text, head in np.ndindex(weights.shape[:2]):
            for name, value in by_loops(weights[text, head], 1).items():
                if name in found:
                    # in float32: left and right may cancel to a mean offset of 0
                    np.testing.assert_allclose(found[name][text, head], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_offsets_beyond_a_narrow_image_are_not_known():
    grid = Grid(rows=1, columns=3, start=0, tokens=3, class_token=None)
    x = torch.zeros(1, 1, 3, 4)
    found = measure_patches(AttentionCall(x, x, x, 1.0), grid, band=2)["patch_profile"][0, 0]
    assert found[2].tolist() == pytest.approx([1 / 3] * 5)
    assert found[[0, 1, 3, 4]].isnan().all()


def test_weights_on_no_token_are_on_no_patch():
    call = random_call(sinks=torch.full((3,), 50.0))
    found = measure_patches(call, GRID, band=1)
    total = found["patch_profile"].sum((-1, -2))
    assert bool((total < 1e-3).all())
