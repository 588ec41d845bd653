"""`explain` end to end: planted waves, real models, and the same analyses by arrays and by model."""

import json

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, TEXT
from attnscope.capture.load import load_model
from attnscope.explanation.analyses.position_content import position_content
from attnscope.explanation.analyses.shift import cross_correlation
from attnscope.explanation.analyses.shift import cross_spectrum as mechanism_cross_spectrum
from attnscope.explanation.arrays.correlation import cross_spectrum
from attnscope.explanation.report import report
from attnscope.explanation.study import Study
from attnscope.explanation.study import study as mechanism_study
from tests.planted_models import LENGTH, wave_bert
from tests.tiny_models import tiny

SHIFTS = (-1, 1, -3, 2)


@pytest.fixture(scope="module")
def planted(tokenizer):
    return attnscope.explain(
        wave_bert(SHIFTS), [TEXT], tokenizer=tokenizer, window=LENGTH, limit=4, frequencies=(1, 15)
    )


def test_weights_and_scores_find_every_planted_shift(planted):
    found = planted["verdict"].to_dataset().sel(layer=0)
    assert found.offset_of_weights.values.tolist() == list(SHIFTS)
    np.testing.assert_allclose(found.offset_of_spectrum.values, SHIFTS, atol=0.05)
    np.testing.assert_allclose(np.round(found.offset_of_correlation.values), SHIFTS)
    assert found.prefers.values.all()
    assert found.positional.values.all()
    assert found.agree.values.all()


def test_every_analysis_is_there_or_says_why_not(planted):
    skipped = json.loads(planted.attrs["skipped"])
    assert set(planted.children) | set(skipped) == {
        "forms",
        "cross_spectrum",
        "cross_correlation",
        "position_content",
        "scheme_kernel",
        "rotation_effect",
        "bias_effect",
        "verdict",
        "repeated_tokens",
    }
    assert "no RoPE" in skipped["rotation_effect"]


def test_the_bundled_model_shows_the_mechanism():
    """A previous- and a next-token head whose shift the cross-spectrum finds, and a peak twice its surroundings."""
    bundled = attnscope.explain(limit=8, window=64)
    heads = bundled["verdict"].to_dataset().stack(place=("layer", "head"))
    sharp = heads.isel(place=np.flatnonzero(heads.peak_weight.values >= 0.5))
    assert {-1.0, 1.0} <= set(sharp.offset_of_weights.values.tolist())
    np.testing.assert_allclose(sharp.offset_of_spectrum, sharp.offset_of_weights, atol=0.5)
    assert sharp.positional.values.all()
    assert sharp.agree.values.all()
    above = heads.isel(place=np.flatnonzero(heads.layer.values > 0))
    assert bool(above.prefers.any())  # three heads look at the next token, and not by its position alone
    assert not above.positional.any()
    sharpest = sharp.isel(place=np.flatnonzero(sharp.peak_weight.values >= 0.9))  # these read the table itself
    assert float(sharpest.position_share.min()) > 0.9


def test_a_rope_model_gets_what_is_defined(models):
    found = attnscope.explain(models / "stories260K-llama", [TEXT], window=64, limit=4)
    verdict = found["verdict"].to_dataset()
    assert np.isnan(verdict.offset_of_spectrum).all()
    assert np.isnan(verdict.offset_of_correlation).all()
    assert bool((verdict.highest_offset == 0).all())
    told = report(found)
    assert not any("queries and keys" in sentence for sentence in told.finding.sentences)
    assert any(note.endswith("peaks are searched only there.") for note in told.notes)  # scores have no peaks
    assert {"forms", "position_content", "scheme_kernel", "rotation_effect"} <= set(found.children)
    reasons = json.loads(found.attrs["skipped"])
    assert "verdict" not in reasons  # it is in scheme_kernel
    assert "RoPE rotates" in reasons["cross_spectrum"]
    note = next(note for note in told.notes if note.startswith("Skipped: "))
    assert [note.count(reason) for reason in set(reasons.values())] == [1, 1]
    said = next(
        text for text in told.finding.sentences if text.startswith("The rotation alone predicts the offset of ")
    )
    assert " within 1 token (" in said
    assert set(found["forms"].form.values) == {"rope"}


def test_arrays_and_models_give_the_same(tokenizer):
    loaded = load_model(wave_bert(SHIFTS), tokenizer=tokenizer, device="cpu")
    study = mechanism_study(loaded, [TEXT], window=LENGTH, limit=3)
    layer = study.evidence.layers[0]
    query, key = layer.matrices(0, affine=False)
    by_arrays = cross_spectrum(layer.moments.position_mean, query, key)
    by_model = mechanism_cross_spectrum(study)
    np.testing.assert_allclose(by_model.band_offset.sel(layer=0, head=0), by_arrays.band_offset, atol=1e-6)
    trace = cross_correlation(study).trace_peak_offset.sel(range="near", layer=0)
    assert trace.values.tolist() == list(SHIFTS)
    assert set(position_content(loaded, [TEXT], window=LENGTH, limit=2).term.values) == {"PP", "PC", "CP", "CC"}


class TestBadInput:
    @pytest.mark.parametrize("beside", [{"texts": [TEXT]}, {"window": 32}, {"limit": 2}, {"tokenizer": MODEL}])
    def test_what_a_study_has_already_is_rejected_beside_it(self, beside):
        """It would otherwise be the study's texts that are measured, without a word."""
        study = mechanism_study(MODEL, limit=2)
        with pytest.raises(AttnscopeError, match=f"a study already has its texts: leave {next(iter(beside))} out"):
            mechanism_cross_spectrum(study, **beside)

    def test_a_limit_takes_the_first_texts_of_a_study(self):
        study = mechanism_study(MODEL, limit=12)
        options = {"layers": [0], "draws": 2}
        few = position_content(study, limit=3, **options)
        same = position_content(MODEL, limit=3, **options)
        xr.testing.assert_allclose(few.trace, same.trace)
        assert position_content(study, **options).attrs["texts"] == 8

    def test_scores_that_are_not_bilinear(self):
        study = Study(tiny("qwen3"), [[5, 6, 7, 8], [8, 7, 6, 5]])
        with pytest.raises(AttnscopeError, match=r"cross_spectrum is not defined for .* Choose another"):
            mechanism_cross_spectrum(study)

    def test_one_window_only(self):
        with pytest.raises(AttnscopeError, match=r"found 0 full windows of 128 tokens .*expected 2 or more"):
            attnscope.explain(texts=["The tide comes in."])
        with pytest.raises(AttnscopeError, match="found 1 window; expected 2 or more"):
            assert Study(tiny("bert"), [[5, 6, 7]]).evidence

    def test_texts_without_two_full_windows_get_shorter_ones(self):
        """The bundled model reads 128 tokens; a text of about 50 has one full window of 32."""
        sentence = "The tide comes in twice a day, and the boats rise with it."
        tree = attnscope.explain(texts=[f"{sentence} {sentence} {number}" for number in range(8)])
        settings = json.loads(tree.attrs["signature"])["settings"]
        assert (settings["window"], settings["windows"]) == (32, 8)
        with pytest.raises(AttnscopeError, match="found 0 full windows of 128 tokens"):
            attnscope.explain(texts=[sentence] * 8, window=128)

    def test_a_window_longer_than_the_table(self):
        with pytest.raises(AttnscopeError, match="position table has 128 rows"):
            attnscope.explain(window=1000)
