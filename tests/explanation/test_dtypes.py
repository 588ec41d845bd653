"""Models in 16 bits: what is of weights alone is that of the same weights in float32, and the rest within rounding."""

import copy
import importlib
import warnings

import numpy as np
import pytest
import torch

from attnscope import patch
from attnscope.capture.weights import in_single_precision
from attnscope.explanation.inputs import model_inputs, token_ids
from attnscope.explanation.stream import residual_stream
from attnscope.explanation.study import Study
from attnscope.explanation.tables import first_layer_split, word_table
from attnscope.support.errors import AttnscopeError
from attnscope_circuits import attribute, circuits, edges
from attnscope_lineage.weights.profiles import contribution_profiles
from attnscope_lineage.weights.tests import erasure_test
from attnscope_lineage.weights.tokens import token_contributions
from tests.tiny_models import tiny, tiny_reader

HALF = [torch.bfloat16, torch.float16]
FAMILIES = ["gpt2", "opt", "gpt_neox", "llama", "gemma2", "gpt_oss", "bert", "albert", "t5", "marian"]
TEXT = "The tide comes in twice a day. Nobody watches the lighthouse, and twice a day the tide goes out again."


def both(model, dtype):
    """The model in 16 bits, and its weights and buffers in float32."""
    half = model.to(dtype)
    return half, copy.deepcopy(half).float()


def dynamically_quantised(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but people have them
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def structure(model):
    """Where layers read and write the stream, by the names of modules."""

    def name(event):
        return event and event.name

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 60, (12,), generator=generator).tolist()
    stream = residual_stream(model, model_inputs(model, token_ids([ids])))
    layers = []
    for one in stream.layers:
        layers += [one.matrices.form, one.matrices.names, round(one.factor, 3)]
        layers += [(kind, name(run), round(factor, 3)) for kind, run, factor in one.added]
        layers += map(name, (one.after, one.branch, one.reader, one.query.norm, one.key.norm))
    return layers, stream.unverified, stream.is_linear, [*stream.ends]


def state(model):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    hooks = [one for module in model.modules() for one in (*module._forward_hooks, *module._forward_pre_hooks)]
    return [(name, tensor.data_ptr(), tensor.dtype) for name, tensor in tensors], hooks


@pytest.mark.parametrize(
    ("family", "dtype"), [*((one, HALF[0]) for one in FAMILIES), ("gemma2", HALF[1]), ("t5", HALF[1])]
)
def test_the_stream_is_that_of_the_same_weights_in_float32(family, dtype):
    half, full = both(tiny(family), dtype)
    before = state(half)
    assert structure(half) == structure(full)
    assert state(half) == before


@pytest.mark.parametrize(("family", "dtype"), [("gpt2", HALF[0]), ("llama", HALF[1]), ("gemma2", HALF[0])])
def test_circuits_are_of_the_weights_alone(family, dtype):
    found, expected = map(circuits, both(tiny(family), dtype))
    assert found.attrs["unembedding"] == expected.attrs["unembedding"] == "linear"
    assert found.attrs["unverified"] == expected.attrs["unverified"] == "[]"
    for name in ("copying_sum", "same_token", "offset_score", "composition", "copied_logit"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("albert", HALF[0]), ("albert", torch.float64), ("modernbert", HALF[1]), ("modernbert", torch.float64)],
)
def test_circuits_read_projected_embeddings_and_rotations_in_any_dtype(family, dtype):
    """ALBERT's tables are read in float32 before its projection is; ModernBERT rotates in float32 in every dtype."""
    model = tiny(family).to(dtype)
    found, expected = circuits(model), circuits(copy.deepcopy(model).float())
    assert found.attrs["skipped"] == expected.attrs["skipped"] == "{}"
    np.testing.assert_allclose(found.same_token, expected.same_token, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "form", "needs"),
    [
        ("gpt2", "float16", "torch"), ("llama", "bfloat16", "torch"), ("bert", "LoRA (peft)", "peft"),
        ("llama", "nf4 (bitsandbytes)", "bitsandbytes"), ("gpt2", "int8 (bitsandbytes)", "bitsandbytes"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's
def test_verbs_agree_with_a_float32_model_of_the_same_weights(family, form, needs):
    pytest.importorskip(needs)
    dtypes = importlib.import_module("benchmarks.dtypes")
    verbs = (dtypes.PLAIN, "scan", "circuits", "attribute --head", "patch", "head_outputs", "edit", "examples")
    rows = dtypes.judged(dtypes.rows_of(family, form, verbs))
    assert [(row["verb"], row["status"]) for row in rows] == [(verb, "equal") for verb in verbs], rows


@pytest.mark.parametrize(("family", "dtype"), [("gpt2", HALF[0]), ("llama", HALF[0]), ("opt", HALF[1])])
def test_attributions_follow_within_rounding(family, dtype):
    model, tokenizer = tiny_reader(family)
    models, limit = both(model, dtype), 4 * torch.finfo(dtype).eps
    parts, expected = (attribute(one, [TEXT], tokenizer=tokenizer, window=24)["predictions"].part for one in models)
    assert float(abs(parts - expected).max()) < limit * float(abs(expected).sum("component").max())
    both_scores = (attribute(one, [TEXT], tokenizer=tokenizer, window=24, head=(1, 2))["scores"] for one in models)
    parts, expected = (one.part.sel(relation="previous token") for one in both_scores)
    assert float(abs(parts - expected).max()) < limit * float(abs(expected).sum(("side", "source")).max())


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "bert", "t5"])
def test_edges_are_those_of_the_same_weights_in_float32(family):
    model, tokenizer = tiny_reader(family)
    for table in {model.get_input_embeddings(), model.get_output_embeddings()}:
        torch.nn.init.normal_(table.weight, std=0.5)
    ending = "" if family in {"gpt_neox", "llama"} else "<mask>"
    pair = {"clean": f"It was part{ending}", "corrupted": f"It was due{ending}", "answer": " of", "wrong": " to"}
    pair |= {"target": "The"} if family == "t5" else {}
    found, expected = (
        edges(one, [pair], tokenizer=tokenizer, method="eap", sizes=[0.0, 1.0], draws=1).score
        for one in both(model, HALF[1])
    )
    assert found.isnull().equals(expected.isnull())
    assert float(abs(found - expected).max()) < 0.1 * float(abs(expected).max())


@pytest.mark.parametrize("dtype", HALF)
def test_tables_have_the_rows_that_the_model_reads(dtype):
    half, full = both(tiny("gemma2"), dtype)  # multiplies its embeddings by the root of the width
    np.testing.assert_allclose(word_table(half), word_table(full), rtol=1e-6)
    models = both(tiny("bert"), dtype)
    given = model_inputs(models[0], token_ids([[*range(3, 20)]]))
    (found,), (expected,) = (first_layer_split(one, given).values() for one in models)
    np.testing.assert_allclose(found.position, expected.position, atol=1e-5)


def test_one_block_at_a_time_is_in_single_precision_and_all_are_restored_after_an_error():
    model = tiny("llama").to(torch.bfloat16)
    layers, seen = model.model.layers, []

    def note(*_):
        seen.append([layer.mlp.up_proj.weight.dtype for layer in layers])

    hooks = [layer.register_forward_hook(note) for layer in layers]
    ids = torch.arange(3, 9)[None]
    with in_single_precision(model), torch.no_grad():
        logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    assert seen == [[torch.float32, torch.bfloat16], [torch.bfloat16, torch.float32]]
    torch.testing.assert_close(logits, model.float()(ids).logits)
    model = tiny("llama").to(torch.bfloat16)
    before = state(model)
    hook = model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), in_single_precision(model):
        model(ids)
    hook.remove()
    assert state(model) == before


@pytest.mark.parametrize("verb", [patch, edges])
def test_layers_without_gradients_are_not_estimated_through(verb):
    """PyTorch's dynamically quantised layers end the graph, so that gradients before them would be 0."""
    model, tokenizer = tiny_reader("llama")
    for table in (model.get_input_embeddings(), model.lm_head):
        torch.nn.init.normal_(table.weight, std=0.5)
    packed = dynamically_quantised(model)
    pairs = [{"clean": "It was part", "corrupted": "It was due", "answer": " of", "wrong": " to"}]
    with pytest.raises(AttnscopeError, match="is a Linear of torch that passes no gradient on") as error:
        verb(packed, pairs, tokenizer=tokenizer)
    assert ("--method exact" if verb is edges else "--steps 0") in str(error.value)
    if verb is patch:
        assert "estimate" not in patch(packed, pairs, tokenizer=tokenizer, steps=0)["patched"]


@pytest.mark.filterwarnings("ignore:quantized")  # of PyTorch, which ends the graph there
def test_contributions_by_gradients_are_not_measured_through_them_either():
    model, _ = tiny_reader("llama")
    study = Study(dynamically_quantised(model), [[5, 6, 7, 8, 5, 6, 7, 8]])
    for measure, chosen in (
        (token_contributions, {"estimators": ["gradient"]}),
        (contribution_profiles, {}),
        (erasure_test, {}),
    ):
        with pytest.raises(AttnscopeError, match=r"passes no gradient on, so gradients cannot .* without gradients"):
            measure(study, **chosen)
    assert not contribution_profiles(study, kinds=["norms"]).attrs["skipped"]
