"""Raw weights, of texts and of other modalities, are transformers' own; models are loaded as other verbs load them."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoModelForSpeechSeq2Seq, AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.capture.encoders import load_speech_model
from attnscope.capture.load import Loading, load_model
from attnscope.capture.modalities import load_pictured_model
from attnscope.measure import raw as _raw
from attnscope.read.image_text import pictured_of
from attnscope.read.sounds import sounds_of
from tests.image_models import SIDE, vision_model
from tests.image_text_models import picture, save_pictured_model
from tests.speech_models import SAID, save_whisper, write_sounds
from tests.tiny_models import tiny, tiny_reader

IDS = [5, 9, 11, 7, 30, 8]


TEXT = "The tide comes in twice a day, and twice a day it goes out again."


def test_they_are_what_eager_attention_returns():
    for model, given, tokenizer in ((tiny("llama"), [IDS], MODEL), (vision_model("vit")[0], PIXELS[:1], None)):
        found = attnscope.weights(model, given, tokenizer=tokenizer)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            eager = model(torch.tensor(given) if tokenizer else given, output_attentions=True).attentions
        np.testing.assert_allclose(found, np.stack([one[0] for one in eager]), atol=1e-5)
    assert found.key_token.values[:3].tolist() == ["[class]", "r0c0", "r0c1"]
    loaded = load_model(model, need_tokenizer=False)
    assert attnscope.weights(loaded, PIXELS[:1]).equals(attnscope.weights(model, PIXELS[:1]))
    assert attnscope.scan(loaded, PIXELS).equals(attnscope.scan(model, PIXELS))


def test_one_head_is_its_part_of_all():
    whole = attnscope.weights(texts=TEXT)
    assert whole.dims == ("layer", "head", "query", "key")
    np.testing.assert_allclose(attnscope.weights(texts=TEXT, layer=1, head=2), whole.sel(layer=1, head=2), atol=2e-6)
    np.testing.assert_allclose(attnscope.weights(texts=TEXT, head=2), whole.sel(head=2), atol=2e-6)
    np.testing.assert_allclose(whole.sum("key"), 1, atol=1e-5)


@pytest.mark.parametrize("verb", [attnscope.weights, attnscope.received])
@pytest.mark.parametrize(
    ("texts", "found"), [(["The tide is out.", "It rained."], "several texts"), ([IDS, IDS], "2 rows of token ids")]
)
def test_several_texts_are_rejected(verb, texts, found):
    with pytest.raises(AttnscopeError, match=f"found {found}; expected one: choose one"):
        verb("bundled", texts)


def test_what_is_not_there_or_too_large_is_rejected(monkeypatch):
    with pytest.raises(AttnscopeError, match="there is no layer 3 "):
        attnscope.weights(texts="The tide is out.", layer=3)
    with pytest.raises(AttnscopeError, match="there is no head 4 "):
        attnscope.weights(texts="The tide is out.", head=4)
    with pytest.raises(AttnscopeError, match="layer"):
        attnscope.weights(texts="The tide is out.", layer=-1)
    monkeypatch.setattr(_raw, "LIMIT", 100)
    with pytest.raises(AttnscopeError, match="choose a layer and a head"):
        attnscope.weights(texts="The tide is out.")


PIXELS = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_of_a_sound_from_a_token_of_its_transcript_to_seconds(tmp_path):
    sounds = write_sounds(tmp_path / "sounds")
    (tmp_path / "sounds" / "0.txt").write_text(SAID[0])
    whisper = save_whisper(tmp_path / "whisper")
    found = attnscope.weights(whisper, sounds / "0.wav", layer=3, head=1)
    assert found.layer_kind.item() == "cross"
    assert found.key_token.values[1] == "0.02s"
    model = AutoModelForSpeechSeq2Seq.from_pretrained(whisper, attn_implementation="eager").eval()
    reader = load_speech_model(whisper, loading=Loading(device="cpu"))
    (sound,) = sounds_of([sounds / "0.wav"])
    given = reader.hear(sound.at_rate(reader.rate), "0.wav").given
    ids = [model.config.decoder_start_token_id, *_ids(whisper, SAID[0])]
    with torch.no_grad():
        eager = model(**given, decoder_input_ids=torch.tensor([ids]), output_attentions=True).cross_attentions
    np.testing.assert_allclose(found, eager[0][0, 1, : len(found)], atol=1e-5)


def _ids(folder, text):
    return AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False).input_ids


def test_of_a_text_with_an_image_the_image_is_read(tmp_path):
    folder = save_pictured_model("llava", tmp_path / "llava")
    line = {"text": "<image> What?", "images": [picture(0)]}
    found = attnscope.weights(folder, [line], layer=1)
    (item,) = pictured_of([line])
    _, given = load_pictured_model(folder, loading=Loading(device="cpu")).read(item)
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        eager = model(**given, output_attentions=True).attentions
    np.testing.assert_allclose(found, eager[1][0], atol=1e-5)
    assert "r3c3" in "".join(found.key_token.values)


def test_what_is_no_one_matrix_is_rejected():
    model, _ = vision_model("swin")
    with pytest.raises(AttnscopeError, match="attends in 4 windows of 16 positions"):
        attnscope.weights(model, PIXELS[:1], layer=0)
    with pytest.raises(AttnscopeError, match=r"found 2 images, .*; expected one"):
        attnscope.weights(model, PIXELS)
    with pytest.raises(AttnscopeError, match="window and words need plain texts"):
        attnscope.weights(model, PIXELS[:1], window=8)
    with pytest.raises(AttnscopeError, match="targets need texts"):
        attnscope.weights(model, PIXELS[:1], targets=["What?"])


@pytest.mark.parametrize("verb", [attnscope.explain, attnscope.roles, attnscope.received])
def test_verbs_that_read_texts_alone_reject_them_by_name(verb):
    with pytest.raises(AttnscopeError, match=f"found images, and {verb.__name__} reads only texts. Use scan, "):
        verb(vision_model("vit")[0], PIXELS)
    line = {"text": "<image> What?", "images": [picture(0)]}
    with pytest.raises(AttnscopeError, match=r"found texts with images, .* the field of the text"):
        verb("bundled", [line])


@pytest.mark.parametrize("read", [attnscope.weights, attnscope.received])
def test_numbers_are_those_of_the_requested_dtype(read):
    half = load_model(MODEL, device="cpu", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16
    found = read("bundled", TEXT, device="cpu", dtype="bfloat16").values
    np.testing.assert_array_equal(found, read(half, TEXT).values)
    assert not np.array_equal(found, read("bundled", TEXT, device="cpu", dtype="float32").values)
    with pytest.raises(AttnscopeError, match="found dtype 'half'; expected one of float32, float16"):
        read("bundled", TEXT, dtype="half")


def test_a_model_outside_the_registry_has_its_eager_weights():
    """Bloom's attention is captured by its weights alone, also before any scan."""
    model, tokenizer = tiny_reader("bloom")
    found = attnscope.weights(model, "The tide is out.", tokenizer=tokenizer, layer=1, head=1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = tokenizer("The tide is out.", return_tensors="pt").input_ids
        eager = model(ids, output_attentions=True).attentions[1][0, 1]
    np.testing.assert_allclose(found.values, eager, atol=1e-6)
    shown = attnscope.view(model, "The tide is out.", tokenizer=tokenizer, layer=1, head=1)
    np.testing.assert_allclose(shown.weights.values, eager, atol=1e-6)
