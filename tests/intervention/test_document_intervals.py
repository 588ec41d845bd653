"""Intervals and tests over documents: how often they are wrong, and what they find."""

import numpy as np
import pytest
import torch
from scipy import stats

import attnscope
from attnscope.intervention.effects import order_agreement
from attnscope.read.image_text import pictured_of
from attnscope.read.sounds import sounds_of
from attnscope.read.videos import videos_of
from attnscope.results.reports import report_of
from attnscope.statistics.effects import by_document
from attnscope.statistics.intervals import interval
from attnscope.statistics.tests import above_zero, differs_from_zero, skewed_chances
from attnscope.statistics.units import units_in, units_of
from tests.image_models import vision_model

# --- intervals over documents: how often they are wrong ---


@pytest.mark.parametrize("documents", [8, 20])
def test_of_heads_without_effect_few_families_show_one(documents):
    generator = np.random.default_rng(0)
    rounds = 50
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


# --- means told from 0 by flipping signs: as many false ones as are said, however the means come ---


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_means_in_blocks_are_as_significant_as_together(rng):
    parts = rng.normal(np.linspace(-4, 4, 9), 1.0, (12, 9))
    (together,) = above_zero([parts], 12)
    np.testing.assert_array_equal(np.concatenate(above_zero(np.split(parts, 3, axis=1), 12)), together)
    assert 0 < together.sum() < together.size


def test_few_families_without_effect_have_a_significant_mean(rng):
    families = rng.normal(0.0, 1.0, (400, 10, 6))
    for told in (lambda values: above_zero([values], 10)[0], lambda values: differs_from_zero(values, rng)):
        found = sum(told(family).any() for family in families)
        assert found <= 0.05 * 400 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_a_mean_below_0_differs_from_0_but_is_not_above():
    parts = np.full((8, 1), -1.0)
    assert not above_zero([parts], 8)[0].any()
    assert differs_from_zero(parts, np.random.default_rng(0)).all()


def test_means_of_zeros_and_of_nan_are_not_significant():
    parts = np.stack([np.ones(8), np.zeros(8), np.r_[np.nan, np.ones(7)]], axis=1)
    assert above_zero([parts], 8)[0].tolist() == [True, False, False]
    assert differs_from_zero(parts, np.random.default_rng(0)).tolist() == [True, False, False]


def test_skewed_families_without_effect_have_few_significant_means(rng):
    """Without the correction for skewness, 0.25 of these."""
    families = rng.exponential(1.0, (100, 20, 12)) - 1
    assert np.mean([differs_from_zero(family, rng).any() for family in families]) < 0.12
    assert np.mean([above_zero([-family], 20)[0].any() for family in families]) < 0.12


@pytest.mark.parametrize("documents", [6, 12])
def test_many_skewed_heads_in_few_documents_are_as_rarely_significant_as_said(rng, documents):
    """By random signs alone, 0.5 to 0.7 of these families of 144 heads have a significant one."""
    families = rng.exponential(1.0, (60, documents, 144)) - 1
    assert sum(differs_from_zero(family, rng).any() for family in families) <= 8


def test_t_of_exponential_units_has_these_tails(rng):
    for units, t in ((6, 5.0), (12, 4.0)):
        drawn = rng.exponential(size=(400_000, units)) - 1
        sizes = abs(drawn.mean(1)) / drawn.std(1, ddof=1) * np.sqrt(units)
        assert skewed_chances(np.array([t, -t]), units) == pytest.approx((sizes > t).mean(), rel=0.1)
    assert skewed_chances(np.array([2.0]), 120) == pytest.approx(2 * stats.t.sf(2.0, 119))


# --- texts that are equal, and windows of few documents ---


def test_equal_texts_are_one_document():
    texts = ["The tide is out.", "The boats rest."] * 4
    found = attnscope.scan(texts=texts)
    units, called = units_in(found)
    assert len(set(units)) == 2
    assert called == "windows"
    assert not by_document(np.ones((8, 3)), units).tested.any()
    assert report_of("scan", found).notes[0] == (
        "6 of 8 texts repeat an earlier one: intervals and tests count them once."
    )


def test_equal_token_ids_are_one_document():
    found = attnscope.scan(texts=[[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 9]])
    assert found.source.values.tolist() == ["text 1", "text 2 (repeats text 1)", "text 3"]


def test_equal_images_are_one_document(rng):
    pixels = torch.tensor(rng.normal(size=(2, 3, 32, 32)), dtype=torch.float32)
    found = attnscope.scan(vision_model("vit")[0], pixels.repeat(2, 1, 1, 1))
    assert found.source.values.tolist() == [
        "image 1", "image 2", "image 3 (repeats image 1)", "image 4 (repeats image 2)"
    ]  # fmt: skip
    assert report_of("scan", found).notes[0] == (
        "2 of 4 images repeat an earlier one: intervals and tests count them once."
    )


def test_equal_sounds_videos_and_texts_with_images_are_one_document(rng):
    samples = rng.normal(size=100) / 9
    sounds = [{"array": each, "sampling_rate": 16_000} for each in (samples, samples, samples / 2)]
    frames = rng.integers(0, 256, (2, 3, 8, 8, 3), dtype=np.uint8)
    videos = [{"video": frames[at]} for at in (0, 0, 1)]
    texts = [{"text": "It is <image>", "image": frames[at, 0]} for at in (0, 0, 1)]
    for read, given, name in ((sounds_of, sounds, "sound"), (videos_of, videos, "video"), (pictured_of, texts, "text")):
        assert [one.name for one in read(given)] == [f"{name} 1", f"{name} 2 (repeats {name} 1)", f"{name} 3"]


@pytest.mark.parametrize("overlap", [1, 4])
def test_intervals_of_one_documents_windows_hold_where_neighbours_are_alike(rng, overlap):
    """Drawn one by one, these windows have coverage 0.84 and 0.7."""
    values = rng.normal(size=(100 + overlap, 400))
    for window in range(1, len(values)):
        values[window] = 0.3 * values[window - 1] + values[window]
    values = np.stack([values[first : first + overlap].sum(0) for first in range(100)])
    low, high = interval(values, units_of(["one"] * 100, overlap)[0])
    assert np.mean((low <= 0) & (high >= 0)) > 0.89


# --- intervals that draw whole documents ---


def test_the_interval_of_documents_is_wider_than_that_of_texts():
    """Ten documents of twenty texts that are all alike: 200 texts hold no more than 10 do."""
    values = np.repeat(np.random.default_rng(0).normal(size=10), 20)
    names = np.repeat([f"document {i}" for i in range(10)], 20).tolist()
    intervals = (interval(values[:, None], units) for units in (names, [f"text {i}" for i in range(200)]))
    widths = [float((high - low)[0]) for low, high in intervals]
    assert 3.5 < widths[0] / widths[1] < 5.5  # the root of 20 is 4.5
    expected = 2 * 2.262 * values[::20].std(ddof=1) / np.sqrt(10)  # Student's t of 9 degrees of freedom
    assert abs(widths[0] / expected - 1) < 0.1


def test_a_document_without_any_value_is_not_counted_as_one():
    values = np.arange(8.0)
    values[:3] = np.nan
    assert np.isnan(interval(values[:, None], list("abcdefgh"))).all()


# --- how well an estimate ranks heads: the right value, and a chance that is right where it ranks nothing ---


def test_an_order_of_noise_is_rarely_called_sure():
    generator = np.random.default_rng(0)
    pairs = generator.standard_t(3, size=(400, 2, 8, 12))
    chances = [order_agreement(*pair, seed=0)[1] for pair in pairs]
    assert 0.02 < np.mean(np.array(chances) < 0.05) < 0.08


def test_it_is_of_means_over_texts():
    generator = np.random.default_rng(1)
    truth = generator.normal(size=12)
    first, other = (truth + generator.normal(size=(9, 12)) for _ in range(2))
    own, chance = order_agreement(first, other, seed=0)
    assert own == pytest.approx(stats.spearmanr(first.mean(0), other.mean(0)).statistic)
    assert chance < 0.01
