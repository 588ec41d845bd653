"""A live view of a sound: weights, predictions, times and transcripts next to eager attention and the model's own."""

import copy
import json

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from scipy.signal import resample_poly
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

import attnscope
from attnscope.kernels.engines import output_of
from attnscope_relations.warping import filtered, first_frames
from tests.speech_models import SAID, save_whisper, write_sounds

DECODER, CROSS = 2, 3  # after two layers of the encoder: self- and cross-attention of the decoder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    place = tmp_path_factory.mktemp("whisper")
    write_sounds(place / "sounds")
    return save_whisper(place / "model"), place / "sounds" / "1.wav"


@pytest.fixture(scope="module")
def conversation(whisper):
    return attnscope.view(*whisper, targets=[SAID[1]]).conversation.another()


@pytest.fixture(scope="module")
def eager(whisper):
    """The model itself, the features of the sound, and the ids of its transcript."""
    folder, path = whisper
    model = WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    rate, samples = wavfile.read(path)
    assert rate == 44_100
    samples = resample_poly(samples.mean(1), 160, 441)
    extract = WhisperFeatureExtractor.from_pretrained(folder)
    features = extract((samples / 32768).astype(np.float32), sampling_rate=16_000, return_tensors="pt").input_features
    return model, features, AutoTokenizer.from_pretrained(folder)


def answered(conversation, name, **question):
    answer = conversation.answer(name, question)
    json.dumps(answer.content, allow_nan=False)
    return answer.content, answer.arrays


def test_a_transcript_shows_the_weights_and_predictions_of_the_model(conversation, eager):
    model, features, _ = eager
    look, _ = answered(conversation, "look", text=SAID[1], written=[7, 8])
    tokens = look["texts"]["target"]["tokens"]
    ids = conversation.looked.plain.window.target.ids
    assert ids[-2:] == (7, 8)
    assert ids[0] == model.config.decoder_start_token_id
    with torch.no_grad():
        output = model(input_features=features, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
    _, (row,) = answered(conversation, "row", layer=CROSS, head=1, token=4, direction="from")
    np.testing.assert_allclose(np.frombuffer(row, np.float32), output.cross_attentions[0][0, 1, 4], atol=1e-5)
    best = output.logits[0, -1].log_softmax(-1).topk(10)
    assert look["position"] == len(tokens) - 1
    assert [one["id"] for one in look["rows"]] == best.indices.tolist()
    np.testing.assert_allclose([one["before"] for one in look["rows"]], best.values, atol=1e-5)
    assert "".join(tokens[1:-2]).strip() == SAID[1]


def test_words_begin_where_the_weights_of_a_head_are_warped_to(conversation, whisper):
    folder, path = whisper
    answered(conversation, "look", text=SAID[1])
    words = answered(conversation, "times", layer=CROSS, head=1)[0]["words"]
    assert [word["word"] for word in words] == SAID[1].split()
    weights = attnscope.weights(folder, path, targets=[SAID[1]], layer=CROSS, head=1)
    sounding = int(np.ceil(0.8 / 0.02))  # seconds of the sound, and of a frame
    rows = torch.tensor(weights.values[:, :sounding])
    first = weights.query_token.values.tolist().index(" I")
    begins = 0.02 * first_frames(filtered(rows[first - 1 :] / rows[first - 1 :].sum(-1, keepdim=True))[None].numpy())[0]
    assert [word["begin"] for word in words] == pytest.approx([begins[word["position"] - first] for word in words])
    assert answered(conversation, "times", layer=0, head=1)[0]["words"] is None


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_the_transcript_without_a_head_is_that_of_the_changed_model(conversation, eager, by):
    model, features, tokenizer = eager
    answered(conversation, "look", text=SAID[1], removed=[[DECODER, 0]], by=by)
    written, _ = answered(conversation, "transcribe")

    def generated(model):
        ids = model.generate(input_features=features, do_sample=False, num_beams=1, max_new_tokens=24)
        return tokenizer.decode(ids[0], skip_special_tokens=True).strip()

    assert written["before"] == generated(model)
    changed = copy.deepcopy(model)
    projection, columns = changed.model.decoder.layers[0].self_attn.out_proj, slice(8)
    with torch.no_grad():
        if by == "mean":
            z = output_of(conversation.looked.plain.maps.calls[DECODER])[0, 0]
            projection.bias += projection.weight[:, columns] @ z.mean(0)
        projection.weight[:, columns] = 0
    assert written["after"] == generated(changed)
    assert written["after"] != written["before"]


def test_the_page_gets_the_wave_and_its_duration(conversation):
    sound = conversation.about["sound"]
    assert sound["seconds"] == pytest.approx(0.8)
    assert max(sound["peaks"]) == 1
    assert sound["source"].startswith("data:audio/wav;base64,")


def test_what_a_sound_cannot_show_is_said(conversation):
    for question, words in (({"text": " "}, "is empty"), ({"text": "tide " * 40}, "more than 32 tokens")):
        assert words in conversation.reply("look", question, lambda: False).content["error"]
    texts = attnscope.view("bundled", "The tide.").conversation
    assert "reads no sounds" in texts.reply("transcribe", {}, lambda: False).content["error"]
