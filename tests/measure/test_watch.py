"""Any module is measured as its weights, written out by hand, say; and it returns what it returns unwatched."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.overrides import TorchFunctionMode

import attnscope
from attnscope.capture.borrow import LoadedModel
from attnscope.kernels.positions import alibi_bias
from attnscope.measure.quantities import DEFAULT
from attnscope.measure.texts import statistics_of
from attnscope.read.windows import Window
from attnscope.support.errors import AttnscopeError
from tests.kernels.statistics_of_weights import from_weights
from tests.tiny_models import tiny

BAND, WIDTH, HEADS = 3, 16, 4


def split(states, heads=HEADS):
    return states.unflatten(-1, (heads, -1)).transpose(1, 2)


class Causal(nn.Module):
    """As nanoGPT's: one projection for all three, a causal mask."""

    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)

    def operands(self, x):
        return (split(one) for one in self.c_attn(x).split(WIDTH, dim=2))

    def forward(self, x):
        query, key, value = self.operands(x)
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)

    def weights(self, x):
        query, key, _ = self.operands(x)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf).softmax(-1)


class Vision(nn.Module):
    """As timm's: heads before query, key and value in one projection, normalised, no mask."""

    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH // HEADS)

    def operands(self, x):
        query, key, value = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.norm(query), self.norm(key), value

    def forward(self, x):
        query, key, value = self.operands(x)
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.0)
        return out.transpose(1, 2).reshape(x.shape)

    def weights(self, x):
        query, key, _ = self.operands(x)
        return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)


class Grouped(nn.Module):
    """As x-transformers': fewer heads of keys, a float bias by distance, a scale of its own, padding in the bias."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.valid = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])

    def operands(self, x):
        key, value = self.to_kv(x).chunk(2, -1)
        bias = alibi_bias(HEADS, x.shape[1], x.shape[1])[None].float().repeat(2, 1, 1, 1)
        return (
            split(self.to_q(x)),
            split(key, 2),
            split(value, 2),
            bias.masked_fill(~self.valid[:, None, None], -math.inf),
        )

    def forward(self, x):
        query, key, value, bias = self.operands(x)
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=0.3, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)

    def weights(self, x):
        query, key, _, bias = self.operands(x)
        return (0.3 * query @ key.repeat_interleave(2, 1).mT + bias).softmax(-1)


class Closed(Causal):
    """As TransformerLens' parts: what is set on it goes elsewhere."""

    def __setattr__(self, name, value):
        if name != "forward":
            super().__setattr__(name, value)


@pytest.fixture
def states():
    torch.manual_seed(0)
    return torch.randn(2, 9, WIDTH)


def check(found, layer, weights, valid=None):
    """A layer of a result is what the weights say, over the real rows."""
    valid = torch.ones(len(weights), weights.shape[2], dtype=torch.bool) if valid is None else valid
    rows = from_weights(weights.detach().double(), BAND)
    count = valid.sum(1).double()
    own = found.isel(layer=layer, head=slice(weights.shape[1]))

    def mean(values):
        return (values * valid[:, None]).sum(2) / count[:, None]

    band = (rows["band"] * valid[:, None, :, None]).sum(2)
    expected = {
        "entropy": mean(rows["entropy"]),
        "mean_offset": mean(rows["mean_offset"]),
        "max_weight": mean(rows["largest"]),
        "gini_simpson": 1 - mean(rows["collision"]),
        "first_token": mean(weights[..., 0].double()),
        "band_sum": band,
        "outside": 1 - band.sum(-1) / count[:, None],
    }
    for name, value in expected.items():
        np.testing.assert_allclose(own[name].values, value.detach(), atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", [Causal, Vision, Grouped, Closed])
@torch.no_grad()
def test_scaled_dot_products_are_measured_as_written_out(kind, states):
    torch.manual_seed(1)
    module = nn.Sequential(kind(), kind()).eval()
    plain = module(states)
    with attnscope.watch(module, band=BAND) as seen:
        output = module(states)
    assert torch.equal(output, plain)
    assert not any("forward" in part.__dict__ for part in module.modules())
    found = seen.result()
    valid = module[0].valid if kind is Grouped else None
    check(found, 0, module[0].weights(states), valid)
    check(found, 1, module[1].weights(module[0](states)), valid)
    assert found.layer_name.values.tolist() == ["0", "1"]
    assert found.layer_kind.values.tolist() == ["causal" if issubclass(kind, Causal) else "self"] * 2
    assert found.length.values.tolist() == ([9, 6] if kind is Grouped else [9, 9])
    equal = found.equal_entropy.values[0, 0]
    assert equal == pytest.approx(np.log(np.arange(1, 10)).mean() if issubclass(kind, Causal) else np.log(9))


def by_hand(layer, states, padding):
    """Weights of an encoder layer (norm last) and what it gives."""
    attention = layer.self_attn
    query, key, _ = functional.linear(states, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    scores = split(query) @ split(key).mT / math.sqrt(WIDTH // HEADS)
    return scores.masked_fill(padding[:, None, None], -math.inf).softmax(-1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("mode", "batch_first"), [("fast", True), ("with gradients", False), ("training", True)])
def test_transformer_encoder_with_padding(mode, batch_first, states):
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first).train(mode == "training")
    padding = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])
    given = states if batch_first else states.transpose(0, 1)
    with torch.set_grad_enabled(mode != "fast"):
        plain = encoder(given, src_key_padding_mask=padding)
        with attnscope.watch(encoder, band=BAND) as seen:
            output = encoder(given, src_key_padding_mask=padding)
            assert output.requires_grad == (mode != "fast")
        assert torch.equal(output, plain)
        first, second = encoder.layers
        middle = first(given, src_key_padding_mask=padding)
    found = seen.result()
    assert found.layer_name.values.tolist() == ["layers.0.self_attn", "layers.1.self_attn"]
    assert found.length.values.tolist() == [9, 5]
    check(found, 0, by_hand(first, states, padding), ~padding)
    check(found, 1, by_hand(second, middle if batch_first else middle.transpose(0, 1), padding), ~padding)


@torch.no_grad()
def test_cross_attention_a_mask_of_each_head_and_an_encoder_decoder(states):
    torch.manual_seed(1)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    other, mask = torch.randn(2, 9, WIDTH), torch.randn(2 * HEADS, 9, 9)
    plain = module(states, other, other, attn_mask=mask)
    with attnscope.watch(module, band=BAND) as seen:
        output = module(states, other, other, attn_mask=mask)
    assert all(torch.equal(own, before) for own, before in zip(output, plain, strict=True))
    weights = module(states, other, other, attn_mask=mask, average_attn_weights=False)[1]
    found = seen.result()
    check(found, 0, weights)
    assert (found.layer_kind.item(), found.layer_name.item()) == ("cross", "MultiheadAttention")

    whole = nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True).eval()
    given = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(6), "tgt_is_causal": True}
    plain = whole(states, other[:, :6], **given)
    with attnscope.watch(whole, band=BAND) as seen:
        assert torch.equal(whole(states, other[:, :6], **given), plain)
    found = seen.result()
    assert found.layer_kind.values.tolist() == ["self", "causal", "cross"]
    assert found.queries.values.tolist() == [[9, 6, 6]] * 2


class Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Counting.count += 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_passes_of_any_length_append_texts_and_others_are_let_be(states):
    """A pass that fails, a pass of another module and another mode of PyTorch's leave nothing behind."""
    module = nn.Sequential(Causal(), nn.Linear(WIDTH, 2)).eval()
    with attnscope.watch(module, band=BAND) as seen, Counting():
        with pytest.raises(RuntimeError, match="shape"):
            module(states[..., :3])
        Causal().eval()(states)
        for length in (4, 9, 6):
            module(states[:, :length])
    assert Counting.count
    found = seen.result()
    assert len(seen) == 6
    assert found.length.values.tolist() == [4, 4, 9, 9, 6, 6]
    for first, length in ((0, 4), (2, 9), (4, 6)):
        check(found.isel(window=slice(first, first + 2)), 0, module[0].weights(states[:, :length]))
    sums = found.bin_sum.sum("offset_bin")
    np.testing.assert_allclose(sums, np.broadcast_to(found.length.values[:, None, None], (6, 1, 4)), rtol=1e-5)


@torch.no_grad()
def test_a_model_of_transformers_gives_what_scan_gives():
    model = tiny("gpt2").base_model
    model.set_attn_implementation("sdpa")
    ids = torch.randint(50, (3, 12))
    with attnscope.watch(model) as seen:
        model(ids, use_cache=False)
    found = seen.result()

    class Tokenizer:
        pad_token_id = eos_token_id = 0

    windows = [Window(tuple(row), (False,) * 12, ((0, 0),) * 12, "text", 0, ("x",) * 12) for row in ids.tolist()]
    expected = statistics_of(LoadedModel(model, Tokenizer(), "gpt2", {}), windows)  # through the registry
    assert found.layer_kind.values.tolist() == expected.layer_kind.values.tolist()
    assert set(expected.data_vars) <= set(found.data_vars)
    for name in DEFAULT:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-6, atol=1e-6, err_msg=name)
    assert found.labels == expected.labels


def flexible(function, **options):
    class Flexible(nn.Module):
        def forward(self, x):
            query = split(x)
            found = function(query, query * 0.5, query, **options)
            return found[0] if isinstance(found, tuple) else found

    return Flexible()


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])[:HEADS]
MODS = {
    "plain": (None, None),
    "causal": (None, lambda b, h, q, k: q >= k),
    "window": (None, lambda b, h, q, k: (q - k).abs() < 3),
    "alibi": (lambda score, b, h, q, k: score + SLOPES[h] * (k - q), None),
    "softcap, causal": (lambda score, b, h, q, k: 2 * torch.tanh(score / 2), lambda b, h, q, k: q >= k),
    "documents": (None, lambda b, h, q, k: (q // 4 == k // 4) | (b == 0)),
}


@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in MODS), ("softcap, causal", True)])
@torch.no_grad()
def test_flex_attention_is_what_its_written_out_weights_are(name, compiled, states):
    """The scores are changed and masked as a whole here."""
    score_mod, mask_mod = MODS[name]
    batch, tokens = states.shape[:2]
    mask = None if mask_mod is None else create_block_mask(mask_mod, batch, None, tokens, tokens, device="cpu")
    function = torch.compile(flex_attention, backend="eager") if compiled else flex_attention
    module = flexible(
        function, score_mod=score_mod, block_mask=mask, return_aux=AuxRequest(lse=True) if name == "plain" else None
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without torch.compile it is slow
        before = module(states)
    with attnscope.watch(module, band=2) as seen:
        assert torch.equal(module(states), before)
    query = split(states)
    scores = query @ (query * 0.5).mT / math.sqrt(query.shape[-1])
    places = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if mask_mod is not None:
        scores = scores.masked_fill(~mask_mod(*places), -math.inf)
    found, expected = seen.result(), attnscope.measure_weights([scores.softmax(-1)], band=2)
    assert found.layer_kind.item() == ("causal" if "causal" in name else "self")
    for one in DEFAULT:
        np.testing.assert_allclose(found[one], expected[one], rtol=1e-4, atol=1e-5, err_msg=one)


class ByHand(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Causal(), Causal()

    def forward(self, x):
        return self.second(self.first(x).reshape(6, 3, WIDTH))


def compiled_in_place():
    module = Causal()
    module.compile(backend="eager")
    return module


class Overflowing(Causal):
    def operands(self, x):
        query, key, value = super().operands(x)
        return query, key, value.clone().index_fill_(0, torch.tensor([1]), math.inf)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            flexible(flex_attention, score_mod=lambda s, b, h, q, k: s + (q * k).sum() / 9),
            "does not reproduce the module",
        ),
        (
            flexible(flex_attention, score_mod=lambda s, b, h, q, k: torch.where(b == 1, -math.inf, s)),
            "text 2: layer 0 .Flexible. masks every key of every token",
        ),
        (ByHand(), "ByHand made no attention call that PyTorch names, so nothing was captured"),
        (Folded(), "has a batch of 6, the layers before it 2"),
        (Overflowing(), "text 2: layer 0 .Overflowing. gives NaN or infinity"),
        (nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True).train(), "dropout_p = 0.5"),
        (nn.MultiheadAttention(WIDTH, HEADS, add_zero_attn=True, batch_first=True).eval(), "add_zero_attn"),
        (torch.compile(Causal(), backend="eager"), "compiled"),
        (compiled_in_place(), "compiled"),
    ],
)
@torch.no_grad()
def test_what_cannot_be_captured_is_rejected(module, message, states):
    def run():
        with attnscope.watch(module) as seen:
            module(*[states] * (3 if isinstance(module, nn.MultiheadAttention) else 1))
        seen.result()

    with pytest.raises(AttnscopeError, match=message):
        run()


@torch.no_grad()
def test_a_cache_of_keys_is_rejected(states):
    """The second pass has one query and all keys: its offsets would be wrong."""

    class Cached(nn.Module):
        def forward(self, x, keys):
            return functional.scaled_dot_product_attention(split(x), split(keys), split(keys), is_causal=len(x[0]) > 1)

    module = Cached().eval()
    with attnscope.watch(module) as seen:
        module(states, states)
        with pytest.raises(AttnscopeError, match="cache of keys"):
            module(states[:, -1:], states)
    assert len(seen) == 2
