"""Interventions on planted heads, of which the answer is known exactly (I20)."""

import json

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.explanation.analyses import interventions as _interventions
from attnscope.explanation.analyses.interventions import POSITION_CHANGES, WORD_CHANGES
from tests.explanation.analyses_of_windows import of_windows
from tests.explanation.planted_models import WORDS, mixed_bert, random_texts, squared_gain
from tests.planted_models import FREQUENCIES, LENGTH, circulant_profile
from tests.tiny_models import tiny

interventions = of_windows(_interventions.interventions)

BAND = 6
OFFSETS = np.arange(-BAND, BAND + 1)
SHIFTS = (-1, 2, 0, -3)
WAVE = 2.0
TEXTS = random_texts(3)
RANDOM = np.random.default_rng(0).integers(3, 60, (3, 24)).tolist()


def profiles(weight=WAVE, without=None, shifts=SHIFTS):
    """What waves of this weight give, head by head; a frequency may be missing."""
    return np.stack(
        [
            circulant_profile([f for f in FREQUENCIES[head] if f != without], weight, shift)[OFFSETS % LENGTH]
            for head, shift in enumerate(shifts)
        ]
    )


@pytest.fixture(scope="module")
def planted():
    return interventions(mixed_bert(SHIFTS, WAVE), TEXTS, band=BAND, shift=5, frequencies=(4, 4), draws=20).sel(layer=0)


def after(planted, change):
    return planted.profile_after.sel(change=change).to_numpy()


def test_before_anything_is_changed(planted):
    np.testing.assert_allclose(planted.profile_before, profiles(), atol=1e-6)
    assert planted.target.values.tolist() == list(SHIFTS)
    assert planted.change.values.tolist() == [*WORD_CHANGES, *POSITION_CHANGES]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("words-repeated", profiles()),
        ("words-shuffled", profiles()),
        ("words-zero", profiles(WAVE * squared_gain(words=False) / squared_gain())),  # LayerNorm enlarges the waves
        ("positions-zero", 1 / LENGTH),
        ("positions-mean", 1 / LENGTH),
        ("positions-reversed", profiles()[:, ::-1]),
        ("positions-shifted", profiles()),
        ("positions-band-removed", profiles(WAVE * squared_gain(waves=15) / squared_gain(), without=4)),
    ],
)
def test_a_planted_position_head_changes_as_known(planted, change, expected):
    np.testing.assert_allclose(after(planted, change), np.broadcast_to(expected, profiles().shape), atol=1e-6)


@pytest.mark.parametrize("change", ["positions-reversed", "positions-permuted"])
def test_attention_follows_the_ids(planted, change):
    np.testing.assert_allclose(planted.profile_by_id.sel(change=change), profiles(), atol=1e-6)
    assert np.isnan(planted.profile_by_id.sel(change="words-zero")).all()


def test_permuted_ids_and_random_phases_lose_the_offset(planted):
    moved = planted.drop_sel(head=SHIFTS.index(0))  # a token stays itself
    assert (moved.mass_change.sel(change="positions-permuted") < -0.5).all()
    assert (moved.mass_after.sel(change="positions-phases-random") < 0.2 * moved.mass_before).all()


def test_a_content_head_moves_with_its_words():
    """The text repeats every four words: so does attention, until the words are shuffled."""
    model = mixed_bert(wave=0.0, word=5.0)
    text = list(range(4)) * 8
    names = ["words-shuffled", "positions-reversed", "positions-zero", "words-zero"]
    found = interventions(model, [text] * 3, names, band=BAND, target_offset=np.full((1, 4), 4), draws=20).sel(layer=0)
    one = np.exp(5) / (8 * np.exp(5) + 24)
    np.testing.assert_allclose(found.mass_before, one, atol=1e-6)
    assert (found.mass_change.sel(change="words-shuffled") < -0.4 * one).all()
    np.testing.assert_allclose(found.mass_change.sel(change="positions-reversed"), 0, atol=1e-6)
    np.testing.assert_allclose(after(found, "words-zero"), 1 / LENGTH, atol=1e-6)


@pytest.mark.parametrize("family", ["roberta", "gpt2", "bart"])
def test_every_family_is_left_as_it_was(family):
    model = tiny(family)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = interventions(model, RANDOM, band=BAND, draws=5)
    assert found.change.values.tolist() == [*WORD_CHANGES, *POSITION_CHANGES]
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    causal = found.layer_kind == "causal"
    if bool(causal.any()):
        assert found.profile_after.sel(offset=slice(1, None)).where(causal, 0).max() == 0
        assert found.profile_by_id.sel(change="positions-reversed").notnull().all()
    assert bool((found.output_change > 1e-3).all())


def test_a_model_without_a_table_takes_word_changes():
    found = interventions(tiny("llama"), RANDOM, band=BAND, draws=5)
    assert found.change.values.tolist() == list(WORD_CHANGES)
    with pytest.raises(AttnscopeError, match="no table of absolute positions"):
        interventions(tiny("llama"), RANDOM, ["positions-zero"])


def test_what_cannot_be_changed_is_rejected():
    model = mixed_bert(rows=LENGTH + 3)
    with pytest.raises(AttnscopeError, match="unknown change 'words-burnt': choose from words-zero"):
        interventions(model, TEXTS, ["words-burnt"])
    with pytest.raises(AttnscopeError, match="cannot be shifted by 5: the table has only 3 rows beyond"):
        interventions(model, TEXTS, ["positions-shifted"], shift=5)
    assert "positions-shifted" not in interventions(model, TEXTS, shift=5, draws=2).change
    with pytest.raises(AttnscopeError, match=r"target_offset has shape \(1, 4\) up to 9"):
        interventions(model, TEXTS, ["words-zero"], target_offset=np.full((1, 4), 9), band=BAND)
    assert model.config.vocab_size == WORDS


def test_a_change_that_the_windows_do_not_allow_is_reported():
    model = tiny("bert")
    rows = model.config.max_position_embeddings
    whole = [[5 + place % 9 for place in range(rows)]] * 2
    found = interventions(model, whole, band=4, draws=2)
    assert "positions-shifted" not in found.change.values
    assert "0 rows beyond the window's" in json.loads(found.left_out)["positions-shifted"]
    shorter = interventions(model, [text[:-8] for text in whole], band=4, draws=2)
    assert "positions-shifted" in shorter.change.values
    assert json.loads(shorter.left_out) == {}
