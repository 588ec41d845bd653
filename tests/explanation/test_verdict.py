"""What is said of a head is more than chance gives: planted heads are counted, random ones are not."""

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import attnscope
from attnscope.bundled import TEXT
from attnscope.explanation.analyses.position_content import position_content
from attnscope.explanation.analyses.shift import cross_correlation as mechanism_cross_correlation
from attnscope.explanation.analyses.shift import cross_spectrum as mechanism_cross_spectrum
from attnscope.explanation.analyses.verdict import peaks_of_noise, summary, verdict_of, weight_peaks
from attnscope.explanation.arrays.correlation import cross_correlation, cross_spectrum, profile_agreement
from attnscope.explanation.arrays.spectrum import find_peaks
from attnscope.explanation.profiles import Reach, pairs_at
from attnscope.explanation.report import rank_explanations
from attnscope.explanation.study import Study
from attnscope.explanation.study import study as mechanism_study
from attnscope.kernels.call import AttentionCall
from attnscope_yamamoto2023.analyses import OF_POSITIONS
from tests.explanation.planted_waves import planted
from tests.planted_models import LENGTH, causal, wave_bert
from tests.tiny_models import tiny

WORDS = 400


@pytest.fixture(scope="module")
def masked(tokenizer):
    """Heads planted at -1, +2, -3 and 0 in a model that may not look ahead."""
    reading = {"tokenizer": tokenizer, "window": LENGTH, "limit": 4}
    model = causal(wave_bert((-1, 2, -3, 0)))
    return attnscope.explain(model, [TEXT], frequencies=(1, 15), analyses=OF_POSITIONS, **reading)


def verdict_alone(model, tokenizer, band=10):
    study = mechanism_study(model, [TEXT], tokenizer=tokenizer, window=LENGTH, limit=3, band=band)
    spectra = mechanism_cross_spectrum(study, band=(1, 15))
    found = verdict_of(study.evidence, spectra, mechanism_cross_correlation(study), None)
    return xr.DataTree.from_dict({"verdict": found})


# --- causal models ---


def test_offsets_are_looked_for_where_a_causal_head_may_look(masked):
    found = masked["verdict"].to_dataset().sel(layer=0)
    assert (found.lowest_offset, found.highest_offset) == (1 - LENGTH, 0)
    allowed = found.sel(head=[0, 2, 3])
    for name in ("offset_of_weights", "offset_of_spectrum", "offset_of_correlation"):
        np.testing.assert_allclose(allowed[name], [-1, -3, 0], atol=0.1)
    assert allowed.agree.all()
    assert (masked["cross_correlation"].trace_peak_offset.values <= 0).all()


def test_an_offset_that_the_mask_forbids_is_not_found(masked):
    forbidden = masked["verdict"].to_dataset().sel(layer=0, head=1)
    assert float(forbidden.offset_of_weights) <= 0
    assert np.isnan(float(forbidden.offset_of_spectrum))
    assert not forbidden.agree
    shifts = masked["cross_spectrum"].to_dataset().sel(layer=0, head=1)
    assert float(shifts.band_offset_chance) > 0.5
    assert 1 not in masked["controls"]["head"].values


def test_the_reach_of_a_sliding_window():
    row = torch.arange(20)
    near = (row[:, None] >= row) & (row[:, None] - row < 6)
    x = torch.zeros(1, 2, 20, 4)
    found = Reach.of(AttentionCall(x, x, x, scale=1.0, mask=near[None, None]), band=8)
    assert found.offsets == (-5, 0)
    weights = near.double() / near.sum(1, keepdim=True)
    np.testing.assert_allclose(found.even, [weights.diagonal(t).sum() for t in range(-8, 9)])


# --- peaks ---


def test_no_reading_between_tokens_lies_beyond_the_mask():
    offset = np.arange(-30, 31)
    hill = np.exp(-(((offset - 0.2) / 2) ** 2))[None]
    assert find_peaks(hill, offset).refined[0, 0] == pytest.approx(0.2, abs=0.05)
    assert find_peaks(hill, offset, offsets=(-30, 0)).refined.tolist() == [[0, 0]]
    ahead = planted(offset=0.05, frequencies=(13, 19, 26, 31, 37))
    told, held = (
        float(cross_spectrum(ahead.inputs, ahead.query, ahead.key, offsets=offsets).band_offset)
        for offsets in (None, (-30, 0))
    )
    assert told == pytest.approx(0.05, abs=1e-6)
    assert held == 0


def test_phases_in_disorder_have_a_common_shift_as_often_as_stated():
    rng = np.random.default_rng(0)
    chances = []
    for _ in range(100):
        q, k, x = rng.normal(size=(12, 4)), rng.normal(size=(12, 4)), rng.normal(size=(64, 12))
        chances.append(float(cross_spectrum(x, q, k).band_offset_chance))
    assert np.mean(np.array(chances) <= 0.01) <= 0.05
    assert np.mean(chances) == pytest.approx(0.5, abs=0.15)
    model = planted(offset=-2, noise=0.2)
    assert float(cross_spectrum(model.inputs, model.query, model.key).band_offset_chance) == 0.005


def test_weights_that_rise_on_beyond_the_band_have_no_offset(tokenizer):
    found = verdict_alone(wave_bert((-5, 1, 5, 4)), tokenizer, band=4)
    at = found["verdict"].offset_of_weights.values[0]
    assert at[1] == 1
    assert np.isnan(at[3])  # 4 is the edge of the band: whether it is a peak is not known
    assert [row["head"] for row in rank_explanations(found) if row["positional"]] == [1]


# --- layers that share weights ---


def test_heads_of_layers_that_share_weights_are_no_trials_of_their_own():
    study = Study(tiny("albert"), np.random.default_rng(0).integers(3, 60, (6, 24)).tolist(), band=4)
    layers = [layer.site.index for layer in study.evidence.layers]
    assert len(layers) > 1
    assert weight_peaks(study.evidence).weights_of.values.tolist() == [0] * len(layers)
    study = Study(tiny("bert"), study.windows, band=4)
    assert weight_peaks(study.evidence).weights_of.values.tolist() == [0, 1]
    read = {"offset_of_weights": -1.0, "offset_of_spectrum": -1.0, "offset_of_correlation": -1.0, "chance": 0.1}
    judged = {"prefers": True, "positional": True, "agree": True, "weight_level": 0.1, "coherence": 0.5}
    shared = [{"layer": layer, "head": 3, "weights_of": 0 if layer else None} | read | judged for layer in range(3)]
    own = [row | {"weights_of": None} for row in shared]
    assert "(0.3 by chance, p = 0.001)" in summary(own)[-1]
    assert "no p-value: layers share weights, and only 1 of 3 heads differ" in summary(shared)[-1]


# --- peaks that noise has too ---


@pytest.mark.parametrize(("peaks", "says"), [(1, "p = 0.11: not significant)."), (5, "p < 0.001).")])
def test_peaks_of_heads_that_prefer_no_offset_are_counted_beside_those_of_noise(peaks, says):
    idle = {"layer": 0, "prefers": False, "positional": False, "agree": None, "coherence": 0.1, "weights_of": None}
    rows = [idle | {"head": head, "offset_of_spectrum": 7.0 if head < peaks else None} for head in range(12)]
    said = peaks_of_noise(rows)
    assert said.startswith("Heads without a favoured offset, but with one by phase: ")
    assert f"{peaks} of 12 (0.12 by chance, {says}" in said
    assert "no p-value" in peaks_of_noise([*rows, rows[0] | {"layer": 1, "weights_of": 0}])
    assert not peaks_of_noise([row | {"offset_of_spectrum": None} for row in rows])
    assert not peaks_of_noise([row | {"prefers": True} for row in rows])


# --- what is stored is what is said ---


def told(tree):
    """Heads by what the rows, of which the table and the sentences are made, say of them."""
    rows = rank_explanations(tree)
    return {name: {(row["layer"], row["head"]): row.get(name) for row in rows} for name in ("agree", "kernel_agrees")}


# --- chance ---


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_rows_that_look_anywhere_exceed_the_level_as_rarely_as_stated(mask):
    """Each query looks at one key drawn at random, the same in all texts: no profile varies more."""
    length, band, chance = 64, 10, 0.01
    x = torch.zeros(1, 1, length, 2)
    reach = Reach.of(AttentionCall(x, x, x, scale=1.0, causal=mask == "causal"), band=band)
    rng = np.random.default_rng(0)
    row = np.arange(length)
    most = row + 1 if mask == "causal" else np.full(length, length)
    offset = (rng.random((4000, length)) * most).astype(int) - row
    sums = np.stack([(offset == t).sum(1) for t in range(-band, band + 1)], 1)
    profiles = sums / pairs_at(length, length, band)
    assert ((profiles > reach.level(chance)).mean(0) <= 1.5 * chance).all()
    np.testing.assert_allclose(sums.mean(0), reach.even, atol=0.1)


def random_model(kind, scale):
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 64, "initializer_range": scale, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "bert":
        return BertModel(BertConfig(**sizes, intermediate_size=32)).eval()
    return GPT2Model(GPT2Config(**sizes)).eval()


@pytest.mark.parametrize(("kind", "scale"), [("bert", 0.2), ("gpt2", 0.02)])
def test_random_weights_claim_no_agreement(kind, scale):
    """Softmax follows the scores, so that both have their faint maximum at one place; that is no preference."""
    texts = np.random.default_rng(0).zipf(1.5, (12, 64)).clip(max=WORDS - 1).tolist()
    study = Study(random_model(kind, scale), texts)
    content = position_content(study, limit=6)
    found = verdict_of(study.evidence, mechanism_cross_spectrum(study), mechanism_cross_correlation(study), content)
    rows = rank_explanations(xr.DataTree.from_dict({"verdict": found}))
    (said,) = summary(rows)
    assert said.startswith("0 of 12 heads have more weight at one offset than by chance")
    assert not any(row["agree"] is not None or row["offset_of_weights"] is not None for row in rows)


def test_heads_that_all_look_alike_tell_nothing(tokenizer):
    """With the scores of another head in its place each agrees as well."""
    found = verdict_alone(wave_bert((-1, -1, -1, -1)), tokenizer)
    np.testing.assert_allclose(found["verdict"].chance, 1)
    said = summary(rank_explanations(found))[-1]
    assert said.endswith("all 4 heads (4 by chance, p = 1: not significant).")


def test_profiles_are_compared_where_the_mask_allows():
    """Before the mask the scores rise on to +2; the weights there are 0 whatever they are."""
    scores = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    weights = np.array([0.1, 0.3, 0.6, 0.0, 0.0])
    assert not profile_agreement(weights, scores, band=2).equal_argmax
    found = profile_agreement(weights, scores, band=2, offsets=(-4, 0))
    assert found.equal_argmax
    assert int(found.score_argmax) == 0
    assert float(found.spearman) == pytest.approx(1)


def test_noise_has_no_clear_peak_and_a_shift_has():
    rng = np.random.default_rng(0)
    clear = [
        bool(cross_correlation(rng.normal(size=(64, 8)), rng.normal(size=(64, 8))).trace_peak_clear) for _ in range(200)
    ]
    assert sum(clear) <= 2
    q = rng.normal(size=(64, 8))
    assert cross_correlation(q, np.roll(q, -3, axis=0)).trace_peak_clear
