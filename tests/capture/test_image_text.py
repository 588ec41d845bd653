"""Models of vision and language and their processors: what is loaded, and what is refused in a line."""

import json

import pytest
import transformers
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from attnscope import AttnscopeError
from attnscope.capture.load import Loading
from attnscope.capture.modalities import load_pictured_model
from attnscope.read.image_text import pictured_of
from tests.image_text_models import TEMPLATE, picture, save_pictured_model

TEXT = {"text": "<image> What?", "images": [picture(0)]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_pictured_model("llava", tmp_path_factory.mktemp("llava") / "model")


def read(model, line, template=None):
    [item] = pictured_of([line])
    return model.read(item, template)


def test_the_decoder_is_what_reads_the_text_with_images_in_it(folder):
    model = load_pictured_model(folder, loading=Loading(device="cpu"))
    assert type(model.decoder).__name__ == "LlamaModel"
    expanded, given = read(model, TEXT)
    assert len(expanded.image_tokens()[0]) == 16
    assert set(given) == {"input_ids", "attention_mask", "pixel_values"}
    assert model.decoder_inputs(given)["inputs_embeds"].shape[1] == len(expanded.ids)


def test_a_mark_of_the_models_own_may_be_written(tmp_path):
    model = load_pictured_model(save_pictured_model("qwen2_vl", tmp_path / "model"), loading=Loading(device="cpu"))
    whole = "<|vision_start|><|image_pad|><|vision_end|>"
    texts = ("<image> What?", f"{whole} What?", "<|image_pad|> What?")
    plain, own, bare = (read(model, {**TEXT, "text": text})[0].ids for text in texts)
    assert plain == own
    ends = model.loaded.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    assert bare == tuple(token for token in own if token not in ends)  # as typed


def test_contents_of_a_chat_are_found_in_what_the_processor_writes(folder):
    model = load_pictured_model(folder, loading=Loading(device="cpu"))
    chat = [{"role": "user", "content": "Look: <image>is it out?"}, {"role": "assistant", "content": "No."}]
    expanded, _ = read(model, {"messages": chat, "images": [picture(0)]})
    said = [(expanded.text[one.start : one.end], one.role) for one in expanded.contents]
    assert said == [("Look: ", "user"), ("is it out?", "user"), ("No.", "assistant")]
    without = {"messages": chat, "images": [picture(0)]}
    with pytest.raises(AttnscopeError, match="template rejects it"):
        read(model, without, "{{ raise_exception('no') }}")
    with pytest.raises(AttnscopeError, match="without any message"):
        read(model, without, "<image>")
    model.processor.chat_template = model.processor.tokenizer.chat_template = None
    with pytest.raises(AttnscopeError, match="has no chat template: give a Jinja file"):
        read(model, without)
    other, _ = read(model, without, TEMPLATE.replace("MARK", "<image>").replace("]", ">"))
    assert "[user>" in other.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"processor_class": "PixtralProcessor"}, "cannot be loaded: PixtralProcessor requires the Torchvision"),
        ({"processor_class": "LlavaModel"}, "refers to no processor"),
        ({"audio_tokenizer": {"audio_tokenizer_name_or_path": "x/y"}}, "refers to another checkpoint"),
    ],
)
def test_processors_that_cannot_be_had_are_rejected(folder, tmp_path, settings, said):
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    AutoImageProcessor.from_pretrained(folder, backend="pil").save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(settings))
    model = AutoModelForImageTextToText.from_pretrained(folder)
    with pytest.raises(AttnscopeError) as caught:
        load_pictured_model(model, processor=tmp_path)
    assert said in str(caught.value)


def test_a_model_object_finds_its_processor_where_it_was_loaded_or_asks_for_it(folder):
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert load_pictured_model(model).processing() == load_pictured_model(folder).processing()
    model.config.name_or_path = ""
    with pytest.raises(AttnscopeError, match="without its processor: pass tokenizer="):
        load_pictured_model(model)
    with pytest.raises(AttnscopeError, match="is not a processor of Llava"):
        load_pictured_model(model, processor=AutoTokenizer.from_pretrained(folder))
    small = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    config = transformers.CLIPConfig(text_config=small, vision_config={**small, "image_size": 8, "patch_size": 4})
    with pytest.raises(AttnscopeError, match="CLIPModel does not read texts with images"):
        load_pictured_model(transformers.CLIPModel(config))
