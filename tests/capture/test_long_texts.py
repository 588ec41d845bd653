"""A long text is verified on its ends, unless a setting of the model may be a distance within it."""

from contextlib import contextmanager

import pytest
import torch
import transformers as T
from torch.nn.functional import scaled_dot_product_attention

from attnscope.capture.families import may_have_distances
from attnscope.capture.verify import verify
from attnscope.capture.watch import way_of
from attnscope.support.errors import AttnscopeError

SIZES = {"vocab_size": 640, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LONG = torch.arange(200)[None] + 7


def llama(**settings):
    torch.manual_seed(0)
    return T.LlamaForCausalLM(T.LlamaConfig(intermediate_size=96, **SIZES, **settings)).eval()


def mistral(window):
    torch.manual_seed(0)
    return T.MistralForCausalLM(
        T.MistralConfig(intermediate_size=96, sliding_window=window, num_key_value_heads=2, **SIZES)
    ).eval()


def lengths_of(model, ids=LONG, **inputs):
    """The number of tokens of each pass of a verification."""
    seen = []
    with model.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"].shape[1]), with_kwargs=True
    ):
        verify(model, {"input_ids": ids, **inputs})
    return seen


def test_a_long_text_is_verified_on_its_first_and_last_tokens():
    model = llama()
    seen = []
    with model.register_forward_pre_hook(lambda _, __, given: seen.append(given["input_ids"]), with_kwargs=True):
        assert len(verify(model, {"input_ids": LONG})) == 2
        verify(model, {"input_ids": LONG[:, :100]})  # needs no further pass
        with pytest.raises(AttnscopeError, match="contains token id 640"):
            verify(model, {"input_ids": LONG.masked_fill(LONG == 100, 640)})
    assert [ids[0].tolist() for ids in seen] == [[*range(7, 30), *range(199, 207)]] * 2
    assert lengths_of(llama(), LONG[:, :31]) == [31, 31]


@pytest.mark.parametrize(("window", "passes"), [(20, [31, 31]), (31, [200, 200]), (199, [200, 200]), (200, [31, 31])])
def test_a_window_within_the_text_is_verified_whole(window, passes):
    assert lengths_of(mistral(window)) == passes


def test_a_distance_is_any_number_that_is_no_width():
    model = llama(attention_chunks=[[8, 150]])
    assert may_have_distances(model, 31, 200)
    assert not may_have_distances(model, 31, 150)
    assert not may_have_distances(llama(), 31, 2048)  # its widths are 64 and 96
    model = llama()
    model.model.layers[1].reach = -60  # of a module alone, to the left
    assert may_have_distances(model, 31, 200)
    tables = T.BertModel(T.BertConfig(intermediate_size=96, max_position_embeddings=128, **SIZES))
    assert [may_have_distances(tables, 31, most) for most in (128, 200)] == [False, True]


def test_both_sides_of_a_model_have_a_vocabulary():
    """As those of MusicGen, whose configuration has no single text."""
    model = llama()
    model.config.get_text_config = lambda decoder=None, encoder=None: T.LlamaConfig(vocab_size=150 if encoder else 160)
    for rows in (150, 160):
        model.add_module(f"words {rows}", torch.nn.Embedding(rows, 2))
    assert not may_have_distances(model, 31, 200)
    model.add_module("positions", torch.nn.Embedding(170, 2))
    assert may_have_distances(model, 31, 200)


@contextmanager
def looking(model, distance, window=None):
    """A model whose layers add to a score what their calls do not say: of the key at some distance before."""
    attention = model.config._attn_implementation

    def beside(module, query, key, value, mask, **options):
        pairs = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
        bias = 3.0 * (pairs == distance)
        bias = bias.masked_fill((pairs < 0) | (pairs >= (window or len(pairs))), -torch.inf)
        groups = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
        return scaled_dot_product_attention(query, key, value, bias, scale=options["scaling"]).transpose(1, 2), None

    T.AttentionInterface.register("beside", beside)
    T.masking_utils.AttentionMaskInterface.register("beside", T.masking_utils.sdpa_mask)
    model.set_attn_implementation("beside")
    try:
        yield
    finally:
        model.set_attn_implementation(attention)


@pytest.mark.parametrize("far", [False, True])
def test_keys_that_a_capture_overlooks_are_found_however_far_they_are(far):
    window = 150 if far else 3
    model = mistral(window)
    with (
        looking(model, 100 if far else 2, window),
        pytest.raises(AttnscopeError, match="does not reproduce the output"),
    ):
        verify(model, {"input_ids": LONG})
    verify(model, {"input_ids": LONG})


class OwnLlama(T.LlamaForCausalLM):
    """A model whose class is in no library."""


def test_code_of_others_is_verified_whole_as_a_distance_may_be_written_in_it():
    torch.manual_seed(0)
    model = OwnLlama(T.LlamaConfig(intermediate_size=96, **SIZES)).eval()
    assert lengths_of(model) == [200, 200]
    with looking(model, 100), pytest.raises(AttnscopeError, match="does not reproduce the output"):
        verify(model, {"input_ids": LONG})


def test_only_the_whole_text_rejects_a_model():
    """A layer that fails on short texts alone is measured."""

    def only_long(_, arguments, options):
        if options["input_ids"].shape[1] < 100:
            raise ValueError("too short")

    model = llama()
    with model.register_forward_pre_hook(only_long, with_kwargs=True):
        assert len(verify(model, {"input_ids": LONG})) == 2
    assert way_of(model).calls == 2


def test_texts_that_are_not_tokens_alone_are_verified_whole():
    mask = torch.zeros(1, 1, 200, 200).masked_fill(torch.ones(200, 200).triu(1) > 0, torch.finfo(torch.float32).min)
    assert lengths_of(llama(), attention_mask=mask) == [200, 200]
    assert lengths_of(llama(), attention_mask=torch.ones(1, 200, dtype=torch.long)) == [31, 31]
