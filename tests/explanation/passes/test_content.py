"""Position and content told apart: identities I1 to I5, and planted heads of which the parts are known."""

from itertools import combinations

import numpy as np
import pytest
import torch

from attnscope import AttnscopeError
from attnscope.capture.watching import watching
from attnscope.explanation.analyses import position_content as _position_content
from attnscope.explanation.analyses.position_content import shapley_values
from attnscope.explanation.arrays.shares import covariance_share
from attnscope.explanation.profiles import score_traces
from attnscope.explanation.tables import first_layer_split, position_tables, replaced_positions
from attnscope.kernels.call import Need
from attnscope.kernels.engines import measure
from tests.explanation.analyses_of_windows import of_windows
from tests.explanation.captured_inputs import capture_inputs
from tests.explanation.planted_models import WORDS, mixed_bert, random_texts, wave_scores
from tests.planted_models import FREQUENCIES, LENGTH, circulant_profile
from tests.tiny_models import inputs, tiny

position_content = of_windows(_position_content.position_content)

BAND = 6
OFFSETS = np.arange(-BAND, BAND + 1)
SHIFTS = (-1, 2, 0, -3)
RANDOM = np.random.default_rng(0).integers(3, 60, (4, 24)).tolist()


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "gpt_oss", "qwen3"])
def test_i1_i2_the_terms_add_up_and_the_mixed_ones_vanish_in_the_mean(family):
    model = tiny(family)
    found = position_content(model, RANDOM, band=BAND, draws=5)
    total = {}

    def observe(site, call):
        seen = score_traces(call, BAND)[0].numpy()
        if call.bias is not None:
            seen = seen + np.stack([call.bias[0].diagonal(t, -2, -1).sum(-1).numpy() for t in OFFSETS], -1)
        total[site.index] = total.get(site.index, 0) + seen / len(RANDOM)
        return measure(call, Need())[0]

    for text in RANDOM:
        given = {"input_ids": torch.tensor([text])}
        with torch.no_grad(), watching(model, observe):
            model(**given, **({"decoder_input_ids": given["input_ids"]} if family == "t5" else {}))
    for layer in found.layer.values:
        here = found.sel(layer=layer)
        forbidden = OFFSETS > 0 if here.layer_kind == "causal" else OFFSETS > BAND
        expected = np.where(forbidden, np.nan, total[int(layer)])
        size = np.nanmax(abs(expected))
        np.testing.assert_allclose(here.trace.sum("term", skipna=False), expected, atol=1e-5 * size)
        for term in ("PC", "CP"):
            np.testing.assert_allclose(
                here.trace.sel(term=term), np.where(forbidden, np.nan, 0) + 0 * expected, atol=1e-6 * size
            )
    np.testing.assert_allclose(found.shapley.sum("term"), found.mass - found.mass_none, atol=2e-6)
    np.testing.assert_allclose(found.share.sum("term"), 1, atol=1e-9)
    at = found.profile.fillna(-1).argmax("offset") - BAND
    assert bool((at == found.target).all())
    np.testing.assert_allclose(found.profile.sel(offset=found.target), found.mass, atol=1e-6)
    assert bool((found.profile_low.isnull()).all())  # of 4 texts


@pytest.mark.parametrize("family", ["roberta", "albert", "gpt2", "opt", "bart", "vit"])
def test_i4_layernorm_distributes_over_its_summands(family):
    """P + C is X; C sigma is a_i + b sigma_i, a and b of no table: so it moves by b (sigma' - sigma)."""
    model = tiny(family)
    torch.manual_seed(2)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    given = {name: tensor[:1] for name, tensor in inputs(family, padded=False)[0].items()}
    splits = first_layer_split(model, given)
    assert [site.index for site in splits] == ([0, 2] if family == "bart" else [0])
    for site, x in capture_inputs(model, given).items():
        if site in splits:
            np.testing.assert_allclose(splits[site].position + splits[site].content, x, atol=1e-5)
            assert np.abs(splits[site].position).max() > 0.1
    tables = {table.name: np.flip(table.rows, 0) ** 3 for table in position_tables(model)}
    with replaced_positions(model, tables):
        others = first_layer_split(model, given)
    for split, other in zip(splits.values(), others.values(), strict=True):
        apart = (other.deviation - split.deviation)[:, None]
        moved = other.content * other.deviation[:, None] - split.content * split.deviation[:, None]
        if not apart.any():  # no LayerNorm: the words themselves
            np.testing.assert_allclose(moved, 0, atol=1e-5)
            continue
        slope = (apart * moved).sum(0) / (apart**2).sum()
        np.testing.assert_allclose(moved, apart * slope, atol=2e-5 * abs(moved).max())


def test_a_planted_position_head_is_all_position():
    wave = 2.0
    found = position_content(mixed_bert(SHIFTS, wave), random_texts(3), method="exact", band=BAND, draws=20).sel(
        layer=0
    )
    for head, shift in enumerate(SHIFTS):
        here = found.sel(head=head)
        scores = wave_scores(head, shift, wave, OFFSETS)
        np.testing.assert_allclose(here.trace.sel(term="PP"), (LENGTH - abs(OFFSETS)) * scores, atol=2e-4)
        assert abs(here.trace.drop_sel(term="PP")).max() < 2e-4
        profile = circulant_profile(FREQUENCIES[head], wave, shift)[OFFSETS % LENGTH]
        np.testing.assert_allclose(here.profile, profile, atol=1e-6)
        np.testing.assert_allclose(here.profile_position, profile, atol=1e-6)
        assert int(here.target) == shift
        np.testing.assert_allclose(here.shapley, [profile.max() - 1 / LENGTH, 0, 0, 0], atol=1e-6)
        np.testing.assert_allclose(here.share, [1, 0, 0, 0], atol=1e-6)
    assert abs(found.key_only).max() < 2e-4


def test_a_planted_head_of_two_causes_has_both():
    """PP is the waves, CC the word's weight wherever a text repeats one; nothing is mixed."""
    wave, word = 1.0, 3.0
    texts = [list(range(8)) * 4] * 2
    model = mixed_bert(SHIFTS, wave, word)
    found = position_content(model, texts, method="exact", band=8, draws=20).sel(layer=0)
    offsets = np.arange(-8, 9)
    same = word * (offsets % 8 == 0) - word / 8  # about the mean over keys
    for head, shift in enumerate(SHIFTS):
        here = found.sel(head=head)
        pairs = LENGTH - abs(offsets)
        np.testing.assert_allclose(
            here.trace.sel(term="PP") / pairs, wave_scores(head, shift, wave, offsets), atol=2e-5
        )
        np.testing.assert_allclose(here.trace.sel(term="CC") / pairs, same, atol=2e-5)
        assert abs(here.trace.sel(term=["PC", "CP"])).max() < 2e-4
        np.testing.assert_allclose(here.shapley.sel(term=["PC", "CP"]), 0, atol=1e-6)
        waves = wave_scores(head, shift, wave, offsets)
        expected = np.cov(waves, waves + same)
        assert float(here.share.sel(term="PP")) == pytest.approx(expected[0, 1] / expected[1, 1], abs=1e-4)
    assert (found.shapley.sel(term="PP") > 0.01).all()


@pytest.mark.parametrize(("term", "query_reads", "key_reads"), [("PC", 0, 64), ("CP", 64, 0)])
def test_queries_by_position_and_keys_by_content_are_distinguished_from_the_reverse(term, query_reads, key_reads):
    """Positions lie in the first 64 columns of X and words in the others: only one term has any scores."""
    model, generator = mixed_bert(), torch.Generator().manual_seed(0)
    attention = model.bert.encoder.layer[0].attention.self
    for projection, first in ((attention.query, query_reads), (attention.key, key_reads)):
        torch.nn.init.zeros_(projection.weight)
        part = projection.weight.detach()[:, first : first + 2 * WORDS]
        part.copy_(torch.randn(part.shape, generator=generator) / 4)
    found = position_content(model, random_texts(3), method="exact", band=BAND, draws=5).isel(layer=0)
    assert abs(found.trace.sel(term=term)).max() > 1
    assert abs(found.trace.drop_sel(term=term)).max() < 1e-4
    assert abs(found.shapley.sel(term=term)).min() > 1e-3
    np.testing.assert_allclose(found.shapley.sel(term=term), found.mass - found.mass_none, atol=1e-6)
    assert abs(found.shapley.drop_sel(term=term)).max() < 1e-6


def halved(model, texts):
    """PP of every way to halve the texts, by forward passes over each half and plain products."""
    sides = []
    for half in combinations(range(len(texts)), len(texts) // 2):
        means = [
            queries_and_keys(model, [texts[i] for i in chosen])
            for chosen in (half, [i for i in range(len(texts)) if i not in half])
        ]
        (query, _), (_, key) = means
        sides.append(query @ (key - key.mean(-2, keepdims=True)).swapaxes(-1, -2))
    return np.mean(sides, 0)


def queries_and_keys(model, texts):
    """Means over texts of the first layer's queries, scale included, and keys: ``(head, position, r)``."""
    attention = model.bert.encoder.layer[0].attention.self
    seen = {}
    hooks = [
        getattr(attention, name).register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out}))
        for name in ("query", "key")
    ]
    model(torch.tensor(texts))
    for hook in hooks:
        hook.remove()
    heads, width = attention.num_attention_heads, attention.attention_head_size
    query, key = (
        seen[name].detach().double().mean(0).unflatten(-1, (heads, width)).transpose(0, 1).numpy()
        for name in ("query", "key")
    )
    return query / width**0.5, key


def test_the_split_is_the_mean_over_all_halvings():
    model, texts = mixed_bert(word=2.0), random_texts(4, seed=3)
    found = position_content(model, texts, band=BAND, draws=2).isel(layer=0)
    for head, scores in enumerate(halved(model, texts)):
        expected = np.array([np.trace(scores, offset=t) for t in OFFSETS])
        np.testing.assert_allclose(found.trace_split[head], expected, atol=1e-4 * float(abs(expected).max()))
    np.testing.assert_allclose(found.share.sum("term"), 1)
    assert (found.share.sel(term="PP") != found.share_low.sel(term="PP")).all()


def test_the_interval_is_the_jackknife_of_runs_without_one_text():
    model, texts = mixed_bert(word=2.0), random_texts(6, seed=1)
    bounds = position_content(model, texts, band=BAND, draws=2)
    found = bounds.share.sel(term="PP")
    without = np.stack(
        [position_content(model, texts[:i] + texts[i + 1 :], band=BAND, draws=2).share.sel(term="PP") for i in range(6)]
    )
    error = (5 / 6 * ((without - without.mean(0)) ** 2).sum(0)) ** 0.5
    for end, sign in (("low", -1), ("high", 1)):
        edge = bounds[f"share_{end}"].sel(term="PP")
        np.testing.assert_allclose(edge, found + sign * 2.5706 * error, rtol=1e-3)  # t of 5 degrees of freedom
    few = position_content(model, texts[:5], band=BAND, draws=2)
    assert np.isnan(few.share_low).all()
    assert np.isfinite(few.share).all()


def test_shapley_values_share_out_the_worth():
    generator = np.random.default_rng(0)
    worth = generator.normal(size=16)
    found = shapley_values(worth)
    assert found.sum() == pytest.approx(worth[15] - worth[0])
    additive = np.array([sum(2.0**player for player in range(4) if members >> player & 1) for members in range(16)])
    np.testing.assert_allclose(shapley_values(additive), [1, 2, 4, 8])
    assert np.isnan(covariance_share(np.ones((2, 3)))).all()


def test_what_cannot_be_split_is_rejected():
    model = tiny("bert")
    with pytest.raises(AttnscopeError, match="found 1 window; expected 2 or more"):
        position_content(model, RANDOM[:1])
    with pytest.raises(AttnscopeError, match=r"layer 1 does not read a position table: choose one of \[0\]"):
        position_content(model, RANDOM, method="exact", layers=[1])
    with pytest.raises(AttnscopeError, match="layer 9 does not exist"):
        position_content(model, RANDOM, layers=[9])
    with pytest.raises(
        AttnscopeError, match=r"target_offset has shape \(1, 1\) up to 0 .*expected whole numbers of shape \(2, 4\)"
    ):
        position_content(model, RANDOM, target_offset=np.zeros((1, 1), int))
    with pytest.raises(AttnscopeError, match="no table of absolute positions"):
        position_content(tiny("llama"), RANDOM, method="exact")


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_few_texts_read_once_give_what_reading_them_twice_gives(family, monkeypatch):
    model = tiny(family)
    once = position_content(model, RANDOM, band=BAND, draws=5)
    monkeypatch.setattr("attnscope.explanation.inputs.TOKENS_AT_ONCE", 0)
    twice = position_content(model, RANDOM, band=BAND, draws=5)
    for name in ("trace", "shapley", "mass", "mass_none", "profile_position", "key_only"):
        np.testing.assert_allclose(once[name], twice[name], rtol=1e-5, atol=1e-5)
