"""Weight matrices found by matching give the captured scores, values and outputs, in every family."""

from importlib import import_module

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.capture.watching import watching
from attnscope.explanation.projections import projections, slices_of
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from attnscope.kernels.reference import attend
from tests.explanation.captured_inputs import capture_inputs
from tests.tiny_models import MAKERS, inputs, tiny

ROPE = {"modernbert", "gpt_neox", "llama", "mistral", "gemma2", "gpt_oss"}
FORMS = {family: "rope" if family in ROPE else "bilinear" for family in MAKERS}
FORMS |= {"qwen3": "normalised", "deberta": "unknown"}
GROUPED = {"llama", "mistral", "gemma2", "gpt_oss", "qwen3"}


def of_first_text(family):
    given, _ = inputs(family, padded=False)
    return {name: tensor[:1] for name, tensor in given.items()}


@pytest.mark.parametrize("family", MAKERS)
def test_every_matrix_of_every_family_is_found(family):
    model, given = tiny(family), inputs(family, padded=False)[0]
    for site, found in projections(model, given).items():
        assert found.form == FORMS[family], (site, found.reason)
        assert (found.reason == "") == (found.form in {"bilinear", "rope"})
        if family == "deberta":  # its query's bias is added apart, so that no linear layer gives it
            continue
        assert found.query.shape == (4, 32, 8)
        assert found.key.shape == found.value.shape == (2 if family in GROUPED else 4, 32, 8)
        assert found.output.shape == (4, 8, 32)
        assert found.query.dtype == np.float64
        assert found.group == (2 if family in GROUPED else 1)
        assert (found.rotation is not None) == (family in ROPE | {"qwen3"})
        if family != "qwen3":
            assert found.error < 1e-6
            scales = {"t5": 1.0, "deberta_v2": 24**-0.5}  # three products of queries and keys in one sum
            assert found.scale == pytest.approx(scales.get(family, 8**-0.5))


@pytest.mark.parametrize("family", [family for family, form in FORMS.items() if form == "bilinear"])
def test_scores_from_x_and_the_matrices_are_those_captured(family):
    model, given = tiny(family), of_first_text(family)
    matrices = projections(model, given)
    x, other = capture_inputs(model, given), capture_inputs(model, given, key_side=True)
    seen = []

    def observe(site, call):
        found = matrices[site]
        for head in range(4):
            W_Q, b_Q, W_K, b_K = found.of_head(head)
            mine = found.scale * (x[site] @ W_Q + b_Q) @ (other[site] @ W_K + b_K).T
            theirs = call.scale * call.query[0, head].double() @ call.key[0, head].double().T
            np.testing.assert_allclose(mine, theirs, atol=2e-6 * float(theirs.abs().max()))
        seen.append(site)
        return measure(call, Need())[0]

    with torch.no_grad(), watching(model, observe):
        model(**given)
    assert seen == list(matrices)


@pytest.mark.parametrize("family", [family for family, form in FORMS.items() if form != "unknown"])
def test_values_and_outputs_follow_from_the_matrices(family):
    """Sum over heads of A (X W_V + b_V) W_O plus the output's bias is what the output layer returns."""
    model, given = tiny(family), of_first_text(family)
    matrices, other = projections(model, given), capture_inputs(model, given, key_side=True)
    expected, returned = {}, {}

    def observe(site, call):
        found = matrices[site]
        total = torch.from_numpy(found.output_bias)
        mask = call.mask
        if call.causal:
            causal = torch.ones(call.query.shape[2], call.key.shape[2], dtype=torch.bool).tril()
            mask = causal if mask is None else mask & causal
        for head in range(4):
            at = head // found.group
            value = torch.from_numpy(other[site] @ found.value[at] + found.value_bias[at])
            output, _ = attend(
                call.query[0, head].double(),
                call.key[0, at].double(),
                value,
                None if mask is None else mask if mask.ndim == 2 else mask[0, 0],
                call.scale,
                bias=None if call.bias is None else call.bias[0, head].double(),
                softcap=call.softcap,
                sinks=None if call.sinks is None else call.sinks[head].double().view(1, 1),
            )
            total = total + output @ torch.from_numpy(found.output[head])
        expected[site] = total
        name = found.names["output"]
        hooks.append(model.get_submodule(name).register_forward_hook(lambda *args: keep(site, args[2])))
        return measure(call, Need())[0]

    def keep(site, output):
        hooks.pop().remove()
        returned[site] = output[0].double()

    hooks = []
    with torch.no_grad(), watching(model, observe):
        model(**given)
    assert list(expected) == list(matrices)
    for site, total in expected.items():
        torch.testing.assert_close(returned[site], total, atol=2e-5 * float(total.abs().max()), rtol=0)


def test_matrices_that_are_not_known_are_reported_not_guessed():
    found = next(iter(projections(tiny("deberta"), of_first_text("deberta")).values()))
    assert found.query is None
    with pytest.raises(AttnscopeError, match=rf"layer 0 .* are not known: {found.reason}"):
        found.of_head(0)


def test_one_token_is_too_few():
    with pytest.raises(AttnscopeError, match="1 token shows no form"):
        projections(tiny("bert"), {"input_ids": torch.tensor([[5]])})


def test_matrices_whose_scores_are_not_those_captured_are_not_used(monkeypatch):
    module = import_module("attnscope.explanation.projections")  # the package has a function of that name
    monkeypatch.setattr(module, "_error", lambda *_: 0.01)
    (found, *_) = projections(tiny("bert"), of_first_text("bert")).values()
    assert found.form == "unknown"
    assert "differ from those captured by 1e-02" in found.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_other_types_are_matched_within_their_precision(family, dtype):
    found = projections(tiny(family).to(dtype), inputs(family, padded=False)[0])
    assert {one.form for one in found.values()} == {FORMS[family]}


def test_fused_queries_of_a_group_precede_their_key_and_value():
    """One layer for all, group by group: two queries of width 3, their key, their value; 4 heads of 2 groups."""
    block = [np.arange(start, start + 12).reshape(4, 3) for start in (0, 12)]
    layouts = {
        "query": (4, np.concatenate([one[:2] for one in block])),
        "key": (2, np.stack([one[2] for one in block])),
        "value": (2, np.stack([one[3] for one in block])),
    }
    for role, (heads, columns) in layouts.items():
        found = slices_of(24, heads, 3, groups=2)
        assert any(np.array_equal(one, columns) for one in found), role
