"""Every statistic of every family equals the one computed from the weights that eager attention returns."""

import pytest
import torch
from transformers import LlamaForCausalLM

from attnscope import AttnscopeError
from attnscope.capture.families import body_of
from attnscope.capture.forward import forward
from attnscope.capture.registry import attnscope_attention
from attnscope.capture.verify import verify
from attnscope.capture.watching import watching
from attnscope.kernels.bins import far_starts
from attnscope.kernels.call import Need, RowMeasures
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.measure.passes import StatisticsObserver, WindowBatch
from attnscope.measure.quantities import DEFAULT, STATISTICS
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.read.windows import Batch
from tests.kernels.statistics_of_weights import from_weights
from tests.tiny_models import MAKERS, UNREGISTERED, inputs, tiny

BAND, REACH = 5, 23
LAYERS = {"modernbert": 4, "t5": 6, "bart": 6, "marian": 6, "whisper": 6}
CAUSAL = {"gpt2", "gpt_neox", "opt", "llama", "mistral", "gemma2", "gpt_oss", "qwen3"}
NAMES = (*DEFAULT, "learned_sink")


def eager_weights(model, given):
    """Weights in the order of the calls: encoder, then self and cross of each decoder layer."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(**given, output_attentions=True)
    if found.get("encoder_attentions") is not None:
        pairs = zip(found.decoder_attentions, found.cross_attentions, strict=True)
        return [*found.encoder_attentions, *(weights for pair in pairs for weights in pair)]
    return list(found.attentions)


@pytest.mark.parametrize("family", MAKERS)
def test_a_pass_without_the_head_attends_as_the_whole_model_does(family):
    model = tiny(family)
    given, _ = inputs(family, padded=False)
    verify(model, given)
    passes, ended = [], []

    def observe(site, call):
        if site.index == 0:
            passes.append([])
        passes[-1].append((site, call.query, call.key))
        return measure(call, Need())[0]

    hook = model.register_forward_hook(lambda *_: ended.append(len(passes)))
    with torch.no_grad(), hook, watching(model, observe):
        outputs = [forward(model, given, str, with_head=with_head) for with_head in (True, False, True)]
    assert ended == ([1, 2, 3] if body_of(model) is model else [1, 3])
    assert outputs[1].shape[:2] == outputs[0].shape[:2]
    for one in passes[1:]:
        for (site, query, key), (expected, as_query, as_key) in zip(one, passes[0], strict=True):
            assert site == expected
            assert torch.equal(query, as_query)
            assert torch.equal(key, as_key)


class Rereading(LlamaForCausalLM):
    """Whose head attends once more."""

    def forward(self, input_ids, **options):
        states = self.model(input_ids, **options).last_hidden_state
        return self.model(inputs_embeds=states, **options).last_hidden_state


def test_attention_in_a_head_is_measured_too():
    model = Rereading(tiny("llama").config).eval()
    given = {"input_ids": torch.arange(6)[None]}
    sites = verify(model, given)
    observed = []
    with torch.no_grad(), watching(model, lambda site, call: observed.append(site) or measure(call, Need())[0]):
        forward(model, given, str, with_head=False)
    assert len(observed) == len(sites) == 2 * model.config.num_hidden_layers


def attend_equally(call):
    """Equal weights over what every query may see, written out."""
    batch = range(call.query.shape[0])
    allowed = torch.stack([call.allowed(text, 0) for text in batch]).double()[:, None]
    return allowed / allowed.sum(-1, keepdim=True).clamp_min(1)


WITHOUT_MASK = ("bert", "llama", "gemma2", "gpt_oss", "t5")  # the other case: the model makes no mask of padding


@pytest.mark.parametrize(
    ("family", "padded"), [*((family, True) for family in MAKERS), *((one, False) for one in WITHOUT_MASK)]
)
def test_statistics_equal_those_of_eager_weights(family, padded):
    model = tiny(family)
    given, valid = inputs(family, padded=padded)
    sites = verify(model, given, valid)
    assert [site.index for site in sites] == list(range(LAYERS.get(family, 2)))  # also of one module that is shared
    if valid is None:
        valid = torch.ones(2, 1, dtype=torch.bool)
    special = torch.zeros_like(valid)
    special[:, 0] = True
    text = target = Batch(torch.zeros_like(valid, dtype=torch.int64), valid, special)
    if "decoder_input_ids" in given:
        everywhere = torch.ones_like(given["decoder_input_ids"], dtype=torch.bool)
        target = Batch(given["decoder_input_ids"], everywhere, ~everywhere)
    observer = StatisticsObserver(NAMES, BAND, WindowBatch(text, target), REACH)
    kinds = []
    equal = []

    def observe(site, call):
        kinds.append((site.kind, call.key.shape[2]))
        equal.append(attend_equally(call))
        return observer(site, call)

    with torch.no_grad(), watching(model, observe):
        model(**given)
    weights = eager_weights(model, given)
    measured = observer.layers()
    assert len(weights) == len(measured) == len(sites)
    for index, expected in enumerate(weights):
        queries, keys = expected.shape[-2:]
        query_valid = valid if valid.shape[1] == queries else torch.ones(2, queries, dtype=torch.bool)
        key_valid = valid if valid.shape[1] == keys else torch.ones(2, keys, dtype=torch.bool)
        key_special = special if special.shape[1] == keys else torch.zeros(2, keys, dtype=torch.bool)
        columns = indicator_columns(key_valid, key_special).double()[:, None]

        def reduced(weights, names, columns=columns, query_valid=query_valid, key_valid=key_valid):
            of_rows = from_weights(weights, BAND, far_starts(BAND, REACH))
            rows = RowMeasures(log_sum_exp=of_rows["mass"], columns=weights @ columns, **of_rows)
            return reduce_call(rows, names, query_valid, key_valid)

        wanted = reduced(expected.double(), NAMES)
        nulls = [name for name in NAMES if STATISTICS[name].has_equal]
        wanted |= {f"equal_{name}": value for name, value in reduced(equal[index], nulls).items()}
        assert set(wanted) == set(measured[index])
        for name in wanted:
            torch.testing.assert_close(
                measured[index][name],
                wanted[name],
                atol=2e-5,
                rtol=1e-4,
                equal_nan=True,
                msg=lambda text, name=name, index=index: f"{family} layer {index} {name}: {text}",
            )
    if family in CAUSAL:
        assert {kind for kind, _ in kinds} == {"causal"}
        for found in measured:
            assert found["band_sum"][..., BAND + 1 :].abs().max() == 0
    if family in {"t5", "bart", "marian", "whisper"}:
        assert [kind for kind, _ in kinds] == ["self", "self", "causal", "cross", "causal", "cross"]


@pytest.mark.parametrize("family", UNREGISTERED)
def test_a_model_off_the_registry_is_rejected(family):
    given, valid = inputs(family, padded=False)
    with pytest.raises(AttnscopeError, match="does not use transformers' attention registry"):
        verify(tiny(family), given, valid)


@pytest.mark.parametrize("bias", [None, torch.linspace(-2, 2, 49).reshape(1, 1, 7, 7)])
def test_a_mask_in_numbers_is_added_to_the_bias(bias):
    q, k, v = torch.randn(3, 2, 4, 7, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(2, 1, 7, 7).masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -torch.inf)
    found, _ = attnscope_attention(torch.nn.Identity(), q, k, v, mask, position_bias=bias)
    total = mask if bias is None else mask + bias
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, total)
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_a_leak_of_the_future_is_found(monkeypatch):
    """A leak of what should look back only is refused; one that masks written out mend gives the model's own output."""
    from attnscope.capture import registry

    given, _ = inputs("llama", padded=False)
    model = tiny("llama")
    whole = registry.attnscope_attention

    def leaking(module, *arguments, **options):
        return whole(module, *arguments, **{**options, "is_causal": False})

    monkeypatch.setitem(registry.AttentionInterface._global_mapping, registry.NAME, leaking)
    sites = verify(model, given)
    assert {site.kind for site in sites} == {"causal"}

    def leaking_but_causal_by_name(module, query, key, value, mask, **options):
        everything = torch.ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
        return whole(module, query, key, value, everything, **options)

    monkeypatch.setitem(registry.AttentionInterface._global_mapping, registry.NAME, leaking_but_causal_by_name)
    with pytest.raises(AttnscopeError, match="on the future"):
        verify(tiny("llama"), given)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_model_that_computes_otherwise_is_rejected(name, monkeypatch):
    """Sharper scores than the model's own are no matter of masks: no way of capturing it gives its output."""
    from attnscope.capture import registry

    given, _ = inputs(name, padded=False)
    whole = registry.attnscope_attention

    def sharper(module, query, *arguments, **options):
        return whole(module, 1.5 * query, *arguments, **options)

    monkeypatch.setitem(registry.AttentionInterface._global_mapping, registry.NAME, sharper)
    with pytest.raises(AttnscopeError, match="the captured attention does not reproduce the output"):
        verify(tiny(name), given)


def test_an_unseen_attention_layer_an_infinite_output_and_dropout_are_rejected():
    model = tiny("bert")
    model.bert.encoder.layer[1].intermediate.dense = torch.nn.Sequential(
        HiddenAttention(), model.bert.encoder.layer[1].intermediate.dense
    )
    given, valid = inputs("bert", padded=False)
    with pytest.raises(AttnscopeError, match=r"not captured .*dense\.0"):
        verify(model, given, valid)
    model = tiny("bert")
    torch.nn.init.constant_(model.cls.predictions.bias, torch.inf)
    with pytest.raises(AttnscopeError, match="the first window: the model's output gives NaN or infinity"):
        verify(model, given, valid)
    model = tiny("bert").train()
    with watching(model, lambda site, call: call.query), pytest.raises(AttnscopeError, match="eval"):
        model(input_ids=torch.tensor([[3, 4]]))


def larger_output(call, need):
    output, sums = measure(call, need)
    return 1.01 * output, sums


def half_weights(call):
    output, weights = attend_in_full(call)
    return output, weights / 2


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("measure", larger_output, r"layer 0 .* differs from its weights times the values"),
        ("attend_in_full", half_weights, r"the weights of a row sum to 0\.5000, not to 1"),
    ],
)
def test_wrong_outputs_and_weights_of_a_layer_are_rejected(monkeypatch, name, wrong, message):
    given, valid = inputs("bert", padded=False)
    monkeypatch.setattr(f"attnscope.capture.verify.{name}", wrong)
    with pytest.raises(AttnscopeError, match=message):
        verify(tiny("bert"), given, valid)


class HiddenAttention(torch.nn.Module):
    """Attends without asking the registry."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(32, 32)

    def forward(self, hidden):
        return torch.nn.functional.scaled_dot_product_attention(hidden, hidden, self.mix(hidden))
