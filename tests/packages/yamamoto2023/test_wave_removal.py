"""Waves taken out of a table: exact where they are all that counts, far better than chance where layers lie between."""

import numpy as np
import pytest
import xarray as xr

from attnscope import AttnscopeError
from attnscope.explanation.report import report
from attnscope.explanation.study import study as mechanism_study
from attnscope_yamamoto2023.positions.wave_removal import responsible_band, score_of_band, wave_removal
from tests.explanation.planted_models import mixed_bert, random_texts
from tests.explanation.planted_roberta import SMALL, planted_roberta, random_ids
from tests.tiny_models import tiny

HEADS = {(1, 1): (-1, 4.0), (2, 3): (1, 4.0), (2, 4): (-2, 2.0), (3, 2): (2, 4.0)}
TINY_TEXTS = np.random.default_rng(0).integers(5, 60, (6, 24)).tolist()


def test_the_score_of_all_frequencies_is_the_circular_trace():
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 12, 3))
    cross = (np.fft.rfft(query, axis=0).conj() * np.fft.rfft(key, axis=0)).sum(1)
    mean = [np.mean([query[i] @ key[(i + t) % 12] for i in range(12)]) for t in range(-11, 12)]
    np.testing.assert_allclose(score_of_band(cross, 12, 0, 6), mean, atol=1e-12)
    parts = [score_of_band(cross, 12, f, f) for f in range(7)]
    np.testing.assert_allclose(np.sum(parts, 0), mean, atol=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_the_band_is_the_narrowest_that_holds_half(seed):
    amplitude = np.random.default_rng(seed).exponential(size=(3, 20))
    share = (amplitude[:, 3:] / amplitude[:, 3:].sum(1, keepdims=True)).mean(0)
    first, last = responsible_band(amplitude)
    assert share[first - 3 : last - 2].sum() >= 0.5
    width = last - first
    assert all(share[start : start + width].sum() < 0.5 for start in range(len(share)))


def test_without_waves_there_is_no_band():
    with pytest.raises(AttnscopeError, match="0 from 3 cycles"):
        responsible_band(np.array([[5.0, 2.0, 1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("frequencies", [None, (4, 4)])
def test_where_the_tables_waves_are_all_that_counts_the_fit_is_exact(frequencies):
    study = mechanism_study(mixed_bert((-1, 2, 0, -3), 2.0), random_texts(8))
    removed = wave_removal(study, frequencies=frequencies, draws=20)
    assert float(removed.moved) > 0.01
    assert float(removed.fit) > 0.999


def test_behind_other_layers_nine_tenths_of_the_change_is_predicted_and_not_by_other_heads():
    model = planted_roberta(SMALL, heads=HEADS)
    removed = wave_removal(model, random_ids(SMALL, 6), draws=100)
    assert set(range(removed.attrs["frequencies"][0], removed.attrs["frequencies"][1] + 1)) <= set(range(7, 16))
    assert float(removed.fit) >= 0.9
    assert float(removed.fit_low) <= float(removed.fit) <= float(removed.fit_high)
    assert float(removed.fit_chance) <= 0.01
    assert float(removed.fit_of_others) < 0


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_random_weights_give_no_cause(family):
    study = mechanism_study(tiny(family), TINY_TEXTS)
    removed = wave_removal(study, draws=50)
    assert float(removed.fit) < 0.5


def test_the_model_is_as_it_was_and_bad_frequencies_are_rejected():
    model = tiny("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    study = mechanism_study(model, TINY_TEXTS)
    wave_removal(study, draws=5)
    assert all((value == before[name]).all() for name, value in model.state_dict().items())
    with pytest.raises(AttnscopeError, match="between 0 and 12"):
        wave_removal(study, frequencies=(3, 13))


def test_the_sentence_says_what_is_known():
    def said(*, peak=None, prefers=None, **numbers):
        usual = {"fit": 0.9, "fit_low": 0.8, "fit_high": 0.95, "fit_of_others": -1.0, "fit_chance": 0.0, "moved": 0.1}
        node = xr.Dataset(usual | numbers, attrs={"frequencies": [3, 9], "length": 64, "texts": 8})
        nodes = {"wave_removal": node}
        if peak is not None:  # cycles in a table twice as long as the windows
            mean = xr.DataArray(np.arange(65) == peak, dims="frequency", coords={"frequency": np.arange(65)})
            spectrum = xr.Dataset({"is_peak": mean.expand_dims(table=["positions"])}, attrs={"positions": 128})
            nodes["position_spectrum"] = spectrum
        if prefers is not None:
            grid = xr.DataArray([[prefers]], {"layer": [0], "head": [0]}, ("layer", "head"))
            nodes["verdict"] = xr.Dataset(
                {"prefers": grid, "positional": grid, "comparable": grid, "agree": grid, "peak_weight": 0.5 * grid}
            )
        return " ".join(text for text in report(xr.DataTree.from_dict(nodes)).finding.sentences if "waves" in text)

    assert "changes the heads as predicted" in said()
    assert "not as predicted" in said(fit_low=-0.1)
    assert "partly as predicted" in said(fit=0.2, fit_low=0.1)
    assert "not as predicted" in said(fit_chance=0.3)
    assert "hardly changes" in said(moved=0.001)
    # where the table has no peak among these waves, or no head an offset, there is nothing to be a cause
    assert "hardly changes" in said(moved=0.001, peak=18, prefers=True)
    assert said(moved=0.001, peak=20) == ""
    assert "changes the heads as predicted" in said(peak=20, prefers=True)
    assert said(prefers=False) == said(moved=0.001, peak=18, prefers=False) == ""
