"""The analyses of position embeddings: planted waves, real models, several tables, and what names an analysis."""

import json
import shutil

import numpy as np
import pytest
import xarray as xr

import attnscope
from attnscope import AttnscopeError, open_run
from attnscope.bundled import MODEL, TEXT
from attnscope.capture.load import load_model
from attnscope.catalogue import IN_PACKAGES
from attnscope.explanation import catalogue
from attnscope.explanation.catalogue import ANALYSES, known_analyses, requested_analyses
from attnscope.explanation.report import report
from attnscope.explanation.study import study as mechanism_study
from attnscope.store.runs import RunFolder
from attnscope_yamamoto2023.analyses import ANALYSES as OF_PACKAGE
from attnscope_yamamoto2023.analyses import OF_POSITIONS
from attnscope_yamamoto2023.arrays.spectrum import query_key_waves
from attnscope_yamamoto2023.positions import waves
from attnscope_yamamoto2023.positions.rotation import phase_map
from attnscope_yamamoto2023.positions.table import position_cca, position_pca, position_spectrum
from tests.cli.command import attnscope as command
from tests.planted_models import LENGTH, wave_bert
from tests.results.page.planted_explanation import explain_page_of, explanation, only

SHIFTS = (-1, 1, -3, 2)


@pytest.fixture(scope="module")
def planted(tokenizer):
    reading = {"tokenizer": tokenizer, "window": LENGTH, "limit": 4}
    return attnscope.explain(wave_bert(SHIFTS), [TEXT], frequencies=(1, 15), analyses=OF_POSITIONS, **reading)


def test_planted_shifts_are_lost_under_every_control(planted):
    controls = planted["controls"].to_dataset().sel(layer=0)
    kept, drawn = controls.sel(control="head"), controls.drop_sel(control=["head", "other key"])
    assert controls["head"].values.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(kept.coherence_at_offset, 1, atol=0.01)
    assert float(np.abs(drawn.coherence_at_offset).max()) < 0.5
    assert not np.isclose(drawn.band_offset.T, kept.band_offset, atol=0.2).any()
    # the heads' frequencies are disjoint, but for one of four that the last shares with the first
    strange = controls.cross_amplitude.sel(control="other key") / kept.cross_amplitude
    np.testing.assert_allclose(strange, [0, 0, 0, 0.25], atol=1e-4)


def test_every_analysis_is_there(planted):
    requested = {one.name for one in OF_POSITIONS} - {"position_models"}
    assert requested <= set(planted.children)
    assert not requested & json.loads(planted.attrs["skipped"]).keys()


def test_the_bundled_model_has_waves_and_turns_by_the_offsets_of_its_heads():
    chosen = ["position_spectrum", "phase_map"]
    bundled = attnscope.explain(limit=8, window=64, analyses=chosen)
    spectrum = bundled["position_spectrum"].to_dataset().sel(table="positions")
    assert float(spectrum.local_ratio.sel(frequency=slice(3, None)).max()) >= 2
    words = bundled["position_spectrum"].to_dataset().sel(table="words")
    assert not words.is_peak.values.astype(bool).any()
    # the rotation from queries to keys turns by the same offsets
    found = -bundled["phase_map"].to_dataset().line_shift.sel(layer=0)
    weights = bundled["verdict"].to_dataset().offset_of_weights.sel(layer=0)
    np.testing.assert_allclose(found, weights, atol=0.1)


def test_the_chemistry_model_has_its_known_table(models):
    """Peaks at 48 (2.5 times the local median) and 42 cycles; 50.0% and 86.2% of variance in 4 and 12 dimensions."""
    folder = models / "rxnmapper-albert"
    share = position_pca(folder).cumulative_share
    assert float(share.sel(component=4)) == pytest.approx(0.500, abs=5e-4)
    assert float(share.sel(component=12)) == pytest.approx(0.862, abs=5e-4)
    spectrum = position_spectrum(folder)
    band = spectrum["mean"].sel(frequency=slice(30, 60))
    assert int(band.frequency[band.values.argmax()]) == 48
    assert float(spectrum.local_ratio.sel(frequency=48)) > 2.3
    assert 42 in band.frequency.values[np.argsort(band.values)[-3:]]


def test_arrays_and_models_give_the_same(tokenizer):
    loaded = load_model(wave_bert(SHIFTS), tokenizer=tokenizer, device="cpu")
    study = mechanism_study(loaded, [TEXT], window=LENGTH, limit=3)
    layer = study.evidence.layers[0]
    query, key = layer.matrices(0, affine=False)
    by_arrays = query_key_waves(layer.sample, query, key)
    # f = 4, 9 and 14; 1 is below 3
    assert int(by_arrays.periodic_columns) == int(waves.query_key_waves(study).periodic_columns[0, 0]) == 6
    assert phase_map(study).energy.dims == ("layer", "head", "frequency", "angle")


def test_no_position_table(models):
    for analysis in (position_spectrum, position_pca):
        with pytest.raises(AttnscopeError, match=r"no table of absolute positions.*RoPE"):
            analysis(models / "stories260K-llama")
    with pytest.raises(AttnscopeError, match=r"position_cca is not defined for stories260K-llama: .*RoPE"):
        position_cca(models / "stories260K-llama", [TEXT], window=32, limit=2)


def test_states_of_a_text_that_repeats_have_correlations_with_the_table():
    """Position is nearly all that varies: correlations come near 1, and pass it by what float32 rounds."""
    found = position_cca("bundled", "The cat sat on the mat. " * 60, window=32, limit=4)
    assert 0.9 < found.correlation.max() <= 1


def test_tables_of_several_models(tmp_path):
    shutil.copytree(MODEL, tmp_path / "twin")
    few = ("--window", "16", "--limit", "2", "--out", "run", "--no-report")
    found = command("explain", *few, "--analyses", "position_models=twin,bundled", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    tree = open_run(tmp_path / "run")
    tables = tree["position_models"].to_dataset()
    assert tables.model.values.tolist() == ["small-mlm", "twin", "small-mlm (2)"]
    one = position_spectrum("bundled")
    np.testing.assert_array_equal(tables["mean"], [one["mean"]] * 3)
    page = explain_page_of(only(tree, "position_models"), tmp_path / "r.html").read_text(encoding="utf-8")
    for name in ("position-models", "components-models"):
        assert f'id="figure-{name}"' in page


def test_another_completion_is_part_of_the_signature(tmp_path):
    few = {"limit": 2, "window": 16}
    run = attnscope.explain(analyses=["phase_map=thin"], out=tmp_path / "run", **few)
    assert run["phase_map"].attrs["completion"] == "thin"
    with pytest.raises(AttnscopeError, match="completion"):
        attnscope.explain(analyses=["phase_map"], out=tmp_path / "run", **few)


def test_a_name_is_that_of_an_analysis_or_of_a_package():
    assert [one.name for one in requested_analyses(["waves", "spectra"])] == ["waves", "spectra"]
    assert requested_analyses(["yamamoto2023"]) == list(OF_PACKAGE)
    *others, paper = requested_analyses(["yamamoto2023=gpt2"])
    assert paper.settings == {"published_as": "gpt2"}
    assert not any(one.settings for one in others)
    with pytest.raises(AttnscopeError, match="waves=3', but waves has no setting: leave it out"):
        requested_analyses(["waves=3"])


def test_an_analysis_that_is_not_installed_is_named_with_its_package(monkeypatch, tmp_path):
    """In a call that requests it, and in a folder of an earlier run."""
    assert {one.name for one in OF_PACKAGE} <= IN_PACKAGES.keys()
    assert not {one.name for one in ANALYSES} & IN_PACKAGES.keys()
    monkeypatch.setattr(catalogue, "entry_points", lambda group: [])
    catalogue.added_analyses.cache_clear()
    try:
        assert "waves" not in known_analyses()
        with pytest.raises(AttnscopeError, match=r"waves is in attnscope-yamamoto2023: in a copy of the"):
            attnscope.explain(analyses=["waves"])
        planted = only(explanation(), "verdict", "waves", "phase_map")
        with RunFolder(tmp_path / "run", {"command": "explain"}) as run:
            for name in planted.children:
                run.save(name, planted[name].to_dataset())
            run.finish(analyses={"requested": [], "names": list(planted.children), "skipped": []}, attributes={})
        tree = open_run(tmp_path / "run")
        xr.testing.assert_identical(tree["waves"].to_dataset().drop_attrs(), planted["waves"].to_dataset().drop_attrs())
        assert "To see waves, phase map, install attnscope-yamamoto2023." in report(tree).notes
    finally:
        catalogue.added_analyses.cache_clear()
