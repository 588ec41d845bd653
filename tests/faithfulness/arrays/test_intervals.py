"""Intervals over documents: how often they are wrong."""

import numpy as np
import pytest

from attnscope.measure.documents import by_document, units_of


@pytest.mark.parametrize("documents", [8, 20])
def test_of_heads_without_effect_few_families_show_one(documents):
    generator = np.random.default_rng(0)
    rounds = 100
    wrong = 0
    for _ in range(rounds):
        # windows of a document are alike, so that taking them as independent would be wrong far more often
        own = generator.normal(size=(documents, 1, 12)) + 0.3 * generator.normal(size=(documents, 4, 12))
        names = np.repeat(np.arange(documents), 4).tolist()
        wrong += by_document(own.reshape(-1, 12), names, draws=2).shown.any()
    assert wrong / rounds <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / rounds)


def test_an_effect_is_found_and_covered():
    generator = np.random.default_rng(0)
    covered = shown = 0
    for _ in range(200):
        found = by_document(1.0 + generator.normal(size=(30, 1)), range(30), draws=300)
        covered += bool(found.low[0] <= 1 <= found.high[0])
        shown += bool(found.shown[0])
    assert covered >= 180
    assert shown >= 195


def test_few_texts_have_no_interval():
    found = by_document(np.ones((5, 2)), range(5))
    assert np.isnan(found.low).all()
    assert not found.shown.any()
    assert units_of(["one"] * 40)[1] == "windows"


def test_heads_that_are_not_there_stay_unknown():
    values = np.ones((6, 2)) + np.random.default_rng(0).normal(size=(6, 2)) / 100
    values[:, 1] = np.nan
    found = by_document(values, range(6))
    assert np.isnan(found.mean[1])
    assert found.shown.tolist() == [True, False]
