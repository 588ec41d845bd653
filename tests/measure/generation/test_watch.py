"""`watch` around `generate()`: what one full pass of eager attention over the final text gives."""

import copy

import numpy as np
import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM, MiniMaxConfig, MiniMaxForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

import attnscope
from attnscope import AttnscopeError
from tests.tiny_models import tiny

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 60,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN = {
    "minimax": lambda: MiniMaxForCausalLM(  # its first layer keeps no keys
        MiniMaxConfig(
            **SIZES,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=48,
            max_position_embeddings=64,
            layer_types=["linear_attention", "full_attention"],
            block_size=4,
            num_local_experts=2,
            num_experts_per_tok=1,
        )
    ),
    "falcon": lambda: FalconForCausalLM(FalconConfig(**SIZES, multi_query=True)),
}
SHARED = ("llama", "gpt2", "mistral", "gemma2", "gpt_oss", "bloom", "t5", "bart")
NEW = 9


@pytest.fixture(scope="module")
def models():
    """Tiny random models, whose scores differ enough that each place matters."""
    made = {}
    for name in (*OWN, *SHARED):
        torch.manual_seed(1)
        model = OWN[name]().eval() if name in OWN else tiny(name)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.2)
        model.generation_config.eos_token_id = model.generation_config.max_length = None
        model.generation_config.pad_token_id = 0
        made[name] = model
    return made


def full_pass(model, text, source):
    """Weights of each layer of the decoder, ``(head, query, key)``, by the model's own eager attention at once."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    eager.config._attn_implementation = "eager"  # Falcon's own way
    ids = torch.tensor([text])
    with torch.no_grad():
        if not source:
            given = eager(ids, use_cache=False, output_attentions=True).attentions
            given = [weights for weights in given if weights.shape[-1] == len(text)]  # none of linear attention
        else:
            output = eager(
                input_ids=torch.tensor([source]), decoder_input_ids=ids, use_cache=False, output_attentions=True
            )
            given = [w for pair in zip(output.decoder_attentions, output.cross_attentions, strict=True) for w in pair]
    return [weights[0].double().numpy() for weights in given]


def check(model, result, spans=(), atol=1e-5):
    """Every number of every sequence, from the whole matrices."""
    for number in range(result.sizes["sequence"]):
        own = result.isel(sequence=number)
        text = own.text_token_id.values[own.text_token_id.values >= 0].tolist()
        source = (
            own.source_token_id.values[own.source_token_id.values >= 0].tolist() if "source_token_id" in own else []
        )
        steps, prompt = int(own.length), int(own.prompt_length)
        assert steps == len(text) - prompt
        rows = np.arange(prompt - 1, prompt - 1 + steps)
        assert own.position.values[:steps].tolist() == rows.tolist()
        layers = full_pass(model, text[:-1] if len(text) > prompt else text, source)
        assert len(layers) == own.sizes["layer"]
        for layer, whole in enumerate(layers):
            is_cross = own.layer_kind.values[layer] == "cross"
            weights = whole[:, rows].swapaxes(0, 1)  # step, head, key
            keys = np.arange(weights.shape[-1])
            allowed = np.ones(weights.shape[::2]) if is_cross else (weights > 0).any(1)
            even = (allowed / allowed.sum(-1, keepdims=True))[:, None]
            masks = {"source" if source else "prompt": keys < (len(source) if is_cross else prompt)}
            masks |= {name: (keys >= first) & (keys < last) for name, (first, last) in dict(spans).items()}
            if source and not is_cross:
                masks = {"start": keys < prompt, "own output": keys >= prompt}
            elif not is_cross:
                masks["own output"] = keys >= prompt
            got = own.isel(layer=layer, step=slice(steps))
            for prefix, of in (("", weights), ("equal_", even)):
                logs = np.log(np.where(of > 0, of, 1.0))
                expected = {
                    "entropy": -(of * logs).sum(-1),
                    "first_token": of[..., 0],
                    "mean_offset": (of * (keys - rows[:, None, None])).sum(-1) / of.sum(-1),
                }
                if not prefix:
                    expected |= {"max_weight": of.max(-1), "top_key": of.argmax(-1)}
                if not prefix and not is_cross:
                    np.testing.assert_allclose(got.bin_weight.sum("offset_bin"), of.sum(-1), atol=atol)
                    at = (keys >= rows[:, None] - 4) & (keys <= rows[:, None] - 3)
                    expected["bin_weight"] = (of * at[:, None]).sum(-1)
                    got = got.assign(bin_weight=got.bin_weight.sel(offset_bin=-3))
                for name, value in expected.items():
                    own_value = value[:, 0] if prefix else value
                    np.testing.assert_allclose(got[prefix + name], own_value, atol=atol, rtol=1e-4, err_msg=name)
                for span in result.span.values:
                    value = got[f"{prefix}span_weight"].sel(span=span)
                    if span not in masks:
                        assert bool(value.isnull().all())
                        continue
                    expected = (of * masks[span]).sum(-1)
                    np.testing.assert_allclose(value, expected[:, 0] if prefix else expected, atol=atol, err_msg=span)
        beyond = own.isel(step=slice(steps, None))
        assert bool(beyond.entropy.isnull().all())


def prompts(*lengths, seed=0):
    """Prompts of these lengths side by side, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids[row, max(lengths) - length :] = torch.randint(3, 60, (length,), generator=generator)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


CASES = [
    ("minimax", (7,), {}),
    ("llama", (7,), {"use_cache": False}),
    ("llama", (7, 4), {"cache_implementation": "static"}),
    ("llama", (7, 4), {"num_beams": 3, "num_return_sequences": 2}),
    ("llama", (9,), {"prefill_chunk_size": 4}),
    ("llama", (9,), {"prompt_lookup_num_tokens": 3}),
    ("mistral", (7, 3), {}),
    ("mistral", (7, 3), {"cache_implementation": "static", "num_beams": 2}),
    ("gemma2", (7, 3), {}),
    ("gpt_oss", (7, 3), {}),
    ("bloom", (7, 3), {}),
    ("falcon", (7, 3), {}),
    ("t5", (7,), {"num_beams": 3}),
    ("bart", (7,), {"cache_implementation": "static"}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "lengths", "options"), CASES)
def test_each_token_is_measured_as_in_one_full_pass(models, name, lengths, options):
    model, given = models[name], prompts(*lengths)
    ends = {} if options.get("cache_implementation") else {"eos_token_id": 5}
    options = {"do_sample": False, "max_new_tokens": NEW} | ends | options
    torch.manual_seed(3)
    plain = model.generate(**given, **options)
    span = {"first words": (0, min(2, *lengths))}
    torch.manual_seed(3)
    with attnscope.watch(model, spans=span) as seen:
        output = model.generate(**given, **options)
    assert torch.equal(output, plain)
    result = seen.result()
    assert len(seen) == len(output) == result.sizes["sequence"]
    start = output.shape[1] - result.sizes["step"]
    for tokens, own in zip(output[:, start:].tolist(), result.token_id.values.tolist(), strict=True):
        steps = sum(token >= 0 for token in own)
        assert tokens[:steps] == own[:steps]
    check(model, result, span)


@pytest.mark.filterwarnings("ignore")
def test_tokens_after_the_end_of_a_text_are_not_measured(models):
    model, given = models["llama"], prompts(7, 4)
    plain = model.generate(**given, max_new_tokens=NEW, do_sample=False)
    end = int(plain[0, 7 + 2])  # what the first one says in its third step
    with attnscope.watch(model) as seen:
        model.generate(**given, max_new_tokens=NEW, do_sample=False, eos_token_id=end)
    result = seen.result()
    assert int(result.length[0]) <= 3 < int(result.length[1])
    check(model, result)


@pytest.mark.filterwarnings("ignore")
def test_calls_of_generate_are_put_together(models):
    model = models["gpt2"]
    with attnscope.watch(model, spans=lambda ids: {"first": (0, 1), f"of {len(ids)}": [1, 2]}) as seen:
        model.generate(prompts(5)["input_ids"], max_new_tokens=2, do_sample=False)
        first = model.generate(prompts(7)["input_ids"], max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    assert first.sequences.shape == (1, 11)
    assert "generate" not in model.__dict__
    result = seen.result()
    assert result.span.values.tolist() == ["prompt", "first", "of 5", "of 7", "own output"]
    assert result.length.values.tolist() == [2, 4]
    assert result.prompt_length.values.tolist() == [5, 7]
    other = result.span_weight.sel(span="of 7")
    assert bool(other[0].isnull().all())
    assert bool((other[1] > 0).all())


class OwnLayer(DynamicLayer):
    pass


def own_cache():
    cache = DynamicCache()
    cache.layers = [OwnLayer(), OwnLayer()]
    return cache


@pytest.mark.usefixtures("no_types")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "spans", "message"),
    [
        ({"guidance_scale": 2.0}, None, "guidance_scale=2.0. cannot be watched: the model alternates"),
        ({"output_attentions": True}, None, "output_attentions=True. cannot be watched"),
        ({"past_key_values": own_cache}, None, "stores keys in a OwnLayer from outside transformers"),
        ({}, {"question": (3, 9)}, "the span 'question' goes beyond the prompt, which has 5 tokens"),
        ({}, {"prompt": (3, 4)}, "a span has the name 'prompt'"),
        ({}, {"question": "three"}, "the span 'question' is 'three'; expected its first token"),
        ({}, 3, "spans are 3; expected them by name"),
        ({}, [{}, {}], "found spans for 2 prompts; expected 1"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, None, "padding on the right"),
    ],
)
def test_what_cannot_be_watched_is_rejected(models, options, spans, message):
    options = {name: value() if callable(value) else value for name, value in options.items()}
    given = {"attention_mask": torch.ones(1, 5, dtype=torch.int64)} | options
    with attnscope.watch(models["llama"], spans=spans) as seen, pytest.raises(AttnscopeError, match=message):
        models["llama"].generate(prompts(5)["input_ids"], max_new_tokens=3, **given)
    with pytest.raises(AttnscopeError, match="LlamaForCausalLM was not called in the context"):
        seen.result()


def test_plain_passes_and_generate_give_different_results(models):
    model, ids = models["llama"], prompts(5)["input_ids"]
    with attnscope.watch(model) as seen:
        model.generate(ids, max_new_tokens=2, do_sample=False)
        model(ids, use_cache=False)
    with pytest.raises(AttnscopeError, match="use a new `watch` for each"):
        seen.result()


class Writer(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model.generate(ids, max_new_tokens=2, do_sample=False)


def test_generate_within_another_pass_is_rejected(models):
    writer = Writer(models["llama"]).eval()
    with attnscope.watch(writer) as seen, pytest.raises(AttnscopeError, match=r"calls generate.. of LlamaForCausalLM"):
        writer(prompts(5)["input_ids"])
    assert len(seen) == 0
    with attnscope.watch(writer) as seen:  # called from outside, it is seen
        models["llama"].generate(prompts(5)["input_ids"], max_new_tokens=2, do_sample=False)
    assert len(seen) == 1
