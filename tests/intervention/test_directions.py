"""Directions: edits along them against hooks of one's own, their files, and what each part of a model adds to them."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import attnscope
import attnscope_circuits
from attnscope.intervention.directions import Direction
from attnscope.support.errors import AttnscopeError
from attnscope_circuits.attribution_report import report
from tests.tiny_models import tiny, tiny_reader

IDS = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
TEXTS = ["It was part of the game, and so it went on.", "The tide comes in twice a day."]


def vector(width=32):
    return torch.randn(width, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_edits_along_a_direction_are_those_of_hooks(family, dtype):
    model, v = tiny(family).to(dtype), vector()
    block = model.model.layers[0] if family == "llama" else model.bert.encoder.layer[0].output.LayerNorm
    unit = (v / v.norm()).double()
    changes = {
        "add": lambda x: x + 1.5 * v.double(),
        "remove": lambda x: x - (x @ unit)[..., None] * unit,
        "set": lambda x: x - (x @ unit)[..., None] * unit + 2.0 * v.double(),
    }
    own = {"add": Direction(v).add(1.5), "remove": Direction(v).remove(), "set": Direction(v).set(2.0)}
    for name, change in changes.items():
        if family == "llama":
            hook = block.register_forward_hook(lambda _, __, out, change=change: change(out.double()).to(dtype))
        else:
            hook = block.register_forward_pre_hook(
                lambda _, given, change=change: (change(given[0].double()).to(dtype),)
            )
        with torch.no_grad():
            expected = model(IDS).logits
            hook.remove()
            with attnscope.edit(model, {"0.resid_post": own[name]}) as edited:
                found = edited(IDS).logits
        limit = (1e-5 if dtype == torch.float32 else 2e-2) * float(expected.abs().max())
        assert float((found - expected).abs().max()) <= limit, name


def test_the_amount_along_a_direction_is_learned_and_holds_in_generate():
    model, direction = tiny("llama"), Direction(vector())
    amount = torch.zeros((), requires_grad=True)
    with attnscope.edit(model, {"1.resid_mid": direction.add(amount)}) as edited:
        edited(IDS, labels=IDS).loss.backward()
    assert float(amount.grad.abs()) > 0
    kept = []

    def check(stream):
        kept.append(direction.coefficient(stream))
        return stream

    with attnscope.edit(model, {"0.resid_post": direction.set(3.0), "1.resid_pre": check}) as edited:
        edited.generate(IDS, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert [len(one[0]) for one in kept] == [9, 1, 1, 1]
    assert all(torch.allclose(one, torch.full_like(one, 3.0), atol=1e-5) for one in kept)


def test_a_direction_is_read_from_a_file(tmp_path):
    matrix = torch.randn(5, 32, generator=torch.Generator().manual_seed(4))
    path, single = tmp_path / "sae.safetensors", tmp_path / "probe.safetensors"
    save_file({"W_dec": matrix, "b_dec": matrix[0].clone()}, path)
    save_file({"probe": matrix[1].bfloat16()}, single)
    assert torch.equal(Direction.of(f"{path}:W_dec:3").vector, matrix[3])
    assert torch.equal(Direction.read(path, "W_dec", column=7).vector, matrix[:, 7])
    assert torch.equal(Direction.of(f"{path}:b_dec").vector, matrix[0])
    assert torch.equal(Direction.of(single).vector, matrix[1].bfloat16())
    for source, reason in [
        (f"{path}:W_dec", "expected a vector"),
        (f"{path}:W_dec:5", r"found W_dec of shape \(5, 32\) in .*; expected a matrix with row 5"),
        (str(path), "expected one of W_dec, b_dec"),
        (f"{path}:W_enc:1", "no tensor 'W_enc'"),
        (tmp_path / "none.safetensors", "is not a file of safetensors that can be read"),
        ("steering.pt", "expected file.safetensors"),
        ([0.0, 0.0], "not all 0"),
        ([[1.0]], r"of shape \(1, 1\)"),
    ]:
        with pytest.raises(AttnscopeError, match=reason):
            Direction.of(source)
    for chosen, reason in [
        ({"row": 1, "column": 2}, "a row and a column"),
        ({"column": -1}, "expected a matrix with column -1"),
    ]:
        with pytest.raises(AttnscopeError, match=reason):
            Direction.read(path, "W_dec", **chosen)
    with pytest.raises(AttnscopeError, match="found the amount nan; expected finite numbers"):
        Direction.of([1.0, 2.0]).add(float("nan"))
    with (
        pytest.raises(AttnscopeError, match="of 2 numbers; expected 32"),
        attnscope.edit(tiny("gpt2"), {"0.resid_pre": Direction.of([1.0, 2.0]).remove()}) as edited,
    ):
        edited(IDS)


@pytest.mark.parametrize(
    ("family", "site"),
    [
        ("llama", "1.resid_mid"),
        ("gemma2", "0.resid_post"),
        ("gpt_neox", "1.resid_pre"),
        ("falcon_h1", "1.resid_mid"),
        ("bert", "0.resid_post"),
    ],
)
def test_parts_of_a_product_at_a_site_are_the_products_of_what_is_added(family, site, tmp_path):
    model, tokenizer = tiny_reader(family)
    v = vector()
    save_file({"probe": v}, tmp_path / "probe.safetensors")
    reading = {"tokenizer": tokenizer}
    direction = tmp_path / "probe.safetensors"
    tree = attnscope_circuits.attribute(model, TEXTS, direction=direction, site=site, **reading)
    found = tree["predictions"].to_dataset()
    np.testing.assert_allclose(found.part.sum("component"), found.total, rtol=1e-4, atol=1e-4)
    if family != "bert":  # whose predictions are of masks
        stream = attnscope.head_outputs(model, TEXTS, on=site, **reading)
        heads = attnscope.head_outputs(model, TEXTS, on="output", layer=0, **reading)
        at = found["query"].isel(window=0).dropna("position").astype(int).values
        total = (stream.isel(window=0).values[at] @ v.numpy()).mean()
        np.testing.assert_allclose(found.total[0], total, rtol=1e-4, atol=1e-4)
        if family != "gemma2":  # which norms what its heads add
            of_head = (heads.isel(window=0, head=1).values[at] @ v.numpy()).mean()
            np.testing.assert_allclose(found.part[0].sel(component="0.1"), of_head, rtol=1e-3, atol=1e-4)
    layers = found.layer.where(found.kind == "head", drop=True)
    assert int(layers.max()) == (0 if site in {"0.resid_post", "1.resid_pre"} else 1)
    shown = report(tree)
    assert site in shown.title
    assert "logit" not in " ".join(shown.finding.sentences)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"site": "1.resid_mid"}, "is for a direction"),
        ({"site": "1.mlp_out", "direction": vector().numpy()}, "expected the residual stream"),
        ({"site": "0.resid_pre", "direction": vector().numpy()}, "no direct attribution at 0.resid_pre"),
        ({"site": "1.nothing", "direction": vector().numpy()}, "found the name '1.nothing'"),
        ({"site": "1.resid_mid", "direction": vector(31).numpy()}, r"direction of shape \(31,\); expected \(32,\)"),
    ],
)
def test_a_site_that_has_no_product_is_named(options, reason):
    model, tokenizer = tiny_reader("llama")
    with pytest.raises(AttnscopeError, match=reason):
        attnscope_circuits.attribute(model, TEXTS, tokenizer=tokenizer, **options)
