"""Position in every scheme: its true share is known, and the offset that its scheme predicts is found."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import LlamaConfig, LlamaForCausalLM

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope.explanation.analyses import position_content as _position_content
from attnscope.explanation.analyses import position_scheme as _position_scheme
from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.report import rank_explanations, report
from attnscope.explanation.study import Study, equal_windows
from attnscope.read.encoded import texts_of
from attnscope.read.windows import Window
from attnscope.report.schema import Quantity, text_of
from tests.explanation.analyses_of_windows import of_windows
from tests.explanation.planted_schemes import LENGTH, OFFSETS, TURNING, WORDS, planted, same_word, texts
from tests.tiny_models import tiny

position_content = of_windows(_position_content.position_content)
scheme_kernel = of_windows(_position_scheme.scheme_kernel)

BAND = 6
TABLES = ("learned", "sinusoidal")
RELATIVE = ("rope", "t5", "alibi", "deberta")
RANDOM = np.random.default_rng(0).integers(3, 60, (4, 24)).tolist()
OF_BIAS = ("t5", "alibi", "deberta")


def mean_scores(by_offset, centred):
    """Mean over pairs of what is added at each offset of the band, about each row's mean over the keys or as it is."""
    place = np.arange(LENGTH)
    scores = by_offset[place - place[:, None] + LENGTH - 1]
    if centred:
        scores = scores - scores.mean(1, keepdims=True)
    return np.array([scores.diagonal(t).mean() for t in range(-BAND, BAND + 1)])


def share_of(part, whole):
    return np.cov(part, whole)[0, 1] / np.var(whole, ddof=1)


@pytest.mark.parametrize("scheme", [*TABLES, *RELATIVE, "none"])
def test_the_share_of_position_beside_words_is_the_true_one(scheme):
    """Between different texts of all phases, the same word comes up less often than within one: -1/(n - 1) of it."""
    word = 3.0
    model, by_offset = planted(scheme, -3, 1.0, word)
    found = position_content(model, texts(), band=BAND, draws=5).isel(layer=0, head=0)
    position = mean_scores(by_offset, centred=scheme not in OF_BIAS)
    words = mean_scores(same_word(word), centred=True)
    whole = position + words
    expected = share_of(position, whole) - share_of(words, whole) / (WORDS - 1)
    assert float(found.position_share) == pytest.approx(expected, abs=2e-3)
    if scheme in OF_BIAS:
        assert float(found.share.sel(term="B")) == pytest.approx(share_of(position, whole), abs=2e-3)
        assert 0.1 < float(found.share.sel(term="B")) < 0.95
    assert ("B" in found.term) == (scheme in OF_BIAS)


@pytest.mark.parametrize("scheme", ["t5", "deberta", "rope"])
@pytest.mark.parametrize("offset", [-3, 2])
def test_the_kernel_of_a_scheme_is_what_was_planted(scheme, offset):
    """And it foretells where the head looks, however much of the scores is words."""
    word = 3.0
    model, by_offset = planted(scheme, offset, 1.0, word)
    found = scheme_kernel(model, texts(), band=BAND, draws=200).isel(layer=0, head=0)
    inner = by_offset[abs(OFFSETS) <= BAND]
    known = found.kernel.values - found.kernel.values.mean()  # words that turn hardly at all add a constant
    np.testing.assert_allclose(known, inner - inner.mean(), atol=2e-3)
    assert float(found.offset_of_kernel) == offset
    assert float(found.swing) == pytest.approx(np.ptp(inner), abs=2e-3)
    assert found.agree == (abs(found.offset_of_weights - offset) <= 1)
    position = mean_scores(by_offset, centred=scheme == "rope")
    whole = position + mean_scores(same_word(word), centred=True)
    assert float(found.share) == pytest.approx(share_of(position, whole), abs=5e-3)
    if scheme == "rope":
        np.testing.assert_allclose(found.pair_share.sum("pair"), found.share)
        assert set(np.flatnonzero(found.strength > 0.5)) == set(TURNING)


def test_alibi_peaks_at_the_token_itself_and_no_kernel_has_a_peak_beyond_the_band():
    model, by_offset = planted("alibi", 0, 0.0, 0.0)
    found = scheme_kernel(model, texts(), band=BAND, draws=50).isel(layer=0)
    assert (found.offset_of_kernel == 0).all()
    np.testing.assert_allclose(found.kernel.isel(head=0), by_offset[abs(OFFSETS) <= BAND], atol=1e-6)
    # values in random order peak within 1 of an offset in 3 of 13 ways
    assert float(found.chance.mean()) == pytest.approx(3 / 13, abs=0.06)
    model, _ = planted("rope", -BAND - 2, 1.0, 0.0)
    beyond = scheme_kernel(model, texts(), band=BAND, draws=5).isel(layer=0, head=0)
    assert np.isnan(beyond.offset_of_kernel)
    assert np.isnan(beyond.offset_of_weights)
    assert np.isnan(beyond.agree)  # there is nothing to agree with
    assert np.isnan(beyond.chance)


def test_kernels_are_searched_where_a_head_may_look():
    found = scheme_kernel(tiny("llama"), RANDOM, band=BAND, draws=20)
    assert found.kernel.isnull().all(["layer", "head"]).values.tolist() == [False] * (BAND + 1) + [True] * BAND
    for name in ("offset_of_kernel", "offset_of_weights"):
        assert float(found[name].max()) <= 0
    windowed = scheme_kernel(tiny("mistral"), RANDOM, band=10, draws=5)  # it sees 8 tokens
    assert windowed.offset[windowed.kernel.notnull().any(["layer", "head"])].values.tolist() == list(range(-7, 1))


@pytest.mark.slow
def test_random_rotary_models_agree_as_often_as_chance_says():
    """Small weights make no offset: kernels agree with where the masks alone let heads look, as random phases do."""
    agreeing, expected, spread = 0.0, 0.0, 0.0
    for seed in range(4):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=60, hidden_size=64, num_attention_heads=8, num_hidden_layers=2, intermediate_size=48
        )
        found = scheme_kernel(LlamaForCausalLM(config).eval(), RANDOM, band=BAND, draws=50)
        agreeing += float(found.agree.sum())
        expected += float(found.chance.sum())
        spread += float((found.chance * (1 - found.chance)).sum())
        assert float(found.peak_weight.max()) < 0.2  # none is said to look anywhere
    assert abs(agreeing - expected) < 3 * spread**0.5


@pytest.mark.parametrize("scheme", ["alibi", "rope", "learned"])
def test_a_head_that_goes_by_its_scheme_is_reported_as_such(scheme):
    """In the verdict, the table and the words: position is all, and nothing is said to work against it."""
    model, _ = planted(scheme, -3, 3.0, 1e-3)  # a head without any queries has no waves to look for
    loaded = LoadedModel(model, None, "planted", {})
    study = Study(loaded.model, [window(ids) for ids in texts()], band=BAND)
    study.run(ANALYSES)
    found, skipped = study.results, study.reasons
    tree = xr.DataTree.from_dict(found)
    tree.attrs["skipped"] = json.dumps(skipped)
    told = report(tree)
    first = next(row for row in told.rows if row["head"] == 0)
    assert first["position_share"] == pytest.approx(1, abs=1e-3)
    assert "Position explains most of the scores of 1 of these 1 heads" in told.finding.sentences[1]
    assert not bool((found["position_content"].position_share_high < 0).any())
    if scheme == "learned":
        assert "scheme_kernel" in skipped
        assert first["kernel_agrees"] is None
    else:
        assert first["kernel_agrees"]
        assert first["offset_of_kernel"] == (0 if scheme == "alibi" else -3)
        assert first["kernel_share"] == pytest.approx(1, abs=1e-3)
    if "verdict" in found:
        assert float(found["verdict"].position_share[0, 0]) == pytest.approx(1, abs=1e-3)


def test_agreement_that_chance_gives_may_be_accident():
    ones = xr.DataArray(np.ones((1, 4)), dims=("layer", "head"), coords={"layer": [0], "head": range(4)})
    for agree, says in (([1, 0, 0, 1], "2 of these 4"), ([1, 1, 1, 1], "all 4 heads")):
        kernel = xr.Dataset(
            {"offset_of_kernel": ones, "agree": ones * agree, "chance": 0.4 * ones, "share": ones},
            attrs={"scheme": "bias"},
        )
        verdict = xr.Dataset(dict.fromkeys(("prefers", "positional", "comparable", "agree", "peak_weight"), ones))
        tree = xr.DataTree.from_dict({"scheme_kernel": kernel, "verdict": verdict})
        (said,) = _position_scheme.predicted_offsets(tree, rank_explanations(tree))
        assert says in said
        assert "(1.6 by chance, p = " in said
        assert ("p = 0.52: not significant)" in said) == (says == "2 of these 4")


def window(ids):
    words = tuple(f"w{one}" for one in ids)
    return Window(tuple(ids), (False,) * len(ids), tuple((0, 1) for _ in ids), "planted", 0, words)


def test_the_rotation_of_a_trained_model_predicts_its_offsets(models):
    loaded = load_model(models / "stories260K-llama", device="cpu")
    windows = equal_windows(texts_of(None), loaded, 128, 8)
    found = scheme_kernel(loaded.model, windows).stack(place=("layer", "head"))
    looking = found.isel(place=np.flatnonzero(found.peak_weight >= 0.2))
    assert looking.sizes["place"] > 20
    assert float(looking.agree.mean()) == 1
    assert float(looking.chance.mean()) < 0.5
    assert float((looking.share > 0.9).mean()) > 0.9


@pytest.mark.parametrize(("share", "says"), [(0.75, "75%"), (1 / 12, "8.3%"), (0.0042, "0.42%")])
def test_a_match_says_how_often_it_is_found_by_chance(share, says):
    agree, chance = Quantity("kernel_agrees", like="kernel_chance"), Quantity("kernel_chance", unit="share")
    row = {"kernel_agrees": True, "kernel_chance": share}
    assert text_of(agree, row, chance) == (f"yes ({says} by chance)", "")
