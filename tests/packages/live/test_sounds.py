"""A live view of a sound: weights, predictions, times and transcripts next to eager attention and the model's own."""

import contextlib
import copy
import io
import json
import re
import shlex

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
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
    place = tmp_path_factory.mktemp("whisper, small")  # a name with a comma is copied too
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


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("by", ["zero", "mean"])
def test_the_copied_python_of_a_sound_prints_predictions_and_transcripts(whisper, by, dtype):
    conversation = attnscope.view(*whisper, targets=[SAID[1]], dtype=dtype).conversation
    look, _ = answered(conversation, "look", text=SAID[1], written=[7, 8], removed=[[DECODER, 0], [0, 1]], by=by)
    rows = {row["id"]: row for row in look["rows"]}
    assert any(abs(row["after"] - row["before"]) > 0.1 for row in rows.values())
    code, _ = answered(conversation, "code", layer=CROSS, head=1, position=look["position"])
    step = 1e-4 if dtype is None else 2**-5  # two steps of a logit between 2 and 4 in bfloat16
    *lines, before, after = printed(code["python"]).splitlines()
    for line in lines:
        index, *logs = re.fullmatch(r"(\d+) .* (\S+) (\S+)", line).groups()
        row = rows[int(index)]
        assert [float(log) for log in logs] == pytest.approx([row["before"], row["after"]], abs=step)
    written, _ = answered(conversation, "transcribe")
    assert [before.strip(), after.strip()] == [written["before"], written["after"]]
    assert code["command"] == ""
    assert (f"dtype={dtype!r}" in code["python"]) == (dtype is not None)


def test_the_copied_lines_of_a_sound_open_the_same_head(conversation, whisper):
    answered(conversation, "look", text=SAID[1])
    code, _ = answered(conversation, "code", layer=CROSS, head=1, position=3)
    folder, path = whisper
    weights = attnscope.weights(folder, path, targets=[SAID[1]], layer=CROSS, head=1)
    shown = torch.tensor([float(number) for number in re.findall(r"\d\.\d+(?:e-\d+)?", printed(code["python"]))])
    np.testing.assert_allclose(shown, weights.values[3], atol=1e-4)
    command = ["attnscope", "view", str(folder), str(path), "--target", SAID[1], "--layer", str(CROSS), "--head", "1"]
    assert shlex.split(code["command"]) == command


@pytest.mark.device
@pytest.mark.parametrize("by", ["zero", "mean"])
def test_a_sound_is_shown_on_a_device_as_on_the_cpu(device, whisper, by):
    """Of two simulated GPUs the decoder has the second."""
    looks = []
    for place in ("cpu", device):
        folder, path = whisper
        model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        if place == "cpu" or torch.cuda.is_available():
            model.to(place)
        else:
            parts = {"model.encoder": "cuda:0", "model.decoder": "cuda:1", "proj_out": "cuda:1"}
            dispatch_model(model, parts, main_device="cuda:0", force_hooks=True)
        conversation = attnscope.view(model, path, targets=[SAID[1]], tokenizer=folder).conversation
        removed = [[DECODER, 0], [0, 1], [CROSS, 1]]
        look, _ = answered(conversation, "look", text=SAID[1], written=[7, 8], removed=removed, by=by)
        times, _ = answered(conversation, "times", layer=CROSS, head=1)
        looks.append((look["rows"], times["words"], answered(conversation, "transcribe")[0]))
    (there, words, written), (here, *expected) = looks[1], looks[0]
    assert [words, written] == expected
    for one, other in zip(there, here, strict=True):
        assert one["id"] == other["id"]
        assert [one["before"], one["after"]] == pytest.approx([other["before"], other["after"]], abs=1e-4)


def printed(code):
    with contextlib.redirect_stdout(io.StringIO()) as lines:
        exec(code, {})  # noqa: S102
    return lines.getvalue()
