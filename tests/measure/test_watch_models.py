"""`watch` on models of transformers and of timm's kind: keys that are no tokens, eager and hand-written layers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import DiffLlamaConfig, DiffLlamaModel, DynamicCache

import attnscope
from attnscope.support.errors import AttnscopeError
from attnscope_monitor import HeadMonitor
from tests.tiny_models import tiny

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
IDS = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
NAMES = ["entropy", "mean_offset", "first_token", "profile"]


def large(model):
    """With heads that differ."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, 0, 0.3)
    return model.eval()


def watched(model, *given, **named):
    with torch.no_grad(), attnscope.watch(model, statistics=NAMES, band=3) as seen:
        model(*given, **named)
    return seen.result()


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny("gemma2").model,
        lambda: tiny("gpt_oss").model,
        lambda: large(DiffLlamaModel(DiffLlamaConfig(**SIZES))),
    ],
    ids=["gemma2", "gpt_oss", "diffllama"],
)
def test_layers_set_to_eager_are_measured_as_the_weights_that_they_return(make):
    model = make()
    model.set_attn_implementation("eager")
    found = watched(model, IDS)
    with torch.no_grad():
        unwatched = model(IDS, output_attentions=True)
        with attnscope.watch(model):
            same = model(IDS)
    wide = [layer.double() for layer in unwatched.attentions]
    expected = attnscope.measure_weights(wide, statistics=NAMES, band=3)
    assert torch.equal(same.last_hidden_state, unwatched.last_hidden_state)
    assert found.layer_kind.values.tolist() == ["causal", "causal"]
    for name in NAMES:
        np.testing.assert_allclose(found[name], expected[name], atol=2e-6, err_msg=name)
    assert "uncaptured" not in found.attrs


def test_eager_layers_know_padding():
    model = tiny("llama").model
    model.set_attn_implementation("eager")
    mask = torch.ones_like(IDS)
    mask[0, 6:] = 0
    found = watched(model, IDS, attention_mask=mask)
    assert found.length.values.tolist() == [6, 9]
    np.testing.assert_allclose(found.profile[0], watched(model, IDS[:1, :6]).profile[0], atol=2e-6)


class TwoMasks(nn.Module):
    """The same queries and keys in memory, and another mask: two layers."""

    def forward(self, x):
        split = x.unflatten(-1, (2, -1)).transpose(1, 2)
        whole = functional.scaled_dot_product_attention(split, split, split)
        return whole + functional.scaled_dot_product_attention(split, split, split, is_causal=True)


class Prefixed(nn.Module):
    """Gives a model keys of three virtual tokens, as peft's prefix tuning does."""

    def __init__(self):
        super().__init__()
        self.model = tiny("llama").model

    def forward(self, ids):
        cache = DynamicCache()
        for layer in range(2):
            cache.update(torch.randn(len(ids), 2, 3, 8), torch.randn(len(ids), 2, 3, 8), layer)
        return self.model(ids, past_key_values=cache)


class Memory(nn.Module):
    """Three keys of its own before those of its tokens."""

    def __init__(self):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        known = torch.cat([self.keys.expand(len(x), -1, -1), x], 1)
        query, key = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in (x, known))
        return functional.scaled_dot_product_attention(query, key, key)


class MultiHeadMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        known = torch.cat([torch.zeros(len(x), 3, 8), x], 1)
        return self.attention(x, known, known)[0]


class Attend(nn.Module):
    def forward(self, query, key):
        return functional.scaled_dot_product_attention(query, key, key)


class MemoryOfHeads(nn.Module):
    """As x-transformers': keys of its own for each head, and an inner module that takes what the heads compare."""

    def __init__(self):
        super().__init__()
        self.keys, self.attend = nn.Parameter(torch.randn(2, 3, 4)), Attend()

    def forward(self, x):
        query = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return self.attend(query, torch.cat([self.keys.expand(len(x), -1, -1, -1), query], 2))


class AcrossInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attend()

    def forward(self, x, source):
        return self.attend(*(one.unflatten(-1, (2, -1)).transpose(1, 2) for one in (x, source)))


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        (Prefixed(), IDS, "model has a cache of keys"),
        (Memory(), torch.randn(2, 5, 8), "from 5 tokens to 8 keys, 3 of which are not its tokens"),
        (MemoryOfHeads(), torch.randn(2, 5, 8), "attend attends from 5 tokens to 8 keys, 3 of"),
        (MultiHeadMemory().eval(), torch.randn(2, 5, 8), "has 3 keys before its own tokens"),
    ],
    ids=["prefix tuning", "memory", "memory of heads", "nn.MultiheadAttention"],
)
def test_keys_before_the_tokens_are_rejected(model, given, message):
    with pytest.raises(AttnscopeError, match=message):
        watched(model, given)


class Across(nn.Module):
    def forward(self, x, source):
        query, key = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in (x, source))
        return functional.scaled_dot_product_attention(query, key, key)


def test_layers_are_distinguished_by_their_weights_masks_and_sources():
    """Two calls with the same weights are one layer; other masks are another; a longer source is cross-attention."""
    twice = watched(large(DiffLlamaModel(DiffLlamaConfig(**SIZES))), IDS)
    assert twice.layer_name.values.tolist() == ["layers.0.self_attn", "layers.1.self_attn"]
    assert watched(TwoMasks(), torch.randn(1, 5, 8)).layer_kind.values.tolist() == ["self", "causal"]
    for across in (Across(), AcrossInside()):
        assert watched(across, torch.randn(2, 5, 8), torch.randn(2, 9, 8)).layer_kind.item() == "cross"


class TalkingHeadAttn(nn.Module):
    """As timm's CaiT: heads are mixed before and after the softmax, by hand."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2, 2)

    def forward(self, x):
        query = x.unflatten(-1, (2, -1)).transpose(1, 2)
        scores = self.mix((query @ query.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return (scores.softmax(-1) @ query).transpose(1, 2).flatten(2)


class ClassAttn(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        query = self.project(x).unflatten(-1, (2, -1)).transpose(1, 2)
        return functional.scaled_dot_product_attention(query, query, query).transpose(1, 2).flatten(2)


def test_layers_that_made_no_call_are_named():
    model = nn.Sequential(*[TalkingHeadAttn() for _ in range(5)], ClassAttn())
    found = watched(model, torch.randn(2, 5, 8))
    assert found.layer_name.values.tolist() == ["5"]
    note = "in 0 (TalkingHeadAttn), 1 (TalkingHeadAttn), 2 (TalkingHeadAttn) and 2 more"
    assert note in found.uncaptured


class Mixer(nn.Module):
    """Attention by hand under another name, and a softmax that is not over keys."""

    def __init__(self, softmax):
        super().__init__()
        self.softmax, self.gate = softmax, nn.Linear(8, 3)

    def forward(self, x):
        query = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return x + (self.softmax(query @ query.mT) @ query).transpose(1, 2).flatten(2) * self.gate(x).softmax(-1).amax()


def test_a_softmax_over_as_many_keys_names_its_module():
    by_hand = [lambda x: x.softmax(-1), lambda x: functional.softmax(x, -1), nn.Softmax(-1)]
    found = watched(nn.Sequential(*map(Mixer, by_hand), ClassAttn()), torch.randn(1, 5, 8))
    assert found.layer_name.values.tolist() == ["3"]
    assert "in 0 (Mixer), 1 (Mixer), 2 (Mixer): if" in found.uncaptured

    class Gate(nn.Module):
        def forward(self, x):
            return x * x[..., :3].softmax(-1).amax()

    assert "uncaptured" not in watched(nn.Sequential(Gate(), ClassAttn()), torch.randn(1, 5, 8)).attrs


def test_documents_packed_in_a_text_are_noted(caplog):
    model = tiny("llama").model
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    found = watched(model, IDS[:1], position_ids=positions, use_cache=False)
    assert "Parts of 1 of 1 texts do not attend to each other (packed documents)" in found.packed
    both = tiny("bart").model
    assert "packed" not in watched(both, IDS, decoder_input_ids=IDS[:, :5], use_cache=False).attrs
    padded = torch.ones_like(IDS)
    padded[0, :3] = 0
    assert "packed" not in watched(model, IDS, attention_mask=padded, use_cache=False).attrs
    monitor = HeadMonitor()
    monitor.measure_next(model.train(), 0)
    model(IDS[:1], position_ids=positions, use_cache=False)
    assert "rows pack several documents" in caplog.text


@pytest.mark.parametrize("forbidden", ["False", "-inf", "lowest"])
def test_a_row_whose_mask_forbids_every_key_counts_nowhere_in_either_form(forbidden):
    model = tiny("llama").model
    model.layers = model.layers[:1]
    allowed = torch.ones(9, 9).tril().bool()[None, None]
    allowed[..., 4, :] = False
    mask = allowed
    if forbidden != "False":
        value = -torch.inf if forbidden == "-inf" else torch.finfo(torch.float32).min
        mask = torch.zeros(1, 1, 9, 9).masked_fill(~allowed, value)
    found = watched(model, IDS[:1], attention_mask=mask)
    model.set_attn_implementation("eager")
    bias = torch.zeros(1, 1, 9, 9).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        weights = model(IDS[:1], attention_mask=bias, output_attentions=True).attentions[0][0].double()
    rows = [0, 1, 2, 3, 5, 6, 7, 8]
    entropy = torch.special.entr(weights).sum(-1)[:, rows].mean(-1)
    np.testing.assert_allclose(found.entropy[0, 0], entropy, atol=1e-5)
    np.testing.assert_allclose(found.first_token[0, 0], weights[:, rows, 0].mean(-1), atol=1e-5)
