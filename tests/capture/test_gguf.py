"""Models in .gguf files: the numbers of the model that was written into them."""

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import LlamaConfig, LlamaForCausalLM

import attnscope
from attnscope.capture.load import load_model

gguf = pytest.importorskip("gguf")
WORDS = ["<unk>", "<s>", "</s>", "▁", *"abcehmnostA1", "at", "he", "▁t", "▁c", "▁cat"]
PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "mlp.up_proj": "ffn_up",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "model.layers.": "blk.",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(WORDS), num_hidden_layers=2, max_position_embeddings=64, **SIZES)
    )


@pytest.fixture
def file(model, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    return written(model, tmp_path / "tiny.gguf")


def written(model, path, blocks=2, feed_forward=SIZES["intermediate_size"]):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(blocks)
    writer.add_context_length(64)
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types([2, 3, 3, *([1] * (len(WORDS) - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, tensor in model.state_dict().items():
        heads = SIZES["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # this format has the two halves of a rotated pair next to each other
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        renamed = name
        for old, new in PARTS.items():
            renamed = renamed.replace(old, new)
        writer.add_tensor(renamed, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_has_the_weights_of_the_model(file, model):
    """The file's model gives the logits of the model that was written, and verbs take its name."""
    loaded = load_model(str(file))
    ids = torch.tensor([[1, 3, 4, 5, 6, 3, 7]])
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    assert loaded.name == "tiny.gguf"
    scanned = attnscope.scan(str(file), ["the cat sat on the mat"])
    eager = model.eval()
    eager.set_attn_implementation("eager")
    tokens = loaded.tokenizer("the cat sat on the mat", return_tensors="pt").input_ids
    first = torch.stack(eager(tokens, output_attentions=True).attentions)[:, 0, :, :, 0].mean(-1)
    np.testing.assert_allclose(scanned.first_token.mean("window"), first.detach(), atol=1e-5)


def test_is_converted_once(file, monkeypatch):
    """A second load reads the folder of the first."""
    first = load_model(file)
    monkeypatch.setattr("attnscope.capture.checkpoint._convert", lambda *_: pytest.fail("converted again"))
    assert load_model(file).identity == first.identity


@pytest.mark.parametrize("content", [b"", b"PK\3\4 a zip file", b"GGUF\3\0\0\0 and nothing of what should follow"])
def test_rejects_other_files(tmp_path, monkeypatch, content):
    """A file of something else is an error, and leaves nothing behind."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "other.gguf").write_bytes(content)
    with pytest.raises(attnscope.AttnscopeError, match=r"not a GGUF file|cannot be converted"):
        load_model(tmp_path / "other.gguf")
    assert not list(tmp_path.glob("cache/attnscope/gguf/*"))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"blocks": 2**30}, "describes 1,073,741,824 layers"),
        ({"feed_forward": 2**28}, "describes a model of more than"),
    ],
)
def test_rejects_sizes_beyond_the_weights(model, tmp_path, monkeypatch, sizes, said):
    """Sizes that the file states are held against its tensors before a model is built."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(attnscope.AttnscopeError, match=said):
        load_model(written(model, tmp_path / "hostile.gguf", **sizes))
