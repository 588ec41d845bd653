"""Patching of encoder-decoders against runs patched by hand."""

from functools import partial

import numpy as np
import pytest
import torch

from attnscope import patch
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.watching import watching
from attnscope.intervention.pairs import Pair, sides_of
from attnscope.kernels.full import attend_in_full
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from attnscope_circuits import edges
from attnscope_zoo.catalogue import build
from tests.packages.circuits.test_edges import model_of, planted_pairs

FAMILIES = ("t5", "bart")
PAIR = Pair("t3 t4 t5", "t3 t6 t5", "t7", "t9", target="t10 t11", corrupted_target="t12 t11")
FIXED = Pair("t3 t4 t5", "t3 t4 t5", "t7", "t9", target="t10 t11", corrupted_target="t12 t11")


def reader(family):
    return LoadedModel(model_of(family), build("copying-decoder-1").tokenizer, family, {})


def run(loaded, pair, corrupted, change=lambda number, output: output):
    """Answer minus wrong answer, and the output of every attention call in order, where `change` may put in others."""
    ids, target = (torch.tensor([side]) for side in sides_of(pair, loaded, 1, corrupted=corrupted))
    outputs = []

    def observe(_, call):
        outputs.append(change(len(outputs), attend_in_full(call)[0].clone()))
        return outputs[-1]

    with torch.no_grad(), watching(loaded.model, observe):
        logits = loaded.model(input_ids=ids, decoder_input_ids=target).logits[0, -1]
    return float(logits[7] - logits[9]), outputs


@pytest.mark.parametrize(
    ("family", "pair", "direction"),
    [("t5", PAIR, "denoising"), ("bart", PAIR, "denoising"), ("bart", PAIR, "noising"), ("t5", FIXED, "denoising")],
)
def test_every_head_of_both_stacks_is_patched_as_by_hand(family, direction, pair):
    loaded, denoising = reader(family), direction == "denoising"
    found = patch(loaded, [pair], direction=direction, steps=0)["pairs"].isel(pair=0)
    source, donors = run(loaded, pair, not denoising)
    base, _ = run(loaded, pair, denoising)
    np.testing.assert_allclose([found.clean, found.corrupted][:: 1 if denoising else -1], [source, base], rtol=1e-6)
    assert sorted(set(found.layer_kind.values.tolist())) == ["causal", "cross", "self"]
    expected = np.full(found.difference.shape, np.nan)
    for layer, donor in enumerate(donors):
        for head in range(donor.shape[1]):

            def put_in(number, output, layer=layer, donor=donor, head=head):
                if number == layer:
                    output[:, head] = donor[:, head]
                return output

            expected[layer, head], _ = run(loaded, pair, denoising, put_in)
    np.testing.assert_allclose(found.difference, expected, rtol=1e-5, atol=1e-6)
    moved = abs(expected - base).max(1) > 1e-6
    assert moved[found.layer_kind == "causal"].any()
    assert moved[found.layer_kind == "self"].any() == (pair is PAIR)  # the encoder reads the same in both runs


def test_tables_name_the_stack_of_each_part():
    loaded = reader("t5")
    patched, found = patch(loaded, [PAIR], steps=0), edges(loaded, [PAIR], method="eap", sizes=[0.0], draws=1)
    first, second = report_of("patch", patched).tables[0], report_of("edges", found).tables[0]
    kinds = dict(enumerate(patched["pairs"].layer_kind.values.tolist()))
    assert [one.title for one in first.shown("table")][:2] == ["head", "type"]
    assert {(row["layer"], row["attention"]) for row in first.rows} == {*kinds.items()}
    stacks = {"self": "encoder", "causal": "decoder", "cross": "cross"}
    assert [one.name for one in second.shown("table")][:4] == ["from", "sender_stack", "to", "receiver_stack"]
    for row in second.rows:
        for name, stack in ((row["sender"], row["sender_stack"]), (row["receiver"], row["receiver_stack"])):
            if name.startswith("a"):
                assert stack == stacks[kinds[int(name[1 : name.index(".")])]]
            elif not name.startswith("m"):
                assert stack == ("encoder" if name == "input" else "decoder")
    layers, mlps = max(kinds), {row["sender"]: row["sender_stack"] for row in second.rows if row["sender"][0] == "m"}
    assert (mlps["m0"], mlps[f"m{len(mlps) - 1}"], layers) == ("encoder", "decoder", 5)
    one = build("copying-decoder-1")
    alone = edges(one.model, planted_pairs(one, 1), tokenizer=one.tokenizer, method="eap", sizes=[0.0], draws=1)
    assert "sender_stack" not in {one.name for one in report_of("edges", alone).tables[0].shown("table")}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_path_to_queries_keys_and_values_is_one_to_the_head(family):
    loaded = reader(family)
    kinds = patch(loaded, [PAIR], steps=0)["pairs"].layer_kind.values.tolist()
    cross = len(kinds) - 1
    assert kinds[cross] == "cross"
    whole, parts = (
        patch(loaded, [PAIR], receiver=names)["patched"].effect.values
        for names in (f"{cross}.1", f"{cross}.1.q,{cross}.1.k,{cross}.1.v")
    )
    np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-7)
    keys = patch(loaded, [PAIR], receiver=f"{cross}.1.k")["patched"].effect
    of_encoder = np.array(kinds) == "self"
    assert abs(keys.values[of_encoder]).max() > 1e-6
    np.testing.assert_allclose(keys.values[~of_encoder & (np.arange(len(kinds)) < cross)], 0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_sets_are_patched_as_by_hand_and_estimates_follow_the_changes(family):
    loaded = reader(family)
    tree = patch(loaded, [PAIR], steps=5, together=["0.0,1.1,3.0"])
    _, donors = run(loaded, PAIR, False)

    def put_in(number, output):
        for layer, head in ((0, 0), (1, 1), (3, 0)):
            if number == layer:
                output[:, head] = donors[layer][:, head]
        return output

    expected, _ = run(loaded, PAIR, True, put_in)
    pairs = tree["pairs"].isel(pair=0)
    np.testing.assert_allclose(pairs.together, [expected], rtol=1e-5, atol=1e-6)
    change = (pairs.difference - pairs.corrupted).values
    estimate = pairs.estimate.sel(estimator="eap_ig").values
    assert np.corrcoef(change[np.isfinite(change)], estimate[np.isfinite(change)])[0, 1] > 0.5


def test_positions_of_two_texts_are_rejected():
    for options in ({"by_position": True}, {"what": "attention"}, {"what": "residual", "positions": ["prediction"]}):
        with pytest.raises(AttnscopeError, match="positions are of two texts"):
            patch(reader("t5"), [PAIR], **options)


#: Modules of a block by what is patched, with the name of the block's list: of encoder and decoder.
MODULES = {
    "t5": {
        "residual": "block.1", "resid_post": "block.1", "mlp": "block.1.layer.{mlp}.DenseReluDense",
        "attn_out": "block.1.layer.0.SelfAttention.o", "ln1": "block.1.layer.0.layer_norm",
    },
    "bart": {"residual": "layers.1", "mlp": "layers.1.fc2", "attn_out": "layers.1.self_attn.out_proj"},
}  # fmt: skip


def replace(kept, at, _, __, returned):
    """Keep what a module returns, or put what it returned first at some positions."""
    states = returned[0] if isinstance(returned, tuple) else returned
    kept.append(states.clone())
    if not at:
        return None
    states = states.clone()
    states[:, at] = kept[0][:, at]
    return (states, *returned[1:]) if isinstance(returned, tuple) else states


@torch.no_grad()
@pytest.mark.parametrize(("family", "what"), [(family, what) for family in FAMILIES for what in MODULES[family]])
def test_blocks_of_both_stacks_are_patched_by_position_as_by_hand(family, what):
    loaded = reader(family)
    found = patch(loaded, [PAIR], what=what)
    shares, values = found["patched"], found["pairs"].isel(pair=0).difference
    assert values.sizes == {"block": 4, "position": 6}  # three tokens of the source, three that the decoder reads
    sides = [[torch.tensor([ids]) for ids in sides_of(PAIR, loaded, 1, corrupted=which)] for which in (False, True)]
    for number, stack in ((1, loaded.model.get_encoder()), (3, loaded.model.get_decoder())):
        module = stack.get_submodule(MODULES[family][what].format(mlp=1 if number == 1 else 2))
        kept, at = [], []
        hook = module.register_forward_hook(partial(replace, kept, at))
        ids, target = sides[0]
        loaded.model(input_ids=ids, decoder_input_ids=target)
        first = 0 if number == 1 else ids.shape[1]
        expected = np.full(6, np.nan)
        for position in range(ids.shape[1] if number == 1 else target.shape[1]):
            at[:] = [position]
            logits = loaded.model(input_ids=sides[1][0], decoder_input_ids=sides[1][1]).logits[0, -1]
            expected[first + position] = logits[7] - logits[9]
        hook.remove()
        np.testing.assert_allclose(values.sel(block=number), expected, atol=1e-6)
        assert np.nanmax(abs(expected - float(found["pairs"].corrupted[0]))) > 1e-3
    assert shares.token.values.tolist() == ["t3", "t4/t6", "t5", "t0", "t10/t12", "t11"]
    shown = report_of("patch", found)
    assert len(shown.tables[0].rows) == 12
