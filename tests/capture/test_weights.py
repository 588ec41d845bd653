"""Adapted, quantised and offloaded linear layers: their matrix is what they compute, and verbs read that one."""

import copy
import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from attnscope import AttnscopeError, edit, explain, head_outputs, intervene, roles
from attnscope.capture.weights import affine_of, linear_layers
from attnscope.detection.roles import control
from attnscope.explanation.tables import word_table
from attnscope_circuits import attribute, circuits, edges
from tests.tiny_models import tiny_reader

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft

TEXT = "The tide comes in twice a day. Nobody watches the lighthouse."
PAIR = {"clean": "It was part", "corrupted": "It was due", "answer": " of", "wrong": " to"}
EVERYWHERE = ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "lm_head")


@pytest.fixture(scope="module")
def reader():
    model, tokenizer = tiny_reader("llama")
    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        nn.init.normal_(table.weight, std=0.5)
    return model, tokenizer


class Adapter(nn.Module):
    """A layer and a low-rank product beside it, as peft has them."""

    def __init__(self, base_layer, rank=3):
        super().__init__()
        self.base_layer, self.in_features, self.out_features = (
            base_layer,
            base_layer.in_features,
            base_layer.out_features,
        )
        self.lora_A = nn.Linear(self.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False)
        for part in (self.lora_A, self.lora_B):
            nn.init.normal_(part.weight, std=0.4)

    def forward(self, states):
        return self.base_layer(states) + self.lora_B(self.lora_A(states))

    def merged(self):
        self.base_layer.weight.data += self.lora_B.weight @ self.lora_A.weight
        return self.base_layer


class Codes(nn.Module):
    """A layer of codes with a scale for each row, as bitsandbytes has them: `weight` is not its matrix."""

    def __init__(self, layer, *, rounds_input=False):
        super().__init__()
        self.in_features, self.out_features, self.rounds_input = layer.in_features, layer.out_features, rounds_input
        self.register_buffer("scale", layer.weight.detach().abs().amax(1, keepdim=True) / 127)
        self.weight = nn.Parameter((layer.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, states):
        if self.rounds_input:
            step = states.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
            states = (states / step).round() * step
        return states @ (self.weight * self.scale).T

    def merged(self):
        plain = nn.Linear(self.in_features, self.out_features, bias=False)
        plain.weight.data = self.weight * self.scale
        return plain


class LowRank(nn.Module):
    """A parametrisation."""

    def __init__(self, *shape):
        super().__init__()
        self.change = nn.Parameter(torch.randn(*shape) / 5)

    def forward(self, weight):
        return weight + self.change


def changed(model, change, names=EVERYWHERE):
    """A copy of a model with other modules in place of some linear layers."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if name.endswith(names):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], change(module))
    return model.eval()


def as_adapters(model):
    adapted = changed(model, Adapter)
    return adapted, changed(adapted, Adapter.merged)


def as_codes(model):
    coded = changed(model, Codes)
    return coded, changed(coded, Codes.merged)


def as_parametrised(model):
    def change(module):
        return parametrize.register_parametrization(module, "weight", LowRank(*module.weight.shape))

    return with_plain_copy(changed(model, change), model)


def of_peft(model):
    peft = pytest.importorskip("peft")
    targets = [*EVERYWHERE, "embed_tokens"]
    settings = peft.LoraConfig(r=3, target_modules=targets, init_lora_weights=False, use_dora=False)
    adapted = peft.get_peft_model(copy.deepcopy(model), settings).eval()
    return adapted, copy.deepcopy(adapted).merge_and_unload()


def as_dora(model):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=3, target_modules=["v_proj", "o_proj"], init_lora_weights=False, use_dora=True)
    adapted = peft.get_peft_model(copy.deepcopy(model), settings).eval()
    return adapted, copy.deepcopy(adapted).merge_and_unload()


def as_four_bits(model):
    library = pytest.importorskip("bitsandbytes")

    def change(module):
        made = library.nn.Linear4bit(module.in_features, module.out_features, bias=False, compute_dtype=torch.float32)
        made.weight = library.nn.Params4bit(module.weight.data.clone(), requires_grad=False, quant_type="nf4")
        return made.to("cpu")

    return with_plain_copy(changed(model, change), model)


def of_quanto(model):
    library = pytest.importorskip("optimum.quanto")
    made = copy.deepcopy(model)
    library.quantize(made, weights=library.qint8)
    library.freeze(made)
    return with_plain_copy(made, model)


@torch.no_grad()
def with_plain_copy(made, model):
    """A changed model, and one with the numbers of its layers, from their outputs for the identity."""
    plain = copy.deepcopy(model)
    for name, _ in linear_layers(model):
        module = plain.get_submodule(name)
        module.weight = nn.Parameter(made.get_submodule(name)(torch.eye(module.in_features)).T)
    return made, plain


FORMS = [as_adapters, as_codes, as_parametrised, of_peft, as_dora, as_four_bits, of_quanto]


@pytest.fixture(scope="module")
def copying(reader):
    """How much heads of the unchanged model copy."""
    return circuits(reader[0]).copying_sum


@pytest.mark.parametrize("form", FORMS)
def test_every_reader_of_matrices_reads_those_that_the_model_applies(reader, copying, form):
    model, expected = form(reader[0])
    given = {"tokenizer": reader[1]}
    own, right = circuits(model), circuits(expected)
    assert own.attrs["skipped"] == "{}"
    assert own.attrs["unverified"] == "[]"
    assert float(abs(right.copying_sum - copying).max()) > 1e-3 or form is of_quanto
    for name in ("copying_sum", "same_token", "composition", "offset_score", "copied_logit"):
        np.testing.assert_allclose(own[name], right[name], rtol=1e-3, atol=1e-4, err_msg=name)
    parts = [attribute(one, [TEXT], **given)["predictions"].part for one in (model, expected)]
    np.testing.assert_allclose(*parts, atol=1e-4)
    scores = [edges(one, [PAIR], method="eap", sizes=[0.0, 1.0], draws=1, **given).score for one in (model, expected)]
    np.testing.assert_allclose(*scores, atol=1e-4 * float(abs(scores[1]).max()) + 1e-5)
    outputs = [head_outputs(one, [TEXT], **given) for one in (model, expected)]
    np.testing.assert_allclose(*outputs, atol=1e-4 * float(abs(outputs[1]).max()))


@pytest.mark.parametrize("form", FORMS)
def test_editing_an_output_away_is_zeroing_z(reader, form):
    model, _ = form(reader[0])
    ids = torch.tensor([reader[1](TEXT)["input_ids"]])
    logits = []
    for on in ("output", "z"):
        with edit(model, {(1, 2): torch.zeros_like}, on=on), torch.no_grad():
            logits.append(model(input_ids=ids).logits)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4)


def test_gradients_reach_the_adapter_of_an_edited_output(reader):
    model = changed(reader[0], Adapter, ("o_proj",))
    ids = torch.tensor([reader[1](TEXT)["input_ids"]])
    with edit(model, {(1, 2): lambda output: output * 0.5}):
        model(ids).logits.sum().backward()
    gradient = model.model.layers[1].self_attn.o_proj.lora_A.weight.grad
    assert float(gradient.abs().max()) > 0


def test_a_layer_that_rounds_its_input_has_a_matrix_and_parts_within_its_rounding(reader):
    model = changed(reader[0], lambda layer: Codes(layer, rounds_input=True), ("q_proj", "k_proj", "v_proj", "o_proj"))
    expected = changed(model, Codes.merged, ("q_proj", "k_proj", "v_proj", "o_proj"))
    own, right = circuits(model), circuits(expected)
    assert own.attrs["skipped"] == "{}"
    for name in ("copying_sum", "same_token", "composition"):
        np.testing.assert_allclose(own[name], right[name], atol=1e-4)
    parts = attribute(model, [TEXT], tokenizer=reader[1])["predictions"]
    assert 1e-4 < float(parts.difference.max()) < 0.05 * float(abs(parts.part).sum())
    scores = [
        edges(one, [PAIR], tokenizer=reader[1], method="eap", sizes=[1.0], draws=1).score for one in (model, expected)
    ]
    assert scores[0].isnull().equals(scores[1].isnull())


def test_what_is_not_linear_has_no_matrix(reader):
    class Bent(nn.Linear):
        def forward(self, states):
            return super().forward(states).tanh()

    def bent(layer):
        made = Bent(layer.in_features, layer.out_features, bias=False)
        made.weight = layer.weight
        return made

    model = changed(reader[0], bent, ("v_proj",))
    assert "gives its values" in circuits(model).attrs["skipped"]
    model = changed(reader[0], bent, ("o_proj",))
    assert affine_of(model.model.layers[0].self_attn.o_proj, torch.randn(5, 32)) is None
    with pytest.raises(AttnscopeError, match="no linear layer reads"):
        head_outputs(model, [TEXT], tokenizer=reader[1])
    with pytest.raises(AttnscopeError, match="no linear layer reads the output of the heads of layer 0"):
        attribute(model, [TEXT], tokenizer=reader[1])


def test_layers_inside_adapters_are_no_layers_of_the_model(reader):
    names = [name for name, _ in linear_layers(changed(reader[0], Adapter))]
    assert not any("base_layer" in name or "lora" in name for name in names)
    assert names == [name for name, _ in linear_layers(reader[0])]


def test_an_adapted_table_has_the_rows_that_the_model_reads(reader):
    model, expected = of_peft(reader[0])
    np.testing.assert_allclose(word_table(model.get_base_model()), word_table(expected), atol=1e-6)
    explain(model, [TEXT] * 6, tokenizer=reader[1], window=16)


@contextmanager
def silent():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_offloaded_objects_give_the_numbers_of_those_in_memory(reader, family):
    accelerate = pytest.importorskip("accelerate")
    model, tokenizer = reader if family == "llama" else tiny_reader(family)
    offloaded, given = copy.deepcopy(model), {"tokenizer": tokenizer}
    with silent():
        accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
    assert all(parameter.is_meta for parameter in offloaded.parameters())
    own, right = map(circuits, (offloaded, model))
    for name in ("copying_sum", "composition"):
        np.testing.assert_allclose(own[name], right[name], atol=1e-5)
    parts = [attribute(one, [TEXT], **given)["predictions"].part for one in (offloaded, model)]
    np.testing.assert_allclose(*parts, atol=1e-5)
    settings = {"ablations": ["zero"], "steps": 0, "why": False, **given}
    effects = [intervene(one, [TEXT] * 2, **settings)["effects"].loss_change for one in (offloaded, model)]
    np.testing.assert_allclose(*effects, atol=1e-6)
    found = roles(offloaded, [TEXT * 2], only="previous_token", **given)
    assert "offloaded weights cannot be" in found.attrs["skipped"]


def test_controls_of_codes_and_adapters_are_rejected(reader):
    with (
        pytest.raises(AttnscopeError, match="quantised weights cannot"),
        control(as_codes(reader[0])[0], "shuffled", 0),
    ):
        pass
    adapted = as_adapters(reader[0])[0]
    with pytest.raises(AttnscopeError, match="adapted weights cannot"), control(adapted, "initialised", 0):
        pass
