"""Roles and cards of speech models: eager attention's own weights, a published list, and what has no meaning."""

import json

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import attnscope
import attnscope_cards
from attnscope import AttnscopeError
from attnscope.read.sounds import sounds_of
from attnscope.results.reports import report_of, write_page
from attnscope.store.runs import skipped_of
from tests.cli.command import attnscope as command
from tests.speech_models import SAID, save_wav2vec2, save_whisper, write_sounds

ON_FRAMES = ["previous_token", "next_token", "current_token", "first_token", "sink", "local"]
SOUNDING = (25, 40, 60)  # frames of 20 ms


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speech")
    save_whisper(folder / "whisper")
    save_wav2vec2(folder / "wav2vec2")
    write_sounds(folder / "sounds")
    write_sounds(folder / "said")
    for number, said in enumerate(SAID):
        (folder / "said" / f"{number}.txt").write_text(said, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def listened(place):
    return attnscope.roles(place / "whisper", place / "said")


def by_hand(name, weights):
    """Definitions over the rows that count, ``(head, query, key)``; row i is frame i."""
    queries, keys = weights.shape[1:]
    offset = np.arange(keys) - np.arange(queries)[:, None]
    if name == "sink":
        return weights.mean(1).max(-1)
    pairs = {
        "previous_token": offset == -1,
        "next_token": offset == 1,
        "current_token": offset == 0,
        "first_token": np.arange(keys) == np.zeros_like(offset),
        "local": np.abs(offset) <= 8,
    }[name]
    return (weights * pairs).sum((1, 2)) / queries


def waves(place):
    return [sound.at_rate(16_000) for sound in sounds_of(place / "sounds")]


@torch.no_grad()
def eager(folder, wave, **more):
    kind = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    values = extractor(wave, sampling_rate=16_000, return_tensors="pt")[model.main_input_name]
    return model(values, output_attentions=True, **more)


def test_an_encoder_of_waves_is_scored_as_its_matrices_say(place):
    result = attnscope.roles(place / "wav2vec2", place / "sounds", controls="none")
    assert result.role.values.tolist() == ON_FRAMES
    layers = [eager(place / "wav2vec2", wave).attentions for wave in waves(place)]
    for name in ON_FRAMES:
        each = [[by_hand(name, layer[0].double().numpy()) for layer in of_sound] for of_sound in layers]
        np.testing.assert_allclose(result.score.sel(role=name), np.mean(each, 0), atol=2e-6, err_msg=name)
    assert skipped_of(result)["delimiter"] == "frames of a sound have no punctuation"
    assert "3 sounds of 24 to 59 frames" in report_of("roles", result).read


def test_frames_without_sound_are_keys_and_no_queries(place):
    result = attnscope.roles(place / "whisper", place / "sounds", controls="none")
    layers = [eager(place / "whisper", wave, decoder_input_ids=torch.tensor([[0]])) for wave in waves(place)]
    for name in ON_FRAMES:
        each = [
            [by_hand(name, layer[0, :, :frames].double().numpy()) for layer in of_sound.encoder_attentions]
            for of_sound, frames in zip(layers, SOUNDING, strict=True)
        ]
        np.testing.assert_allclose(result.score.sel(role=name), np.mean(each, 0), atol=2e-6, err_msg=name)
    np.testing.assert_allclose(result.equal.sel(role="first_token"), 0.01)  # of 100 frames
    assert result.layer_kind.values.tolist() == ["self", "self"]


def test_cross_attention_to_the_frames_is_scored(place, listened):
    assert listened.layer_kind.values.tolist() == ["self", "self", "cross"]
    cross = listened.isel(layer=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "whisper")
    expected = {name: [] for name in ("first_token", "sink", "sound_order")}
    for wave, said, frames in zip(waves(place), SAID, SOUNDING, strict=True):
        ids = torch.tensor([tokenizer(said)["input_ids"][:-1]])
        weights = eager(place / "whisper", wave, decoder_input_ids=ids).cross_attentions[0][0].double().numpy()
        for name in ("first_token", "sink"):
            expected[name].append(by_hand(name, weights))
        sound = weights[:, :-1, :frames]  # the first row, of the start token, predicts the first token of the text
        means = (sound * np.arange(frames)).sum(-1) / sound.sum(-1)
        order = [stats.spearmanr(mean, np.arange(ids.shape[1] - 1)).statistic for mean in means]
        expected["sound_order"].append(np.maximum(order, 0))
    for name, values in expected.items():
        np.testing.assert_allclose(cross.score.sel(role=name), np.mean(values, 0), atol=2e-6, err_msg=name)
    assert bool(cross.score.sel(role=["previous_token", "local"]).isnull().all())
    assert float(cross.equal.sel(role="sound_order")) == 0.0
    assert bool(listened.score.sel(role="sound_order").isel(layer=[0, 1]).isnull().all())
    assert "attention to its own tokens has no roles" in " ".join(report_of("roles", listened).notes)


def test_a_card_ranks_the_heads_of_a_published_list(place, listened, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"alignment_heads": [[0, 1]]}), encoding="utf-8")
    made = attnscope_cards.card(
        place / "whisper", place / "said", published=tmp_path / "generation_config.json", controls="none"
    )
    assert np.isnan(made.listed.values[:2]).all()
    assert made.listed.values[2].tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(made.score, listened.score)
    of_list = made.score.sel(role="sound_order").isel(layer=2).values
    assert float(made.auroc.sel(role="sound_order")) == float(of_list[1] > of_list[0])
    page = write_page(report_of("card", made), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "order of the sound" in page


def test_the_command_reads_sounds_and_stores_them(place, tmp_path):
    done = command(
        "roles", place / "whisper", place / "said", "--controls", "none", "--out", tmp_path / "r", cwd=tmp_path
    )
    assert "3 sounds of 25 to 60 frames" in done.stdout
    assert "order of the sound" in done.stdout
    again = attnscope.open_run(tmp_path / "r")
    assert "sound_order" in again.role.values
    with pytest.raises(AttnscopeError, match="other"):
        attnscope.roles(place / "whisper", place / "sounds", controls="none", out=tmp_path / "r")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 8}, "window .*needs texts, but the input is sounds"),
        ({"batch_size": 2}, "batch_size .*needs texts, but the input is sounds"),
        ({"dry_run": True}, "dry run .*roles a few sounds instead"),
        ({"only": "delimiter"}, "delimiter: frames of a sound have no punctuation"),
        ({"only": "induction,retrieval"}, "none of these roles can be scored"),
        ({"heads": [(7, 0)]}, r"7\.0|layer 7"),
        ({"needles": [{"needle": "A plum.", "question": "Which?"}]}, "needles .*need"),
    ],
)
def test_what_means_nothing_in_sounds_is_rejected(place, options, words):
    with pytest.raises(AttnscopeError, match=words):
        attnscope.roles(place / "whisper", place / "said", **options)


@pytest.mark.parametrize("option", ["answers", "limits", "check"])
def test_a_card_of_sounds_has_no_losses(place, option):
    with pytest.raises(AttnscopeError, match="measure the loss of texts, but the input is sounds"):
        attnscope_cards.card(place / "whisper", place / "said", **{option: True})


def test_a_model_of_texts_hears_nothing(place):
    with pytest.raises(AttnscopeError, match=r"not sounds.*Whisper"):
        attnscope.roles(texts=place / "sounds")


def test_texts_have_no_order_of_a_sound():
    with pytest.raises(AttnscopeError, match="sound_order: it needs sounds with transcripts"):
        attnscope.roles(only="sound_order", limit=2)
