"""Which head leads between two groups, and how far above both nulls."""

from types import SimpleNamespace

import numpy as np
import pytest

import attnscope
from attnscope.comparison import groups
from attnscope.comparison.groups import describe_group_pairs, explain_no_interval, group_pairs
from tests.results.page.planted_result import planted, with_groups


@pytest.fixture(scope="module")
def result():
    found = with_groups(planted(layers=2, heads=3, texts=8).result)
    found["group_weight"][:, 1, 2, 0, 1] = 0.9
    found["position_group_weight"][:, 1, 2, 0, 1] = 0.7
    found["equal_group_weight"][:, 1, 0, 1] = np.linspace(0.0, 0.2, 8)
    found["position_group_weight"][:, :, :, 1, 0] = 1.0
    return found


def of(result, query, key):
    return next(pair for pair in group_pairs(result) if (pair["query"], pair["key"]) == (query, key))


def test_a_head_is_held_against_the_larger_null(result):
    found = of(result, "user", "<b>")
    if (found["layer"], found["head"]) == (1, 2):
        assert (found["weight"], found["positions"]) == pytest.approx((0.9, 0.7))
    alone = result.isel(layer=[1], head=[2])
    found = of(alone, "user", "<b>")
    assert found["above"] == pytest.approx(0.2)
    assert (found["low"], found["high"]) == pytest.approx((0.2, 0.2))
    assert (found["layer"], found["head"], found["windows"], found["over"]) == (1, 2, 8, "8 documents")


def test_pairs_come_with_the_furthest_first_and_without_groups_that_are_not_there(result):
    pairs = group_pairs(result)
    assert len(pairs) == 4
    assert [pair["above"] for pair in pairs] == sorted((pair["above"] for pair in pairs), reverse=True)
    assert of(result, "<b>", "user")["above"] < 0


@pytest.mark.parametrize(
    ("sources", "over"),
    [(list("abcdefgh"), "8 pools"), (list("aabcdefg"), "7 pools of different documents"), (["a"] * 8, "8 pools")],
)
def test_of_a_scan_in_pools_intervals_are_over_pools(result, sources, over):
    pools = result.assign(window_count=("window", [4] * 8)).assign_coords(source=("window", sources))
    assert {pair["over"] for pair in group_pairs(pools)} == {over}


def test_no_head_is_far_above_its_places_for_groups_at_random():
    """The null of the table: whatever heads do, groups that know nothing of the tokens get what their places get."""

    def at_random(tokens):
        drawn = np.random.default_rng(list(map(len, tokens))).choice(3, len(tokens), p=[0.1, 0.3, 0.6])
        return ["abc"[number] for number in drawn]

    found = attnscope.scan(groups=at_random, statistics="entropy")
    assert max(pair["above"] for pair in group_pairs(found)) < 0.02
    away = (found.group_weight - found.position_group_weight).mean("window")
    assert float(abs(away).max()) < 0.02
    sized = (found.group_weight - found.equal_group_weight).mean("window")
    assert float(abs(sized).max()) < 0.1


def test_what_chance_puts_above_both_nulls_is_not_counted(monkeypatch):
    """Groups at random over noise: some head is above in every pair, and beyond chance in few tables."""
    unknown = SimpleNamespace(low=np.nan, high=np.nan)
    monkeypatch.setattr(groups, "by_document", lambda *_: unknown)  # intervals, which tell nothing here
    found = with_groups(planted(layers=2, heads=3, texts=20).result)
    generator = np.random.default_rng(0)
    tables = []
    for _ in range(30):
        for name in ("group_weight", "position_group_weight", "equal_group_weight"):
            found[name] = found[name].copy(data=np.full(found[name].shape, 0.3))
        found["group_weight"] += generator.normal(scale=0.01, size=found["group_weight"].shape)
        tables.append(group_pairs(found))
    assert np.mean([pair["above"] > 0 for pairs in tables for pair in pairs]) > 0.95
    assert 0 <= np.mean([any(pair["beyond_chance"] for pair in pairs) for pairs in tables]) <= 0.15
    found["group_weight"][:, 1, 2, 0, 1] += 0.02
    told = [pair for pair in group_pairs(found) if pair["beyond_chance"]]
    assert [(pair["layer"], pair["head"], pair["query"], pair["key"]) for pair in told] == [(1, 2, "user", "<b>")]
    assert describe_group_pairs(group_pairs(found)).startswith("In 1 of 9 pairs of groups, a head is above both nulls")


@pytest.mark.parametrize(("above", "beyond"), [(0.008, False), (0.012, True)])
def test_a_negligible_effect_is_not_called_beyond_chance(above, beyond):
    """What rounds of fitting leave has the same sign in every document, however small it is."""
    found = with_groups(planted(layers=1, heads=1, texts=20).result)
    for name in ("group_weight", "position_group_weight", "equal_group_weight"):
        found[name] = found[name].copy(data=np.full(found[name].shape, 0.3))
    found["group_weight"] += above + 1e-6 * np.arange(20).reshape(-1, 1, 1, 1, 1)
    assert {pair["beyond_chance"] for pair in group_pairs(found)} == {beyond}


def test_chance_of_too_few_windows_is_unknown():
    found = with_groups(planted(layers=2, heads=3, texts=19).result)
    assert {pair["beyond_chance"] for pair in group_pairs(found)} == {None}
    assert describe_group_pairs(group_pairs(found)).endswith("tests need 20 or more documents")


def test_windows_without_a_group_do_not_count(result):
    some = result.copy(deep=True)
    for name in ("group_weight", "position_group_weight", "equal_group_weight"):
        some[name][2:, ..., 0, :] = np.nan
    found = of(some.isel(layer=[1], head=[2]), "user", "<b>")
    assert (found["windows"], found["over"]) == (2, "2 windows")
    assert np.isnan(found["low"])  # too few for an interval
    assert found["weight"] == pytest.approx(0.9)
    assert explain_no_interval([found]) == "Pairs without an interval occur in fewer than 6 windows. "
