"""Arguments that name heads, layers or parts of a text are rejected before weights are loaded."""

import copy

import numpy as np
import pytest
import torch
import transformers as T

import attnscope
import attnscope_cards
import attnscope_lineage
from attnscope.capture.outline import outlined
from attnscope.capture.verify import verify
from attnscope.catalogue import function_of
from attnscope.support.errors import AttnscopeError
from attnscope_zoo.catalogue import build
from tests.image_models import save_vision_model, write_pictures
from tests.tiny_models import tiny

_PAIR = [{"clean": "t16 t3", "corrupted": "t17 t3", "answer": "t7", "wrong": "t9"}]
_IS_ABSENT = {
    "scan": {"show": [(0, 9)]},
    "examples": {"heads": [(9, 0)]},
    "explain": {"layer": 0, "head": 9},
    "attribute": {"head": (0, 9)},
    "intervene": {"together": [[(0, 0), (0, 9)]]},
    "weights": {"head": 9},
    "received": {"layer": 9},
    "view": {"layer": 0, "head": 9},
    "walk": {"layer": 9},
    "head_outputs": {"layer": 9},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A causal model with its tokenizer, of two layers with two heads."""
    path, tokenizer = tmp_path_factory.mktemp("model"), build("previous-decoder-2").tokenizer
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    T.LlamaForCausalLM(T.LlamaConfig(**sizes, **ids, max_position_embeddings=64)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def no_weights(monkeypatch, folder):
    def load(*_, **__):
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(T.PreTrainedModel, "from_pretrained", load)


@pytest.mark.parametrize("verb", _IS_ABSENT)
def test_an_absent_head_is_rejected_before_weights_are_loaded(verb, folder):
    with pytest.raises(AttnscopeError, match=r"there is no (head|layer).*: layers go from 0 to 1, heads from 0 to 1"):
        function_of(verb)(folder, "t3 t4 t5", **_IS_ABSENT[verb])


@pytest.mark.parametrize("more", [{"together": ["0.1,0.9"]}, {"receiver": "9.0.q"}, {"together": ["0.1,m2"]}])
def test_an_absent_component_is_rejected_before_weights_are_loaded(more, folder):
    with pytest.raises(AttnscopeError, match=r"there is no (head 0\.9|head 9\.0|MLP m2)"):
        attnscope.patch(folder, _PAIR, **more)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("heads.txt", "L1H5", "lists head 1.5, which"),
        ("heads.tsv", "1\t0\t0\n0\t0\t0", "a table of 2 x 3, and the model has 2 x 2"),
        ("heads.json", '[{"0": ["stream_llm", 1, 2, 1.0]}]', "patterns of 1 layers, and the model has 2"),
    ],
)
def test_a_published_list_of_another_model_is_rejected_before_weights_are_loaded(name, text, message, folder, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(AttnscopeError, match=message):
        attnscope_cards.card(folder, ["t3 t4 t5"], published=tmp_path / name)


def test_an_absent_head_to_edit_is_rejected_before_weights_are_loaded(folder):
    with pytest.raises(AttnscopeError, match=r"there is no head 0\.2 \(heads\)"):
        attnscope.edit(str(folder), {(0, 2): torch.zeros_like}).__enter__()


def test_an_absent_layer_of_a_decoder_is_rejected_before_weights_are_loaded(folder, tmp_path):
    tiny("bart").save_pretrained(tmp_path)
    with pytest.raises(AttnscopeError, match=r"there is no layer 2 .*: layers go from 0 to 1, heads from 0 to 3"):
        attnscope_lineage.align(tmp_path, ["A b."], ["C d."], layer=2, tokenizer=str(folder))


def test_what_a_tokenizer_tells_is_checked_before_weights_are_loaded(folder):
    with pytest.raises(AttnscopeError, match="matches none of the 2 prompts"):
        attnscope.generate(folder, ["t3 t4", "t5 t6"], spans={"document": "<doc>"}, new_tokens=4)
    with pytest.raises(AttnscopeError, match="cannot generate"):
        attnscope.generate("bundled", ["The tide"])


def test_heads_that_exist_pass(folder):
    for verb, more in {"attribute": {"head": (1, 1)}, "scan": {"show": [(1, 1)]}, "weights": {"layer": 1}}.items():
        with pytest.raises(AttnscopeError, match="the weights were loaded"):
            function_of(verb)(folder, "t3 t4 t5", **more)


@pytest.mark.parametrize("family", ["albert", "gpt2", "gemma2", "gpt_oss", "t5", "bart", "falcon_h1", "deberta"])
def test_an_outline_has_the_attention_calls_of_the_model(family):
    """Or none, where the model does not tell them without numbers."""
    model, ids = tiny(family), torch.arange(3, 11)[None]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    with torch.device("meta"):
        sites = outlined(type(model)._from_config(copy.deepcopy(model.config)))
    expected = verify(model, inputs, weights_suffice=True)
    if family == "deberta":
        assert not sites
    else:
        assert [(site.name, site.heads) for site in sites] == [(site.name, site.heads) for site in expected]


@pytest.mark.parametrize("family", ["vit", "clip", "wav2vec2"])
@pytest.mark.parametrize("verb", ["intervene", "attribute"])
def test_an_absent_head_of_images_and_sounds_is_rejected_before_weights_are_loaded(family, verb, tmp_path):
    media = [{"array": np.zeros(1600, np.float32), "sampling_rate": 16_000}]
    if family == "wav2vec2":
        small = {"conv_dim": [8], "conv_stride": [10], "conv_kernel": [10], "num_conv_pos_embeddings": 8}
        small |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = T.Wav2Vec2Config(**small, num_feat_extract_layers=1, num_conv_pos_embedding_groups=2)
        T.Wav2Vec2ForSequenceClassification(config).save_pretrained(tmp_path / "model")
        T.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path / "model")
    else:
        save_vision_model(family, tmp_path / "model")
        media = write_pictures(tmp_path / "files")
    with pytest.raises(
        AttnscopeError, match=r"there is no head 7\.0 \(heads.*: layers go from 0 to 1, heads from 0 to 1"
    ):
        function_of(verb)(tmp_path / "model", media, heads="7.0")
