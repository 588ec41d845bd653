"""`generate` of vision-language models: weights on images and their patches, next to eager attention."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.modalities import load_pictured_model
from attnscope.read.image_text import pictured_of
from tests.image_text_models import FAMILIES, blue_at, picture, save_looking_llava, save_pictured_model, write_pictured

NEW = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_pictured(tmp_path_factory.mktemp("corpus") / "pictures")


def eager_weights(folder, item, ids):
    """Weights of all heads over a text and what was written, ``(layer, head, query, key)``, by transformers itself."""
    pictured = load_pictured_model(folder)
    _, inputs = pictured.read(item)
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.tensor([ids])
    prompt = inputs["input_ids"].shape
    for name, value in inputs.items():
        if value.shape == prompt:
            inputs[name] = torch.nn.functional.pad(value[:, : len(ids)], (0, max(0, len(ids) - prompt[1])))
    inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with torch.no_grad():
        return torch.stack(model(**inputs, output_attentions=True, use_cache=False).attentions)[:, 0].double().numpy()


@pytest.mark.parametrize("family", [*FAMILIES, "gemma3"])
def test_weights_on_images_are_those_of_eager_attention(family, corpus, tmp_path):
    folder = save_pictured_model(family, tmp_path / "model")
    results = attnscope.generate(folder, corpus / "texts.jsonl", new_tokens=NEW)
    assert float(results.attrs["full_pass"]) < 1e-5
    assert results.span.values.tolist() == ["prompt", "image 1", "image 2", "text", "special", "own output"]
    for text, item in zip(
        (results.isel(sequence=i) for i in range(2)), pictured_of(corpus / "texts.jsonl"), strict=False
    ):
        length, steps = int(text.prompt_length), int(text.length)
        ids = text.text_token_id.values[: length + steps - 1].tolist()
        weights = eager_weights(folder, item, ids)[:, :, length - 1 :].transpose(2, 0, 1, 3)  # (step, layer, head, key)
        names = text.text_token.values[: length + steps - 1]
        for image in ("image 1", "image 2"):
            keys = np.array([str(name).startswith(image) for name in names])
            share = text.span_weight.sel(span=image).values[:steps]
            np.testing.assert_allclose(share, weights[..., keys].sum(-1) if keys.any() else np.nan, atol=1e-5)
        np.testing.assert_allclose(
            text.span_weight.sel(span="own output")[:steps], weights[..., length:].sum(-1), atol=1e-5
        )
        positions = text.patch_position.values[text.patch_position.values >= 0]
        assert [str(name)[:5] for name in names[positions]] == ["image"] * len(positions)
        np.testing.assert_allclose(text.patch_weight[:steps, ..., : len(positions)], weights[..., positions], atol=1e-5)
        own = weights[np.arange(steps), :, :, length - 1 + np.arange(steps)]
        np.testing.assert_allclose(text.bin_weight.sel(offset_bin=0)[:steps], own, atol=1e-5)
    parts = results.span_weight.sel(span=["image 1", "image 2", "text", "special", "own output"]).sum("span")
    np.testing.assert_allclose(parts.isel(sequence=1, step=slice(int(results.length[1]))), 1.0, atol=1e-5)
    without = results.isel(sequence=2)
    assert bool(without.patch_weight.isnull().all())
    assert bool(without.span_weight.sel(span="image 1").isnull().all())


def test_a_planted_head_writes_looking_at_the_blue_patch(tmp_path):
    folder = save_looking_llava(tmp_path / "llava")
    texts = [{"text": "<image> Where is it?", "images": [blue_at(row, column)]} for row, column in ((2, 1), (0, 3))]
    results = attnscope.generate(folder, texts, new_tokens=3, spans={"question": "Where...?"})
    looked = results.patch_weight.isel(layer=0, head=0).mean("step").argmax("patch").values
    assert [divmod(int(patch), 4) for patch in looked] == [(2, 1), (0, 3)]
    assert float(results.span_weight.isel(layer=0, head=0).sel(span="image").min()) > 0.9
    assert float(results.span_weight.isel(layer=0, head=0).sel(span="question").max()) < 0.05
    assert results.view_rows.values.tolist() == results.view_columns.values.tolist() == [[4], [4]]


def test_chats_are_continued_at_the_assistants_answer(corpus, tmp_path):
    folder = save_pictured_model("llava", tmp_path / "model")
    results = attnscope.generate(folder, corpus / "chats.jsonl", new_tokens=2)
    prompt = "".join(results.text_token.values[0, : int(results.prompt_length[0])])
    assert "What is this?" in prompt
    assert "A boat on the mud." not in prompt
    assert "user" in results.span.values


def test_a_run_is_stored_and_other_inputs_are_rejected(corpus, tmp_path):
    folder = save_pictured_model("llava", tmp_path / "model")
    asked = {"new_tokens": 2, "limit": 2, "out": tmp_path / "run"}
    results = attnscope.generate(folder, corpus / "texts.jsonl", **asked)
    again = attnscope.generate(folder, corpus / "texts.jsonl", **asked)
    np.testing.assert_array_equal(again.patch_weight, results.patch_weight)
    settings = json.loads(results.attrs["signature"])["settings"]
    assert len(settings["read"]) == 64
    with pytest.raises(AttnscopeError, match="are continued one at a time"):
        attnscope.generate(folder, corpus / "texts.jsonl", batch_size=2)
    with pytest.raises(AttnscopeError, match=r"window \(--window\) needs plain texts"):
        attnscope.generate(folder, corpus / "texts.jsonl", window=20)
    with pytest.raises(AttnscopeError, match="takes 512 in all: lower it, or use smaller or fewer images"):
        attnscope.generate(folder, corpus / "texts.jsonl", new_tokens=500)
    with pytest.raises(AttnscopeError, match="found images, and generate reads only texts"):
        attnscope.generate(folder, [picture(0)])
