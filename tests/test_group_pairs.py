"""Which head leads between two groups, and how far above both nulls."""

import numpy as np
import pytest

import attnscope
from attnscope._group_pairs import group_pairs
from tests.report.planted_result import planted, with_groups


@pytest.fixture(scope="module")
def result():
    found = with_groups(planted(layers=2, heads=3, texts=8).result)
    found["group_weight"][:, 1, 2, 0, 1] = 0.9
    found["place_group_weight"][:, 1, 2, 0, 1] = 0.7
    found["equal_group_weight"][:, 1, 0, 1] = np.linspace(0.0, 0.2, 8)
    found["place_group_weight"][:, :, :, 1, 0] = 1.0
    return found


def of(result, query, key):
    return next(pair for pair in group_pairs(result) if (pair.query, pair.key) == (query, key))


def test_a_head_is_held_against_the_larger_null(result):
    found = of(result, "user", "<b>")
    if (found.layer, found.head) == (1, 2):
        assert (found.weight, found.places) == pytest.approx((0.9, 0.7))
    alone = result.isel(layer=[1], head=[2])
    found = of(alone, "user", "<b>")
    assert found.above == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2, 0.2))
    assert (found.layer, found.head, found.windows, found.over) == (1, 2, 8, "8 documents")


def test_pairs_come_with_the_furthest_first_and_without_groups_that_are_not_there(result):
    pairs = group_pairs(result)
    assert len(pairs) == 4
    assert [pair.above for pair in pairs] == sorted((pair.above for pair in pairs), reverse=True)
    assert of(result, "<b>", "user").above < 0


def test_windows_without_a_group_do_not_count(result):
    some = result.copy(deep=True)
    for name in ("group_weight", "place_group_weight", "equal_group_weight"):
        some[name][2:, ..., 0, :] = np.nan
    found = of(some.isel(layer=[1], head=[2]), "user", "<b>")
    assert (found.windows, found.over) == (2, "2 windows")
    assert np.isnan(found.low)  # too few for an interval
    assert found.as_dict()["low"] is None
    assert found.weight == pytest.approx(0.9)


def test_no_head_is_far_above_its_places_for_groups_at_random():
    """The null of the table: whatever heads do, groups that know nothing of the tokens get what their places get."""

    def at_random(tokens):
        drawn = np.random.default_rng(list(map(len, tokens))).choice(3, len(tokens), p=[0.1, 0.3, 0.6])
        return ["abc"[number] for number in drawn]

    found = attnscope.scan(groups=at_random, statistics="entropy")
    assert max(pair.above for pair in group_pairs(found)) < 0.02
    away = (found.group_weight - found.place_group_weight).mean("text")
    assert float(abs(away).max()) < 0.02
    sized = (found.group_weight - found.equal_group_weight).mean("text")
    assert float(abs(sized).max()) < 0.1
