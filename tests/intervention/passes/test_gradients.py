"""Gradients of heads: against finite differences, and as a sum that is known."""

import numpy as np
import pytest
import torch
import transformers as T

from attnscope.bundled import MODELS as BUNDLED
from attnscope.catalogue import function_of
from attnscope.intervention.gradients import attribution, gates_towards, head_gradients, importance, loss_gradients
from attnscope.intervention.questions import Questions
from attnscope.intervention.stack import stacked_passes
from attnscope.measure.passes import WindowBatch
from attnscope.read.windows import Batch, Window
from tests.intervention.small_models import MODELS, build, inputs_of


def questions_of(model):
    inputs = inputs_of(model)
    sides = [
        Batch(ids, ids > 0, ids < 0)
        for ids in (inputs["input_ids"], inputs.get("decoder_input_ids", inputs["input_ids"]))
    ]
    places = torch.tensor([[1, 4, 5], [0, 2, 3]])
    labels = torch.tensor([[7, 8, -100], [9, 10, 11]])
    window = Window((0,), (False,), ((0, 0),), "text", 0, ("x",))
    return Questions(WindowBatch(*sides), places, labels, [window] * 2)


def losses(model, asked, edits, variants):
    with stacked_passes(model) as passes, torch.no_grad():
        passes.plain(asked.batch.inputs(model), asked.positions)
        return asked.scores(passes.run(edits, variants))["loss"]


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "ours"])  # the norms of the others work in float32
def test_importance_is_the_slope_in_a_gate(name):
    model = build(name).double()
    asked = questions_of(model)
    found = importance(loss_gradients(model, asked))
    call, head, step = 1, 2, 1e-5

    def gate(_, output):
        output = output.clone()
        output[0, :, head] *= 1 + step
        output[1, :, head] *= 1 - step
        return output

    above, below = losses(model, asked, {call: gate}, 2)
    slope = (above - below) / (2 * step)
    np.testing.assert_allclose(found[call][:, head], slope.abs(), rtol=1e-5)
    assert found[call][:, head].min() > 1e-4


def test_integrated_gates_add_up_to_taking_out_all_heads():
    model = build("llama").double()
    for parameter in model.parameters():
        parameter.data *= 0.5  # so that fifty steps are enough
    asked = questions_of(model)
    others = [torch.zeros_like(output) for output, _ in loss_gradients(model, asked)]
    steps = 50
    total = 0.0
    for step in range(steps):
        share = (step + 0.5) / steps
        along = loss_gradients(model, asked, gates_towards(others, share))
        remaining = [(output, gradient / (1 - share)) for output, gradient in along]
        total = total + sum(layer.sum(1) for layer in attribution(remaining, others)) / steps
    out = losses(model, asked, {call: lambda _, output: 0 * output for call in range(len(others))}, 1)[0]
    own = losses(model, asked, {0: lambda _, output: output}, 1)[0]
    np.testing.assert_allclose(total, (out - own).numpy(), rtol=2e-3, atol=1e-4)


def test_attribution_is_exact_where_the_loss_is_linear_in_the_heads():
    """Logits themselves are linear in the last layer's heads of a model without what follows it."""
    model = build("gpt2").double()
    model.transformer.h[1].mlp = torch.nn.Module()
    model.transformer.h[1].mlp.forward = torch.zeros_like
    model.transformer.ln_f = torch.nn.Identity()
    inputs = {"input_ids": inputs_of(model)["input_ids"]}
    found = head_gradients(model, inputs, lambda logits: logits[:, 3, 7].sum(), None)
    others = [torch.zeros_like(output) for output, _ in found]
    estimated = attribution(found, others)[1]
    with stacked_passes(model) as passes, torch.no_grad():
        before = passes.plain(inputs)[:, 3, 7]

        def out(_, output):
            output = output.clone()
            for head in range(4):
                output[head, :, head] = 0
            return output

        changed = passes.run({1: out}, 4)[:, :, 3, 7]
    np.testing.assert_allclose(estimated, (changed - before).T.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_logits_at_some_positions_alone_have_the_gradients_of_all(name):
    model, positions = build(name), torch.tensor([[1, 4], [0, 2]])
    inputs, computed = inputs_of(model), []
    layer = model.get_output_embeddings()
    layer.register_forward_hook(lambda *given: computed.append(given[-1].shape[1]))

    def of_all(logits):
        return logits.gather(1, positions[..., None].expand(-1, -1, logits.shape[-1])).tanh().sum()

    whole = head_gradients(model, inputs, of_all, None)
    some = head_gradients(model, inputs, lambda logits: logits.tanh().sum(), positions)
    assert computed == [inputs["decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"].shape[1], 2]
    for (_, expected), (_, gradient) in zip(whole, some, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert max(float(gradient.abs().max()) for _, gradient in some) > 0.001


@pytest.mark.parametrize("verb", ["patch", "edges"])
def test_verbs_that_ask_for_an_answer_compute_its_logits_alone(verb, monkeypatch):
    """All passes but those of checks, which compare whole results."""
    folder, computed = BUNDLED["bundled:tasks"], []
    model, tokenizer = (kind.from_pretrained(folder) for kind in (T.AutoModelForCausalLM, T.AutoTokenizer))
    model.get_output_embeddings().register_forward_hook(lambda *given: computed.append(given[-1].shape[1]))
    same = " the" * 9
    pairs = [{"clean": f"a{same}", "corrupted": f"a a{same[4:]}", "answer": " the", "wrong": " a"}] * 2
    more = {"steps": 2} | ({"sizes": [0.5], "draws": 1} if verb == "edges" else {})
    function_of(verb)(model, pairs, tokenizer=tokenizer, **more)
    checks = 3 if verb == "patch" else 6
    assert sum(count > 1 for count in computed) <= checks < sum(count == 1 for count in computed)
