"""The published circuit of a classifier of bracket strings is found without being named."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from attnscope import patch
from attnscope.capture.borrow import LoadedModel
from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM

WIDTH = 56


def classifier(folder):
    """3 layers x 2 heads; its answer at [start], which stands for a mask: ")" for balanced, "(" for unbalanced."""
    stored = load_file(folder / "model.safetensors")
    sizes = {"vocab_size": 5, "width": WIDTH, "heads": 2, "feed_forward": WIDTH, "encoder_layers": 3, "dropout": 0.0}
    places = {"max_position_embeddings": 42, "positions": "learned", "norm": "pre", "pad_token_id": 1}
    model = EncoderForMaskedLM(EncoderConfig(**sizes, **places)).eval()
    model.lm_head = torch.nn.Linear(WIDTH, 5)
    own = {"embedding.weight": stored["embed.W_E"] * WIDTH**-0.5}  # the model multiplies by the root of the width
    own["encoder.embedding.weight"] = own["embedding.weight"]
    own["encoder.add_positions.position_embeddings.weight"] = stored["pos_embed.W_pos"] * WIDTH**-0.5
    blank = torch.zeros(3, WIDTH)
    own["lm_head.weight"] = torch.cat([blank, stored["unembed.W_U"].T])
    own["lm_head.bias"] = torch.cat([blank[:, 0], stored["unembed.b_U"]])
    norms = {"encoder.norm": "ln_final"}
    for number in range(3):
        ours, theirs = f"encoder.layers.{number}", f"blocks.{number}"
        norms |= {f"{ours}.around_attention.norm": f"{theirs}.ln1", f"{ours}.around_feed_forward.norm": f"{theirs}.ln2"}
        for name in "QKV":
            weight = stored[f"{theirs}.attn.W_{name}"].transpose(1, 2).reshape(WIDTH, WIDTH)
            own[f"{ours}.self_attention.{name.lower()}_proj.weight"] = weight
            own[f"{ours}.self_attention.{name.lower()}_proj.bias"] = stored[f"{theirs}.attn.b_{name}"].flatten()
        own[f"{ours}.self_attention.out_proj.weight"] = stored[f"{theirs}.attn.W_O"].reshape(WIDTH, WIDTH).T
        own[f"{ours}.self_attention.out_proj.bias"] = stored[f"{theirs}.attn.b_O"]
        for name, side in (("up", "in"), ("down", "out")):
            own[f"{ours}.feed_forward.{name}.weight"] = stored[f"{theirs}.mlp.W_{side}"].T
            own[f"{ours}.feed_forward.{name}.bias"] = stored[f"{theirs}.mlp.b_{side}"]
    for name, theirs in norms.items():
        own |= {f"{name}.weight": stored[f"{theirs}.w"], f"{name}.bias": stored[f"{theirs}.b"]}
    model.load_state_dict(own)
    words = {"[start]": 0, "[pad]": 1, "[end]": 2, "(": 3, ")": 4}
    backend = Tokenizer(WordLevel(words, unk_token="[pad]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[start]", 0), ("[end]", 2)]
    backend.post_processor = processors.TemplateProcessing(single="[start] $A [end]", special_tokens=ends)
    special = {"pad_token": "[pad]", "unk_token": "[pad]", "mask_token": "[start]"}
    return LoadedModel(model, PreTrainedTokenizerFast(tokenizer_object=backend, **special), "brackets", {})


@pytest.fixture(scope="module")
def brackets(models):
    folder = models / "brackets-3l"
    if not folder.is_dir():
        pytest.skip("no brackets-3l")
    return classifier(folder), json.loads((folder / "brackets.json").read_text(encoding="utf-8"))


def test_the_classifier_answers_right(brackets):
    loaded, strings = brackets
    for text, balanced in strings[:200]:
        ids = torch.tensor([loaded.tokenizer(" ".join(text))["input_ids"]])
        assert bool(loaded.model(ids).logits[0, 0].diff()[3] > 0) == balanced


@pytest.mark.parametrize(
    ("corrupt", "head", "other"),
    [(lambda text: ")" + text[1:], 0, 1), (lambda text: text[::-1], 1, 0)],
    ids=["count", "order"],
)
def test_one_head_reads_the_count_and_another_the_order(brackets, corrupt, head, other):
    loaded, strings = brackets
    texts = [text for text, balanced in strings if balanced and 14 <= len(text) <= 30][:60]
    pairs = [
        {"clean": " ".join(text), "corrupted": " ".join(corrupt(text)), "answer": ")", "wrong": "("} for text in texts
    ]
    found = patch(loaded, pairs, steps=0)["patched"]
    share = found.recovered.values
    assert np.unravel_index(share.argmax(), share.shape) == (2, head)
    assert bool(found.shown[2, head])
    assert float(found.recovered_low[2, head]) > 2 * float(found.recovered_high[2, other])
