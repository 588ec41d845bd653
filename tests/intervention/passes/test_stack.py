"""What is left out of stacked passes is what does not differ: held against whole passes, one change at a time."""

import pytest
import torch

from attnscope.capture.watching import watching
from attnscope.intervention.calls import unread_sites
from attnscope.intervention.stack import same_without_what_is_skipped, stacked_passes
from attnscope.kernels.full import attend_in_full
from tests.intervention.small_models import MODELS, build, inputs_of


def logits_without(model, inputs, call_number, head):
    """One whole pass, attention written out, one head's output set to zero."""
    seen = []

    def observe(site, call):
        output = attend_in_full(call)[0].clone()
        if len(seen) == call_number:
            output[:, head] = 0
        seen.append(site)
        return output

    with torch.no_grad(), watching(model, observe):
        return model(**inputs)[0]


@pytest.mark.parametrize("name", MODELS)
def test_every_head_of_every_layer_is_as_in_a_whole_pass(name):
    model = build(name)
    inputs = inputs_of(model)
    real = slice(None) if model.config.is_encoder_decoder else inputs["attention_mask"].bool()
    with stacked_passes(model) as passes, torch.no_grad():
        before = passes.plain(inputs)
        found = {}
        for call, output in enumerate(passes.outputs):
            heads = output.shape[1]

            def edit(_, output, heads=heads):
                output = output.clone()
                for head in range(heads):
                    output[head, :, head] = 0
                return output

            found[call] = passes.run({call: edit}, heads)
    moved = 0.0
    for call, variants in found.items():
        for head in (0, len(variants) - 1):
            expected = logits_without(model, inputs, call, head)
            torch.testing.assert_close(variants[head][real], expected[real], rtol=1e-4, atol=1e-4)
            moved = max(moved, float((variants[head] - before)[real].abs().max()))
    assert moved > 0.01  # else the comparison would say nothing


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "bart", "albert"])
def test_nothing_below_the_change_is_computed_again(name):
    model = build(name)
    with stacked_passes(model) as passes, torch.no_grad():
        passes.plain(inputs_of(model))
        last = len(passes.outputs) - 1
        ran = []
        hooks = [
            module.register_forward_hook(lambda module, given, _: ran.append((module, len(given[0]))))
            for module in model.modules()
            if type(module).__name__ in {"Linear", "Conv1D"}
        ]
        passes.run({last: lambda _, output: 0 * output}, 5)
        first = len(ran)
        passes.run({0: lambda _, output: 0 * output}, 5)
        for hook in hooks:
            hook.remove()
    assert 0 < first < 0.7 * (len(ran) - first)


def test_places_alone_are_given_to_the_output_layer():
    model = build("bert")
    inputs = inputs_of(model)
    places = torch.tensor([[1, 4], [0, 2]])
    with stacked_passes(model) as passes, torch.no_grad():
        some = passes.plain(inputs, places)
        changed = passes.run({0: lambda _, output: output}, 3)
    assert some.shape[1] == 2
    expected = model(**inputs)[0].detach().gather(1, places[..., None].expand(-1, -1, 60))
    torch.testing.assert_close(some, expected)
    torch.testing.assert_close(changed, expected.expand(3, -1, -1, -1))


@pytest.mark.parametrize("position", [None, 0, 30, 39])
def test_a_layer_that_depends_on_the_number_of_texts_is_found_at_any_position(position):
    model = build("gpt2")
    layer = model.transformer.h[0].mlp.c_fc
    forward = layer.forward

    def counts_texts(received):
        output = forward(received).clone()
        if position is not None:
            output[:, position] += len(output)
        return output

    layer.forward = counts_texts
    inputs, every = {"input_ids": torch.arange(40)[None]}, torch.arange(40)[None]
    assert same_without_what_is_skipped(model, inputs, every) is (position is None)


def test_the_model_is_given_back():
    model = build("gpt2")
    before = {name: module.forward.__func__ for name, module in model.named_modules() if hasattr(module, "forward")}
    with pytest.raises(ZeroDivisionError), stacked_passes(model):
        raise ZeroDivisionError
    for name, module in model.named_modules():
        assert "forward" not in vars(module)
        assert name not in before or module.forward.__func__ is before[name]


def test_a_layer_without_an_output_projection_is_reported():
    model = build("bert")
    layer = model.bert.encoder.layer[1].attention
    own = layer.self.forward
    layer.self.forward = lambda *given, **named: (own(*given, **named)[0].cumsum(-1), None)  # mixes the heads
    unread = unread_sites(model, inputs_of(model))
    assert [site.index for site in unread] == [1]
