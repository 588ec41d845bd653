"""The second way: models that never ask the registry, by the weights that their own eager attention returns."""

import gc
from contextlib import nullcontext

import pytest
import torch

import attnscope
import attnscope_lineage
from attnscope import AttnscopeError, intervene
from attnscope.capture import eager as _eager
from attnscope.capture import registry as _registry
from attnscope.capture.load import load_model
from attnscope.capture.verify import verify
from attnscope.capture.watching import capture_of, watching
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attend_in_full
from tests.capture.every_family.inputs import inputs_of
from tests.capture.every_family.judge import EAGER, FAST, REFUSED, judge, larger
from tests.capture.every_family.models import tiny_model

BY_WEIGHTS = [
    *("bloom", "gptj", "mpt", "xlnet", "xlm", "longformer", "funnel", "fsmt", "ibert"),
    *("cpmant", "canine", "longt5", "lxmert", "vilt"),
]
WITHOUT_WEIGHTS = {
    "mra": "blocks of several sizes",
    "nystromformer": "landmarks",
    "prophetnet": "several streams",
    "yoso": "hashes",
}


def of(family):
    model = larger(tiny_model(family))
    return model, inputs_of(model)


@pytest.mark.parametrize(
    ("family", "status"), [("deberta-v2", FAST), ("falcon", FAST), *((one, EAGER) for one in BY_WEIGHTS)]
)
def test_every_statistic_equals_that_of_eager_weights(family, status):
    row = judge(family)
    assert (row.status, row.reason) == (status, "")
    assert row.difference < 2e-5


@pytest.mark.parametrize("family", WITHOUT_WEIGHTS)
def test_what_has_no_weights_from_token_to_token_is_rejected_by_name_and_reason(family):
    row = judge(family)
    assert row.status == REFUSED
    assert row.model in row.reason
    assert WITHOUT_WEIGHTS[family] in row.reason
    assert len(row.reason.splitlines()) == 2


def test_without_leave_a_model_off_the_registry_is_rejected_as_before():
    model, given = of("bloom")
    with pytest.raises(AttnscopeError, match="does not use transformers' attention registry"):
        verify(model, given)
    assert capture_of(model) == "registry"


def test_one_layers_matrix_is_the_most_that_a_model_holds():
    model, given = of("bloom")
    verify(model, given, weights_suffice=True)
    length = given["input_ids"].shape[1]
    shape, held = (1, model.config.n_head, length, length), []

    def observe(site, call):
        gc.collect()  # what only a circle of references holds is let go
        own = call.bias.untyped_storage().data_ptr()
        matrices = {
            one.untyped_storage().data_ptr()
            for one in gc.get_objects()
            if type(one) is torch.Tensor and one.shape == shape and one.untyped_storage().nbytes() >= 4 * one.numel()
        }
        held.append(len(matrices - {own}))
        return output_of(call)

    with torch.no_grad(), watching(model, observe, weights_suffice=True):
        model(**given)
    assert held == [1] * model.config.n_layer


@pytest.mark.parametrize("family", ["bloom", "xlnet", "longformer", "ibert"])
@torch.no_grad()
def test_the_model_uses_its_own_output_and_is_left_as_it_was(family):
    model, given = of(family)
    before = [
        (module, len(module._forward_hooks), len(module._forward_pre_hooks), module.training)
        for module in model.modules()
    ]
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    implementation = model.config._attn_implementation
    expected = model(**given)[0]
    verify(model, given, weights_suffice=True)
    with watching(model, lambda _, call: torch.full_like(call.query, torch.nan), weights_suffice=True):
        found = model(**given)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert before == [
        (module, len(module._forward_hooks), len(module._forward_pre_hooks), module.training)
        for module in model.modules()
    ]
    assert wanted == [parameter.requires_grad for parameter in model.parameters()]
    assert model.config._attn_implementation == implementation


def test_weights_beside_what_a_layer_computes_are_found_out(monkeypatch):
    """Falcon's default path, asked for its weights, adds a mask of booleans to the scores: it looks into the future."""
    model, given = of("falcon")
    with torch.no_grad():
        leaking = model(**given, output_attentions=True).attentions[0]
    assert leaking.triu(1).max() > 0
    monkeypatch.setattr(_registry, "products", lambda *_: nullcontext())
    sites = verify(model, given, weights_suffice=True)
    assert {site.kind for site in sites} == {"causal"}
    assert capture_of(model) == "eager weights"
    monkeypatch.setattr(_eager, "_EAGER", "sdpa")
    with pytest.raises(AttnscopeError, match="does not reproduce the output"):
        verify(larger(tiny_model("falcon")), given, weights_suffice=True)


@pytest.mark.parametrize(
    ("verified", "other", "message"),
    [
        (
            False,
            lambda weights: torch.softmax(weights, -1),
            r"weights that it does not use \(transformer.h.1.self_attention\)",
        ),
        (True, lambda weights: weights / 2, r"layer 1 .*: the weights of a row sum to 0\.5000, not to 1"),
    ],
)
def test_weights_that_were_not_used_are_rejected(monkeypatch, verified, other, message):
    model, given = of("bloom")
    if verified:  # the other way of capturing is chosen already
        verify(model, given, weights_suffice=True)
    layer = model.transformer.h[1].self_attention
    forward = type(layer).forward

    def of_other_scores(*arguments, **options):
        output, weights = forward(layer, *arguments, **options)
        return output, other(weights)

    monkeypatch.setattr(layer, "forward", of_other_scores)
    with pytest.raises(AttnscopeError, match=message):
        verify(model, given, weights_suffice=True)


@torch.no_grad()
def test_cross_attention_is_distinguished_and_is_that_of_the_model():
    """FSMT's decoder looks back as in training, and not ahead as where it keeps its keys for tokens to come."""
    model, given = of("fsmt")
    sites = verify(model, given, weights_suffice=True, cross_only=True)
    assert [site.kind for site in sites] == ["self", "self", "causal", "cross", "causal", "cross"]
    expected = model(**given, output_attentions=True, use_cache=False).cross_attentions
    found = []

    def observe(site, call):
        if site.kind == "cross":
            found.append(attend_in_full(call)[1])
        return output_of(call)

    with watching(model, observe, weights_suffice=True):
        model(**given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.fixture(scope="module")
def bloom():
    """A model whose vocabulary is that of the bundled tokenizer."""
    import transformers as T

    torch.manual_seed(0)
    tokenizer = load_model("bundled", device="cpu").tokenizer
    config = T.BloomConfig(
        hidden_size=32, n_head=4, n_layer=2, vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2
    )
    return larger(T.BloomForCausalLM(config)).eval(), tokenizer


TEXTS = ["The tide comes in twice a day, and twice a day it goes out again.", "The sea is cold."]


def test_scan_notes_how_it_captured_and_has_the_weights_of_eager_attention(bloom):
    model, tokenizer = bloom
    found = attnscope.scan(model, TEXTS, tokenizer=tokenizer, batch_size=2)
    assert found.attrs["capture"] == "eager weights"
    assert "come from its own eager attention" in found.attrs["eager"]
    assert set(found.layer_kind.values) == {"causal"}
    for text, words in enumerate(TEXTS):
        ids = torch.tensor([tokenizer(words)["input_ids"]])
        with torch.no_grad():
            returned = model(ids, output_attentions=True).attentions
        for layer, weights in enumerate(returned):
            diagonal = weights[0].diagonal(-1, -2, -1).sum(-1)
            expected = found.band_sum.isel(window=text, layer=layer).sel(offset=-1).values
            torch.testing.assert_close(diagonal.double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)
    assert attnscope.scan(texts=TEXTS).attrs["capture"] == "registry"


@pytest.mark.parametrize("verb", [attnscope.explain, intervene, attnscope_lineage.walk])
def test_verbs_of_queries_and_keys_reject_such_a_model(bloom, verb):
    model, tokenizer = bloom
    given = TEXTS[0] if verb is attnscope_lineage.walk else TEXTS * 3
    settings = {"window": 16} if verb is attnscope.explain else {}
    for scanned in (False, True):
        if scanned:
            attnscope.scan(model, TEXTS, tokenizer=tokenizer)
        with pytest.raises(AttnscopeError, match="not its queries, keys and values") as caught:
            verb(model, given, tokenizer=tokenizer, **settings)
        assert len(str(caught.value).splitlines()) == 1
