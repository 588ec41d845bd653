"""Changes between scans: how often one is reported that is none, how often one is found, and its size."""

from types import SimpleNamespace

import numpy as np
import pytest

import attnscope
from attnscope.statistics import effects
from attnscope.statistics.tests import mean_chances, skewed_chances

# --- how often a change is called one that is none, and how often one is found: on two halves of a real corpus ---


NAMES = ["entropy", "first_token", "max_weight", "outside", "mean_offset", "gini_simpson"]
SPLITS = 60


@pytest.fixture(scope="module")
def measured(data):
    """Statistics of real paragraphs, (text, cell); each paragraph is a document."""
    texts = [
        line for line in (data / "wikitext-2" / "valid.txt").read_text(encoding="utf-8").splitlines() if len(line) > 300
    ][:100]
    found = attnscope.scan(texts=texts, window=32, limit=100, statistics=NAMES)
    return np.concatenate([found[name].values.reshape(found.sizes["window"], -1) for name in NAMES], 1)


@pytest.fixture
def no_intervals(monkeypatch):
    """What changed does not depend on the intervals, which take most of the time."""

    def means(changes, *_, **__):
        return SimpleNamespace(**dict.fromkeys(("mean", "low", "high"), changes.mean(0)))

    monkeypatch.setattr(effects, "by_document", means)


def halves(measured, seed, shift=0.0):
    """Changes from one half of the documents to the other, in pairs drawn at random: there is none but `shift`."""
    order = np.random.default_rng(seed).permutation(len(measured))
    half = len(order) // 2
    changes = measured[order[half : 2 * half]] - measured[order[:half]]
    changes[:, :4] += shift
    return effects.changes_by_document(changes, range(half), seed=seed)


def test_where_nothing_changed_something_is_found_in_five_of_a_hundred_or_fewer(measured, no_intervals):
    found = [bool(halves(measured, seed).changed.any()) for seed in range(SPLITS)]
    assert np.mean(found) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / SPLITS)


def test_false_ones_are_few_among_those_found_where_some_changed(measured, no_intervals):
    shares = []
    for seed in range(SPLITS):
        changed = halves(measured, seed, shift=0.5).changed
        assert changed[:4].all()
        shares.append(changed[4:].sum() / changed.sum())
    assert np.mean(shares) <= 0.05 + 2 * np.std(shares) / np.sqrt(SPLITS)


def test_a_shift_of_two_hundredths_is_found_in_nine_of_ten_paired_comparisons(measured, no_intervals):
    """Two models on the same windows: each text is its own control."""
    generator = np.random.default_rng(0)
    shares = NAMES.index("max_weight") * 12
    found = []
    for seed in range(30):
        changes = generator.normal(0, 0.05, (160, measured.shape[1]))
        changes[:, shares : shares + 4] += 0.02
        found.append(effects.changes_by_document(changes, range(len(changes)), seed=seed).changed[shares : shares + 4])
    assert np.mean(found) >= 0.9


def test_windows_of_one_document_count_as_one():
    """The same ten changes, each fifty times over, are no more sure than once."""
    once = np.random.default_rng(3).normal(0.1, 1.0, (10, 20))
    many = effects.changes_by_document(np.repeat(once, 50, 0), np.repeat(np.arange(10), 50).tolist())
    np.testing.assert_allclose(many.p, effects.changes_by_document(once, range(10)).p, rtol=1e-9)
    assert not many.changed.any()


# --- `diff` over few documents: windows of one document are alike, and say nothing of other documents ---


def test_documents_of_unlike_numbers_of_windows_give_no_more_false_changes_than_is_promised():
    """Ten documents of 1 to 10 windows, nothing changed: with a degree of freedom a document it is 0.13."""
    sizes = np.arange(1, 11)
    documents = np.repeat(np.arange(10), sizes)
    generator = np.random.default_rng(0)
    values = generator.normal(size=(10, 20000))[documents] + generator.normal(size=(55, 20000))
    p = mean_chances(values, documents.tolist())
    skewed = mean_chances((generator.exponential(size=(10, 20000)) - 1)[documents], documents.tolist())
    for one in (p, skewed):
        assert np.mean(one < 0.05) < 0.055
        assert np.mean(one < 0.05 / 40) * 40 < 0.06


def test_degrees_of_freedom_are_those_of_the_quadratic_form():
    """Bell and McCaffrey (2002), by the whole matrix."""
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 30])
    weight, count = sizes / sizes.sum(), len(sizes)
    centred = np.eye(count) - np.ones((count, 1)) * weight
    form = centred.T @ np.diag(weight**2 / (1 - 2 * weight + weight @ weight)) @ centred
    means = np.random.default_rng(0).normal(size=(count, 1))
    t = (weight @ means)[0] / np.sqrt(means[:, 0] @ form @ means[:, 0])
    documents = np.repeat(np.arange(count), sizes)
    expected = skewed_chances(np.array([t]), int(np.trace(form) ** 2 / (form**2).sum()) + 1)[0]
    assert mean_chances(means[documents], documents.tolist())[0] == pytest.approx(expected)


def test_what_is_exactly_equal_has_not_changed():
    found = effects.changes_by_document(np.zeros((8, 3)), range(8))
    assert found.p.tolist() == [1.0, 1.0, 1.0]


def test_skewed_documents_without_a_change_seldom_have_a_small_p(no_intervals):
    """Without the correction for skewness, 0.02 of 20 documents, and 0.88 of trials with 432 columns of 6."""
    skewed = np.random.default_rng(0).exponential(1.0, (20, 1000)) - 1
    assert np.mean(effects.changes_by_document(skewed, range(20)).p < 0.004) < 0.01
    few = np.random.default_rng(1).exponential(1.0, (60, 6, 432)) - 1
    assert sum(effects.changes_by_document(changes, range(6)).changed.any() for changes in few) <= 8


def test_a_change_alike_in_all_documents_is_found():
    assert effects.changes_by_document(np.ones((20, 3)), range(20)).changed.all()
