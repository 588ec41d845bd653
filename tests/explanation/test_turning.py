"""Who turns to its own output: a planted head, noise, and heads that only look close by."""

import numpy as np
import xarray as xr

from attnscope.comparison.generated import describe_own_output, own_output_shares
from attnscope.measure.generation_rows import BINS, RANGES, by_positions

STEPS, GIVEN = 24, 30


def rows(share):
    """Weights of a head at each step, ``(step, key)``, from `share(query, key)`."""
    weights = np.zeros((STEPS, GIVEN + STEPS))
    for step in range(STEPS):
        query = GIVEN - 1 + step
        own = share(query, np.arange(query + 1))
        weights[step, : query + 1] = own / own.sum()
    return weights


def measured(weights):
    """What is measured of heads with these weights, ``(head, step, key)``, and the span of their own output."""
    query = GIVEN - 1 + np.arange(STEPS)
    offset = np.arange(weights.shape[-1]) - query[:, None]
    bins = np.stack([((offset >= first) & (offset <= last)) * weights for first, last in RANGES], -1).sum(-2)
    columns = np.stack([np.arange(weights.shape[-1]) < GIVEN, np.arange(weights.shape[-1]) >= GIVEN], 1).astype(float)
    found = {
        BINS: bins.swapaxes(0, 1)[:, None],
        "first_token": weights[..., 0].T[:, None],
        "equal_entropy": np.log(query + 1.0)[:, None],
    }
    return by_positions(found, columns, GIVEN)[:, 0, :, 1].T, weights @ columns[:, 1]


def test_positions_predict_heads_that_go_by_nothing_else():
    """Decay with the distance, the first token, the token before, all alike: each bin holds one weight or nearly so."""
    heads = [
        lambda query, key: np.ones(len(key)),
        lambda query, key: np.where(key == 0, 20.0, 1.0),
        lambda query, key: np.where(query - key == 1, 30.0, 1.0),
        lambda query, key: 0.9 ** (query - key),
    ]
    places, own = measured(np.stack([rows(head) for head in heads]))
    np.testing.assert_allclose(places[:3], own[:3], atol=1e-3)
    np.testing.assert_allclose(places[3], own[3], atol=0.02)
    turning = rows(lambda query, key: np.where(key >= GIVEN, 1.0 + (query - GIVEN + 1) / 2, 1.0))
    places, own = measured(turning[None])
    assert own[0, -1] - places[0, -1] > 0.1


def result(own, places, texts=20):
    dims = ("sequence", "step", "layer", "head", "span")
    equal = np.broadcast_to(np.linspace(0, 0.4, STEPS)[None, :, None, None], (texts, STEPS, 1, 1))
    return xr.Dataset(
        {
            "span_weight": (dims, own[:, :, None, :, None]),
            "position_span_weight": (dims, places[:, :, None, :, None]),
            "equal_span_weight": ([name for name in dims if name != "head"], equal),
            "length": ("sequence", np.full(texts, STEPS)),
        },
        {"span": ["own output"], "layer": [0], "head": np.arange(own.shape[2])},
    )


def test_one_head_that_turns_is_distinguished_from_those_that_do_not():
    generator = np.random.default_rng(0)
    grown = np.linspace(0, 0.6, STEPS)[None, :, None]
    places = np.broadcast_to(grown, (20, STEPS, 20))
    own = places + generator.normal(0, 0.05, (20, STEPS, 20))
    assert not any(row["beyond_chance"] for row in own_output_shares(result(own, places)))
    own[..., 7] += np.linspace(0, 0.2, STEPS)
    found = own_output_shares(result(own, places))
    assert [row["head"] for row in found if row["beyond_chance"]] == [7]
    assert found[0]["head"] == 7
    assert 0.1 < found[0]["turn_low"] < found[0]["turn"] < found[0]["turn_high"] < 0.2
    assert "Of 20 heads, only 0.7 shifts" in describe_own_output(found)


def test_few_or_short_texts_have_no_verdict():
    places = np.zeros((19, STEPS, 2))
    assert all(row["beyond_chance"] is None for row in own_output_shares(result(places, places, texts=19)))
    assert own_output_shares(result(places, places, texts=19).assign(length=("sequence", [5] * 19))) == []


def test_the_largest_shift_of_few_texts_is_said_to_be_untested():
    places = np.zeros((19, STEPS, 2))
    own = places + np.linspace(0, 0.6, STEPS)[:, None]
    assert "is not tested" in describe_own_output(own_output_shares(result(own, places, texts=19)))


def test_no_shift_is_not_announced_as_the_largest_one():
    """Heads that follow their positions: neither with a test nor without one."""
    places = np.zeros((20, STEPS, 2))
    for texts in (19, 20):
        said = describe_own_output(own_output_shares(result(places[:texts], places[:texts], texts=texts)))
        assert said.startswith("No head of 2 shifts to the model's own output")
        assert "shifts most" not in said
