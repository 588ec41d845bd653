"""What a head adds to its scores at each offset, against sums of cosines and of turned vectors."""

import numpy as np
import pytest

from attnscope.kernels.positions import rotation
from attnscope.testing.heads import CONSTANT, Rotary, ScoreRule, Shift, Space, Waves

LENGTH, HEAD_WIDTH = 20, 48
SPACE = Space(60, token=20, position=16)


def at(offset, **how):
    nothing = np.zeros((0, SPACE.width))
    return ScoreRule(nothing, nothing, (Shift(offset, **how),))


def scores_of(positions, rule):
    rng = np.random.default_rng(1)
    query, key = positions.projections(rule, SPACE, HEAD_WIDTH, rng)
    table = positions.table(SPACE)
    states = CONSTANT * SPACE.rows("constant") + (np.zeros((LENGTH, 1)) if table is None else table)
    queries, keys = states @ query, states @ key
    if table is None:  # as Llama turns them
        import torch

        turn = rotation(LENGTH, HEAD_WIDTH)
        queries, keys = (turn(torch.from_numpy(one)).numpy() for one in (queries, keys))
    return queries @ keys.T


@pytest.mark.parametrize("positions", [Waves(LENGTH, np.random.default_rng(0)), Rotary(LENGTH, HEAD_WIDTH)])
@pytest.mark.parametrize("offset", [-3, 0, 2])
def test_scores_are_the_kernel_moved_to_the_offset(positions, offset):
    rule = at(offset)
    i, j = np.indices((LENGTH, LENGTH))
    expected = positions.nats(rule.shifts[0]) * positions.kernel((j - i - offset).astype(float))
    assert np.allclose(scores_of(positions, rule), expected)


@pytest.mark.parametrize("positions", [Waves(LENGTH, np.random.default_rng(0)), Rotary(LENGTH, HEAD_WIDTH)])
def test_the_gap_is_what_was_asked_for(positions):
    scores = scores_of(positions, at(-2, gap=7.0))
    row = scores[10, :11]  # what a query in the middle sees of the past
    assert row.argmax() == 8
    assert np.sort(row)[-1] - np.sort(row)[-2] >= 7.0 - 1e-9
