"""Profiles of every kind of weight, against transformers' eager weights and the functions on arrays."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.explanation.projections import projections
from attnscope.explanation.study import Study, study
from attnscope.read.windows import Window
from attnscope_lineage.weights.profiles import contribution_profiles
from tests.explanation.captured_inputs import capture_inputs
from tests.intervention.eager_gradients import TARGET, TEXT, given_to, weights_and_gradients
from tests.intervention.parts_of_blocks import block, effective
from tests.packages.lineage.models.small_lineage import small
from tests.tiny_models import tiny

BAND = 4
#: Some normalise and take the softmax in single precision, whatever the model's own is.
ROUNDING = {"llama": 1e-6, "gemma2": 1e-6}
FAMILIES = ["bert", "gpt2", "gemma2", "t5", "bart"]


def read(model, texts=(TEXT,)):
    """Profiles of all kinds; a decoder beside an encoder reads another text."""
    windows = [tuple(text) for text in texts]
    if model.config.is_encoder_decoder:
        marks = {"special": (), "spans": (), "source": "a", "start": 0, "shown": ()}
        windows = [Window(ids, target=Window(tuple(TARGET), **marks), **marks) for ids in windows]
    return contribution_profiles(Study(model, windows, name="tiny"), band=BAND)


def along(matrix):
    """The definition of a profile."""
    queries, keys = matrix.shape[-2:]
    with np.errstate(invalid="ignore"):
        return np.stack(
            [
                np.diagonal(matrix, t, -2, -1).mean(-1) if -queries < t < keys else np.full(matrix.shape[:-2], np.nan)
                for t in range(-BAND, BAND + 1)
            ],
            -1,
        )


def by_row(matrix):
    total = matrix.sum(-1, keepdims=True)
    return matrix / np.where(total > 0, total, 1)


def joint(kind, matrix, sizes, off):
    """A layer's matrix over the tokens of both texts; rows of the other side hold `off` on the diagonal."""
    source, target = sizes
    rows = slice(0, source) if kind == "self" or not target else slice(source, None)
    columns = slice(source, None) if kind == "causal" and target else slice(0, source)
    whole = np.eye(source + target) * off
    whole[rows] = 0
    whole[rows, columns] = matrix
    return whole, rows, columns


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Profiles of a model, its eager weights and gradients, values and W_O."""
    model = tiny(request.param).double()
    found = read(model).isel(window=0)
    matrices = list(projections(model, given_to(model)).values())
    keys = list(capture_inputs(model, given_to(model), key_side=True).values())
    values = [
        np.repeat(x @ one.value + one.value_bias[:, None], one.group, 0) for x, one in zip(keys, matrices, strict=True)
    ]
    rounding = ROUNDING.get(request.param, 1e-9)
    return found, weights_and_gradients(model), values, [one.output for one in matrices], rounding


def test_weights_norms_and_gradients_of_each_head(family):
    found, layers, values, outputs, rounding = family
    for number, (kind, weights, gradient) in enumerate(layers):
        here = found.isel(layer=number)
        assert here.layer_kind == kind
        sizes = np.linalg.norm(values[number] @ outputs[number], axis=-1)[:, None]
        relevant = by_row(np.maximum(weights * gradient, 0))
        np.testing.assert_allclose(here.profile_weights, along(weights), atol=rounding)
        np.testing.assert_allclose(here.profile_norms, along(by_row(weights * sizes)), atol=rounding)
        np.testing.assert_allclose(here.profile_gradient, along(relevant), atol=rounding)


def test_effective_attention_of_each_head(family):
    found, layers, values, _, rounding = family
    for number, (kind, weights, _) in enumerate(layers):
        here = found.isel(layer=number)
        allowed = np.tril(np.ones(weights.shape[1:], bool)) if kind == "causal" else np.ones(weights.shape[1:], bool)
        if (weights[:, allowed] == 0).any():  # a sliding window, of Gemma 2
            allowed = weights[0] > 0
        for head, one in enumerate(weights):
            expected, (null, permuted, rank, free) = effective(one, values[number][head], allowed)
            at = here.isel(head=head)
            np.testing.assert_allclose(at.profile_effective, along(expected), atol=10 * rounding)
            np.testing.assert_allclose(at.null_share, null.mean(), atol=10 * rounding)
            np.testing.assert_allclose(at.null_share_permuted, permuted.mean(), atol=10 * rounding)
            np.testing.assert_allclose(at["rank"], rank.mean())
            np.testing.assert_allclose(at.free_dimensions, free.mean())
            np.testing.assert_allclose(at.identifiable, (free == 0).mean())


def test_rollout_and_relevance_through_all_layers(family):
    found, layers, _, _, rounding = family
    sizes = len(TEXT), len(TARGET) if "cross" in found.layer_kind.values else 0
    rolled = relevance = np.eye(sum(sizes))
    for number, (kind, weights, gradient) in enumerate(layers):
        whole, rows, columns = joint(kind, weights.mean(0), sizes, 1)
        rolled = (0.5 * np.eye(len(whole)) + 0.5 * whole) @ rolled
        np.testing.assert_allclose(found.profile_rollout[number], along(rolled[rows, columns]), atol=rounding)
        kept, rows, columns = joint(kind, np.maximum(weights * gradient, 0).mean(0), sizes, 0)
        relevance = relevance + kept @ relevance
        grown = (relevance - np.eye(len(whole)))[rows, columns]
        np.testing.assert_allclose(found.profile_relevance[number], along(by_row(grown)), atol=rounding)


BLOCKS = {  # by the names that the families give to their parts
    "bert": lambda model, at: (model.bert.encoder.layer[at].attention.output.LayerNorm, "layer", "sum", None),
    "gpt2": lambda model, at: (None, None, "sum", model.transformer.h[at].ln_1),
    "llama": lambda model, at: (None, None, "sum", model.model.layers[at].input_layernorm),
    "gemma2": lambda model, at: (
        model.model.layers[at].post_attention_layernorm,
        "rms",
        "attention",
        model.model.layers[at].input_layernorm,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_norms_and_mixing_are_those_of_all_parts_written_out(name):
    model, rounding = tiny(name).double(), ROUNDING.get(name, 1e-9)
    torch.manual_seed(5)
    for parameter in model.parameters():  # norms that do something
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    found = read(model).isel(window=0)
    matrices = list(projections(model, given_to(model)).values())
    states = list(capture_inputs(model, given_to(model)).values())
    residuals = {}
    for at in range(2):
        reads = BLOCKS[name](model, at)[3]
        if reads is not None:
            reads.register_forward_pre_hook(
                lambda _, given, at=at: residuals.update({at: given[0][0].detach().numpy()})
            )
    layers = weights_and_gradients(model)
    for at, (_, weights, _) in enumerate(layers):
        norm, kind, place, _ = BLOCKS[name](model, at)
        one = matrices[at]
        values = np.repeat(states[at] @ one.value + one.value_bias[:, None], one.group, 0)
        options = {}
        if norm is not None:
            gain = norm.weight.detach().double().numpy()
            shift = norm.bias.detach().double().numpy() if kind == "layer" else None
            options = {"gain": gain if kind == "layer" else 1 + gain, "shift": shift}
            options["epsilon"] = float(getattr(norm, "eps", 1e-5))
        norms, mixed = block(
            weights,
            values,
            one.output,
            np.asarray(residuals.get(at, states[at]), dtype=float),
            bias=one.output_bias,
            norm=kind,
            place=place,
            **options,
        )
        here = found.isel(layer=at)
        np.testing.assert_allclose(here.profile_block_norms, along(by_row(norms)), atol=rounding)
        mixing = here.mixing_ratio
        np.testing.assert_allclose(mixing.sel(of="block"), mixed, atol=rounding)
        plain = block(weights, values, one.output, np.zeros_like(states[at]))[1]
        np.testing.assert_allclose(mixing.sel(of="norms"), plain, atol=rounding)
        other = 1 - np.diagonal(weights, 0, 1, 2).mean()
        np.testing.assert_allclose(mixing.sel(of=["weights", "half residual"]), [other, other / 2], atol=rounding)


@pytest.mark.parametrize("name", ["rope-pre", "sinusoidal-post"])
def test_the_projects_own_translators(name):
    model = small(name)
    marks = {"special": (), "spans": (), "source": "a", "start": 0, "shown": ()}
    window = Window((3, 4, 5, 6, 7, 2), target=Window((1, 10, 11, 12), **marks), **marks)
    found = contribution_profiles(Study(model, [window], name=name), band=2)
    assert found.attrs["skipped"] == ""
    assert found.layer_kind.values.tolist() == ["self"] * 2 + ["causal", "cross"] * 2
    ratios = found.mixing_ratio.sel(of="block")
    assert bool(((ratios > 0) & (ratios < 1)).all())


def test_layers_side_by_side_have_no_known_block():
    model = tiny("gpt_neox")
    found = read(model)
    assert "profile_block_norms" not in found
    assert found.attrs["skipped"].startswith("block_norms (layers 0, 1): no module reads the sum")
    assert np.isfinite(found.profile_norms).any()
    with pytest.raises(AttnscopeError, match=r"block_norms is not defined for GPTNeoXForCausalLM, layer 0 .* Leave it"):
        contribution_profiles(Study(model, [tuple(TEXT)], name="tiny"), kinds=["block_norms"])


def test_parts_that_do_not_sum_are_not_shown(monkeypatch):
    """A norm that is another in the text than in the first tokens."""
    from attnscope_lineage.weights import profiles

    found_before = profiles.find_blocks

    def moved(*given):
        return [replace(block, bias=block.bias + torch.arange(len(block.bias))) for block in found_before(*given)]

    monkeypatch.setattr(profiles, "find_blocks", moved)
    found = read(tiny("bert"), [TEXT, TEXT[:8]])
    assert "do not sum to the output of the block" in found.attrs["skipped"]
    assert "profile_block_norms" not in found
    assert np.isnan(found.mixing_ratio.sel(of=["norms and residual", "block"])).all()
    assert np.isfinite(found.mixing_ratio.sel(of="norms")).all()


def test_without_a_head_there_is_no_gradient():
    body = tiny("bert").bert
    found = contribution_profiles(Study(body, [tuple(TEXT)], name="tiny"), band=2)
    assert "profile_gradient" not in found
    assert "gradient: BertModel returns hidden states" in found.attrs["skipped"]
    with pytest.raises(AttnscopeError, match="gradient is not defined for BertModel: BertModel returns hidden states"):
        contribution_profiles(Study(body, [tuple(TEXT)], name="tiny"), kinds=["gradient"])


def test_a_long_text_says_what_gradients_would_take(monkeypatch):
    from attnscope_lineage.weights import calls as _limits

    monkeypatch.setattr(_limits, "MATRIX_BYTES", 1000)
    with pytest.raises(AttnscopeError, match="12 tokens; their attention matrices take more than"):
        read(tiny("bert"))


def test_rows_in_pieces_are_the_same(monkeypatch):
    from attnscope.intervention import calls as _calls
    from attnscope.intervention import contributions as _effective

    whole = read(tiny("llama"))
    monkeypatch.setattr(_calls, "_WEIGHTS_AT_ONCE", 4 * len(TEXT) * 5)
    monkeypatch.setattr(_effective, "_ROWS_AT_ONCE", 3)
    pieces = read(tiny("llama"))
    for name in whole:
        np.testing.assert_allclose(whole[name], pieces[name], atol=1e-6, err_msg=name)


def test_weights_are_those_that_scan_lays_along_offsets():
    found = contribution_profiles(study("bundled", limit=2), kinds=["weights"], band=5)
    expected = attnscope.scan(limit=2, statistics=["profile"], band=5)
    np.testing.assert_allclose(found.profile_weights, expected.profile, atol=1e-6)
