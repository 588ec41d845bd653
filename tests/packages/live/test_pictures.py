"""A live view of pictures: weights and predictions next to eager attention, and pictures that a page sends."""

import base64
import contextlib
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, ViTForImageClassification

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.modalities import load_pictured_model
from attnscope.read.image_text import pictured_of
from attnscope.results.page.parts import encode
from attnscope_live import pictures
from tests.cli.command import attnscope as command
from tests.image_models import vision_model, write_pictures
from tests.image_text_models import picture, save_pictured_model
from tests.speech_models import SAID, save_whisper, write_sounds

QUESTION = "What is this?"


def sent(image, kind="PNG"):
    """The bytes of a picture as a page sends them."""
    file = io.BytesIO()
    image.save(file, kind)
    return {"data": base64.b64encode(file.getvalue()).decode()}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    place = tmp_path_factory.mktemp("vit, small")
    model, processor = vision_model("vit")
    model.save_pretrained(place / "model")
    processor.save_pretrained(place / "model")
    path = next(write_pictures(place / "pictures").glob("*.png"))
    return place / "model", path


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    place = tmp_path_factory.mktemp("llava, small")
    picture(1).save(place / "picture.png")
    return save_pictured_model("llava", place / "model"), place / "picture.png"


def test_a_picture_shows_the_weights_and_labels_of_eager_attention(vit):
    folder, path = vit
    view = attnscope.view(folder, path, layer=1, head=1)
    model = ViTForImageClassification.from_pretrained(folder, attn_implementation="eager").eval()
    processor = view.conversation.reader.vision.processor
    pixels = processor(images=Image.open(path).convert("RGB"), return_tensors="pt")
    with torch.no_grad():
        output = model(**pixels, output_attentions=True)
    np.testing.assert_allclose(view.weights, output.attentions[1][0, 1], atol=1e-6)
    assert view.weights.query_token.values[:2].tolist() == ["[class]", "r0c0"]
    conversation = view.conversation.another()
    look = conversation.answer("look", {"text": "", "picture": "first"}).content
    (shown,) = look["views"]
    assert (shown["rows"], shown["columns"], shown["tokens"]) == (4, 4, [*range(1, 17)])
    assert shown["source"].startswith("data:image/jpeg;base64,")
    rows = conversation.answer("predict", {"position": 0}).content["rows"]
    chances = {row["token"]: row["before"] for row in rows}
    logs = output.logits[0].log_softmax(-1).tolist()
    assert chances == pytest.approx({f"LABEL_{i}": log for i, log in enumerate(logs)}, abs=1e-5)


def test_heads_of_a_picture_are_taken_out(vit):
    folder, path = vit
    conversation = attnscope.view(folder, path).conversation
    conversation.answer("look", {"text": "", "picture": "first", "removed": [[0, 1], [1, 0]]})
    rows = conversation.answer("predict", {"position": 0}).content["rows"]
    model = ViTForImageClassification.from_pretrained(folder).eval()
    pixels = conversation.reader.vision.processor(images=Image.open(path).convert("RGB"), return_tensors="pt")
    with torch.no_grad():
        for layer, head in ((0, 1), (1, 0)):
            projection = model.vit.layers[layer].attention.o_proj.weight
            projection[:, head * 8 : (head + 1) * 8] = 0
        logs = model(**pixels).logits[0].log_softmax(-1)
    assert {row["id"]: row["after"] for row in rows} == pytest.approx(dict(enumerate(logs.tolist())), abs=1e-5)


def test_a_text_with_a_picture_shows_the_weights_of_eager_attention(llava):
    folder, path = llava
    view = attnscope.view(folder, QUESTION, image=path)
    conversation = view.conversation
    written = [5, 6]
    look = conversation.answer("look", {"text": QUESTION, "picture": "first", "written": written}).content
    pictured = load_pictured_model(folder)
    (item,) = pictured_of({"text": f"<image> {QUESTION}", "images": [path]})
    _, inputs = pictured.read(item, to_continue=True)
    ids = torch.cat([inputs["input_ids"], torch.tensor([written])], 1)
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        output = model(input_ids=ids, pixel_values=inputs["pixel_values"], output_attentions=True)
    shape, (codes,) = (conversation.answer("map", {"layer": 1, "head": 3})[i] for i in range(2))
    expected = encode(output.attentions[1][0, 3].numpy()).astype(int)
    sent_codes = np.frombuffer(codes, np.uint8).reshape(shape["n"], shape["m"]).astype(int)
    assert np.abs(sent_codes - expected).max() <= 1  # a step of the code
    rows = conversation.answer("predict", {"position": look["position"]}).content["rows"]
    best = output.logits[0, -1].log_softmax(-1).topk(10)
    assert [row["id"] for row in rows] == best.indices.tolist()
    np.testing.assert_allclose([row["before"] for row in rows], best.values, atol=1e-5)
    assert look["texts"]["text"]["tokens"][look["views"][0]["tokens"][5]] == "image 1 r1c1"
    assert len(view.weights.key_token) == len(ids[0]) - len(written)


def test_the_text_is_changed_and_its_heads_are_taken_out(llava):
    folder, path = llava
    conversation = attnscope.view(folder, QUESTION, image=path).conversation
    look = conversation.answer("look", {"text": "A boat.", "picture": "first", "removed": [[0, 2]]}).content
    rows = conversation.answer("predict", {"position": look["position"]}).content["rows"]
    assert max(abs(row["after"] - row["before"]) for row in rows) > 1e-4
    shares = conversation.answer("shares", {"position": look["position"]}).content["shares"]
    assert len(shares) == 8
    assert conversation.answer("look", {"text": "No picture."}).content["views"] == []


def test_weight_in_a_box_is_that_of_eager_attention(llava):
    folder, path = llava
    conversation = attnscope.view(folder, QUESTION, image=path).conversation
    look = conversation.answer("look", {"text": QUESTION, "picture": "first"}).content
    keys, query = look["views"][0]["tokens"][2:5], look["position"]
    heads = conversation.answer("inside", {"query": query, "keys": [*keys, keys[0]]}).content["heads"]
    (item,) = pictured_of({"text": f"<image> {QUESTION}", "images": [path]})
    _, inputs = load_pictured_model(folder).read(item, to_continue=True)
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    found = {(one["layer"], one["head"]): one["share"] for one in heads}
    expected = {
        (layer, head): float(weights[0, head, query, keys].sum())
        for layer, weights in enumerate(attentions)
        for head in range(weights.shape[1])
    }
    assert found == pytest.approx(expected, abs=1e-5)
    assert [one["chance"] for one in heads] == pytest.approx([3 / (query + 1)] * len(heads))
    error = conversation.reply("inside", {"query": 10_000, "keys": [0]}, lambda: False).content["error"]
    assert "found the position 10000" in error


def test_a_chat_is_written_by_the_template_of_the_model(llava):
    folder, path = llava
    conversation = attnscope.view(folder, QUESTION, image=path).conversation
    assert conversation.about["chats"]
    plain = conversation.answer("look", {"text": QUESTION, "picture": "first"}).content
    look = conversation.answer("look", {"text": QUESTION, "picture": "first", "chat": True}).content
    processor = AutoProcessor.from_pretrained(folder)
    said = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    text = processor.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=[text], images=[Image.open(path).convert("RGB")], return_tensors="pt")
    ids = inputs["input_ids"][:, :-1]  # without the end that the tokenizer adds: the model is to answer
    assert list(conversation.looked.plain.window.ids) == ids[0].tolist()
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    with torch.no_grad():
        best = model(input_ids=ids, pixel_values=inputs["pixel_values"]).logits[0, -1].log_softmax(-1).topk(10)
    np.testing.assert_allclose([row["before"] for row in look["rows"]], best.values, atol=1e-5)
    assert len(look["texts"]["text"]["tokens"]) > len(plain["texts"]["text"]["tokens"])


def test_a_picture_that_a_page_sends_takes_the_place_of_the_first(vit):
    folder, path = vit
    conversation = attnscope.view(folder, path).conversation
    other = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))
    name = conversation.answer("picture", sent(other)).content["picture"]
    conversation.answer("look", {"text": "", "picture": name})
    np.testing.assert_allclose(
        conversation.maps.weights(1, 1), attnscope.weights(folder, [other], layer=1, head=1), atol=1e-5
    )
    assert "picture" in conversation.answer("picture", sent(other, "WEBP")).content
    for question, words in (
        (sent(other, "BMP"), "found no picture that can be read; expected PNG, JPEG, WEBP"),
        ({"data": base64.b64encode(b"<svg/>").decode()}, "found no picture that can be read"),
        ({"data": 5}, "data: "),
    ):
        assert words in conversation.reply("picture", question, lambda: False).content["error"]
    assert "no longer here" in conversation.reply("look", {"text": "", "picture": "x"}, lambda: False).content["error"]
    assert "found no picture" in conversation.reply("look", {"text": ""}, lambda: False).content["error"]


def test_large_pictures_are_rejected(monkeypatch):
    with pytest.raises(AttnscopeError, match=r"bytes; expected at most 8,388,608: make it smaller"):
        pictures.open_picture(bytes(pictures.LARGEST + 1))
    monkeypatch.setattr(pictures, "_MOST_PIXELS", 100)
    with pytest.raises(AttnscopeError, match="20 x 20 pixels: make it smaller"):
        pictures.open_picture(base64.b64decode(sent(Image.new("RGB", (20, 20)))["data"]))


def test_what_cannot_be_shown_is_said(vit, llava, tmp_path):
    texts = attnscope.view("bundled", "The tide.").conversation
    assert "reads no pictures" in texts.reply("picture", sent(picture(0)), lambda: False).content["error"]
    with pytest.raises(AttnscopeError, match="expected one: choose one"):
        attnscope.view(vit[0], vit[1].parent)
    with pytest.raises(AttnscopeError, match=r"image \(--image\) needs one text in quotes"):
        attnscope.view(llava[0], [QUESTION], image=llava[1])
    for part in vision_model("swin"):
        part.save_pretrained(tmp_path / "swin")
    with pytest.raises(AttnscopeError, match="has no map over a picture"):
        attnscope.view(tmp_path / "swin", vit[1])
    with pytest.raises(AttnscopeError, match="targets need texts or sounds"):
        attnscope.view(*vit, targets=["A boat."])
    with pytest.raises(AttnscopeError, match="pair and window need plain texts"):
        attnscope.view(*vit, window=5)


def test_a_sound_has_a_page_alone(tmp_path):
    write_sounds(tmp_path / "sounds")
    save_whisper(tmp_path / "whisper")
    folder, sound = tmp_path / "whisper", tmp_path / "sounds" / "0.wav"
    view = attnscope.view(folder, sound, targets=[SAID[0]], layer=3, head=1)
    expected = attnscope.weights(folder, sound, targets=[SAID[0]], layer=3, head=1)
    np.testing.assert_allclose(view.weights, expected, atol=1e-6)
    assert view.weights.key_token.values[0] == "0.00s"
    assert view.save(tmp_path / "sound.html").stat().st_size > 10_000
    told = command("view", "whisper", "sounds/0.wav", cwd=tmp_path)
    assert told.returncode == 2
    assert "whisper is not shown live: write a page with --page FILE" in told.stderr


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize("more", [{}, {"chat": True}, {"written": (5, 6)}, {"picture": None}])
def test_the_copied_python_of_a_text_with_a_picture_prints_the_same_numbers(llava, more, by):
    conversation = attnscope.view(llava[0], QUESTION, image=llava[1]).conversation
    asked = {"text": QUESTION, "picture": "first", **more}
    look = conversation.answer("look", {**asked, "removed": ((0, 1), (1, 2)), "by": by}).content
    check_copied(conversation, look)
    conversation.answer("look", asked)
    position = look["position"]
    code = conversation.answer("code", {"layer": 1, "head": 2, "position": position}).content
    row = np.frombuffer(
        conversation.answer("row", {"layer": 1, "head": 2, "token": position, "direction": "from"}).arrays[0],
        np.float32,
    )
    assert numbers_of(printed(code["python"])) == pytest.approx(row, abs=1e-4)
    assert bool(code["command"]) == (more in ({}, {"picture": None}))


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_the_copied_python_of_a_picture_prints_the_same_numbers(vit, by):
    conversation = attnscope.view(*vit).conversation
    look = conversation.answer("look", {"text": "", "picture": "first", "removed": ((1, 1),), "by": by}).content
    check_copied(conversation, look)


def check_copied(conversation, look):
    rows = {row["id"]: row for row in look["rows"]}
    code = conversation.answer("code", {"layer": 0, "head": 0, "position": look["position"]}).content
    assert not code["command"]
    for line in printed(code["python"]).splitlines():
        index, *logs = re.fullmatch(r"(\d+) .* (\S+) (\S+)", line).groups()
        row = rows[int(index)]
        assert [float(log) for log in logs] == pytest.approx([row["before"], row["after"]], abs=1e-4)


def numbers_of(text):
    return [float(number) for number in re.findall(r"\d\.\d+(?:e-\d+)?", text)]


def printed(code):
    with contextlib.redirect_stdout(io.StringIO()) as lines, torch._tensor_str.printoptions(threshold=100_000):
        exec(code, {})  # noqa: S102
    return lines.getvalue()
