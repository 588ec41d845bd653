"""Circuits in weights: equal to dense products, true of planted and trained models, and next to random matrices."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from attnscope import AttnscopeError, open_run
from attnscope.explanation.inputs import model_inputs, token_ids
from attnscope.explanation.stream import residual_stream
from attnscope.statistics.discovery import significant
from attnscope_circuits import circuits
from attnscope_circuits.circuit_report import report
from attnscope_circuits.composition import by_offset, composition, composition_null, peak_chances, spectrum, turned_p
from attnscope_circuits.figures.circuits import graph_of
from attnscope_zoo.catalogue import build
from tests.cli.command import attnscope
from tests.tiny_models import tiny

HEADS, R, D = 4, 8, 32
CENTRE = np.eye(D) - 1 / D


def numbers(parameter):
    return parameter.detach().double().numpy()


def by_head(matrix, heads=HEADS):
    """``(head, width, r)`` of a matrix ``(width, head * r)``."""
    return matrix.reshape(len(matrix), heads, -1).swapaxes(0, 1)


def of_gpt2(model):
    for block in model.transformer.h:
        norm = CENTRE * numbers(block.ln_1.weight)
        q, k, v = np.split(norm @ numbers(block.attn.c_attn.weight), 3, 1)
        o = numbers(block.attn.c_proj.weight).reshape(HEADS, R, D) @ CENTRE
        yield by_head(q), by_head(k), by_head(v), o
    return CENTRE * numbers(model.transformer.ln_f.weight)


def of_llama(model, one=0.0, *, sandwich=False, head_norms=False):
    for block in model.model.layers:
        norm, attention = np.diag(one + numbers(block.input_layernorm.weight)), block.self_attn
        names = (attention.q_proj, attention.k_proj, attention.v_proj)
        q, k, v = (
            by_head(norm @ numbers(linear.weight).T, heads) for linear, heads in zip(names, (4, 2, 2), strict=True)
        )
        if head_norms:
            q, k = q * numbers(attention.q_norm.weight), k * numbers(attention.k_norm.weight)
        o = numbers(attention.o_proj.weight).T.reshape(HEADS, R, D)
        o = o * (one + numbers(block.post_attention_layernorm.weight)) if sandwich else o
        yield q, k.repeat(2, 0), v.repeat(2, 0), o
    return np.diag(one + numbers(model.model.norm.weight))


def of_bert(model):
    norm = CENTRE * numbers(model.bert.embeddings.LayerNorm.weight)
    for block in model.bert.encoder.layer:
        own = block.attention.self
        sides = (by_head(norm @ numbers(linear.weight).T) for linear in (own.query, own.key, own.value))
        o = numbers(block.attention.output.dense.weight).T.reshape(HEADS, R, D)
        norm = CENTRE * numbers(block.output.LayerNorm.weight)
        yield (*sides, o @ (CENTRE * numbers(block.attention.output.LayerNorm.weight)) @ CENTRE)


FAMILIES = {
    "gpt2": of_gpt2,
    "llama": of_llama,
    "gemma2": lambda model: of_llama(model, 1.0, sandwich=True),
    "qwen3": lambda model: of_llama(model, head_norms=True),
    "bert": of_bert,
}


def dense(family, model):
    """Matrices of both layers, and the norm before the unembedding."""
    layers, matrices = [], FAMILIES[family](model)
    while True:
        try:
            layers.append(next(matrices))
        except StopIteration as end:
            return layers, end.value


@pytest.fixture(scope="module", params=FAMILIES)
def case(request):
    model = tiny(request.param)
    return request.param, model, circuits(model, seed=1)


def test_composition_is_the_norm_of_products_as_wide_as_the_model(case):
    family, model, found = case
    (_, _, v, o), (q, k, v2, o2) = dense(family, model)[0]
    if family == "bert":  # without the gain of the norm after it
        o2 = np.stack([numbers_of_output(model, 1, head) @ CENTRE for head in range(HEADS)])
    for a in range(HEADS):
        writes = v[a] @ o[a]
        for b in range(HEADS):
            circuit = q[b] @ k[b].T
            for kind, reads in (("query", circuit), ("key", circuit.T), ("value", v2[b] @ o2[b])):
                wanted = np.linalg.norm(writes @ reads) / np.linalg.norm(writes) / np.linalg.norm(reads)
                got = found.composition.sel(kind=kind, from_layer=0, from_head=a, layer=1, head=b)
                np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert int(found.composition.notnull().sum()) == 3 * HEADS**2


def test_copying_is_that_of_the_product_of_all_tokens(case):
    family, model, found = case
    layers, last = dense(family, model)
    embeddings = numbers(model.get_input_embeddings().weight)
    unembedding = embeddings if last is None else numbers(model.get_output_embeddings().weight)
    for layer, (_, _, v, o) in enumerate(layers[: 1 if last is None else 2]):  # BERT's later layers read more norms
        for head in range(HEADS):
            writes = o[head] @ last if last is not None else numbers_of_output(model, layer, head)
            roots = np.linalg.eigvals(embeddings @ v[head] @ writes @ unembedding.T)
            roots = roots[np.argsort(-np.abs(roots))[:R]]
            own = found.isel(layer=layer, head=head)
            np.testing.assert_allclose(own.copying, (roots.real > 0).mean())
            np.testing.assert_allclose(own.copying_sum, roots.sum().real / np.abs(roots).sum(), atol=1e-6)


def numbers_of_output(model, layer, head):
    """BERT's own output, whose way to the logits is not linear."""
    weight = model.bert.encoder.layer[layer].attention.output.dense.weight
    return numbers(weight).T.reshape(HEADS, R, D)[head]


def test_tokens_that_a_head_copies_have_the_highest_own_logits():
    model = tiny("llama")
    (_, _, v, o), last = dense("llama", model)[0][0], dense("llama", model)[1]
    embeddings, unembedding = (numbers(table.weight) for table in (model.get_input_embeddings(), model.lm_head))
    rows = embeddings / np.sqrt((embeddings**2).mean(1, keepdims=True))
    logits = rows @ v[2] @ o[2] @ last @ unembedding.T
    own = np.diag(logits) - logits.mean(1)
    head = circuits(model, tokens=3).isel(layer=0, head=2)
    assert head.copied.values.tolist() == [str(token) for token in np.argsort(-own)[:3]]
    assert head.suppressed.values.tolist() == [str(token) for token in np.argsort(own)[:3]]
    np.testing.assert_allclose(head.copied_logit, np.sort(own)[::-1][:3], rtol=1e-4)


def test_offsets_under_rope_are_scores_between_mean_tokens():
    model = tiny("llama")
    own = model.model.layers[0]
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        mean = (rows / rows.square().mean(1, keepdim=True).sqrt()).mean(0) * own.input_layernorm.weight
        query, key = (
            linear(mean).reshape(1, -1, 1, R).expand(1, -1, 21, R)
            for linear in (own.self_attn.q_proj, own.self_attn.k_proj)
        )
        cos, sin = model.model.rotary_emb(rows, torch.arange(21)[None])
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        scores = (query @ key.repeat_interleave(2, 1).mT)[0, :, 10] * R**-0.5
    found = circuits(model).offset_score.isel(layer=0)
    np.testing.assert_allclose(found[:, :11], scores[:, :11], rtol=1e-3, atol=1e-4)
    assert found[:, 11:].isnull().all()


@pytest.mark.parametrize("family", ["t5", "bart", "modernbert", "gpt_neox", "albert", "gpt_oss"])
def test_the_stream_is_what_layers_and_one_module_each_add(family):
    model = tiny(family)
    ids = np.random.default_rng(0).integers(5, 60, 12).tolist()
    stream = residual_stream(model, model_inputs(model, token_ids([ids])))
    assert stream.unverified == []
    assert stream.is_linear == (family not in {"modernbert", "albert"})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("induction-decoder-1", "key"),
        ("induction-decoder-2", "key"),
        ("relay-encoder-1", "value"),
        ("relay-encoder-2", "value"),
        ("induction-encoder-decoder-1", "key"),
        ("induction-encoder-decoder-2", "key"),
    ],
)
def test_planted_circuits_come_out(name, kind):
    planted = build(name)
    found = circuits(planted.model, tokens=1)
    strongest = found.composition.where(found.composition_shown).argmax(...)
    (writer, reader) = np.argwhere(planted.heads.numpy()).tolist()
    at = {dim: int(place) for dim, place in strongest.items()}
    assert found.kind.values[at["kind"]] == kind
    assert [at["from_layer"], at["from_head"], at["layer"], at["head"]] == [*writer, *reader]
    if "induction" in name:
        assert found.copying_sum.argmax(...)["head"] == reader[1]
    if name.startswith("induction-decoder"):
        assert found.peak_offset.values[*writer] == -1


def trained_induction():
    """The attention-only transformer in `../shared/models`, as a GPT-2 without norms and feed-forward parts."""
    folder = Path(os.environ.get("ATTNSCOPE_MODELS", "../shared/models")) / "induction-2l"
    if not folder.is_dir():
        pytest.skip("no induction-2l")
    stored = load_file(folder / "infinite.safetensors")
    sizes = {"vocab_size": 128, "n_positions": 85, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_inner": 4}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.wte.weight.copy_(stored["embed.W_E"].T)
        model.transformer.wpe.weight.copy_(stored["pos_embed.W_pos"])
        model.lm_head.weight.copy_(stored["unembed.W_U"].T)
        model.transformer.ln_f = nn.Identity()
        for number, block in enumerate(model.transformer.h):
            own = {name: stored[f"attn_blocks.{number}.attn.W_{name}"].reshape(48, 48).T for name in "QKVO"}
            block.ln_1, block.ln_2 = nn.Identity(), nn.Identity()
            block.attn.c_attn.weight.copy_(torch.cat([own[name] for name in "QKV"], 1))
            block.attn.c_proj.weight.copy_(own["O"])
    return model


def test_trained_induction_heads_read_the_previous_token_head_through_keys():
    found = circuits(trained_induction(), tokens=1)
    keys = found.composition.sel(kind="key", from_layer=0, layer=1)
    assert keys.argmax("from_head").values.tolist() == [2, 2, 2, 2]
    shown = found.composition_shown.sel(kind="key", from_layer=0, layer=1)
    assert shown.sel(from_head=2, head=[1, 2, 3]).all()
    assert not shown.sel(from_head=[0, 1, 3]).any()
    assert (found.copying_sum.sel(layer=1, head=[1, 2, 3]) > 0.99).all()


def test_random_matrices_are_significant_as_often_as_they_should():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(60, 6, 40)) ** 3, rng.normal(size=(60, 40, 6)) ** 3
    left = left @ np.linalg.qr(rng.normal(size=(60, 40, 40)))[0]
    right = np.linalg.qr(rng.normal(size=(60, 40, 40)))[0] @ right
    p = np.diag(composition(left, right, spectrum(left), spectrum(right.mT), 40)[1])  # independent pairs
    assert scipy.stats.kstest(p, "uniform").pvalue > 0.01
    own = rng.normal(size=(400, 12, 12)) @ rng.normal(size=(12, 12))
    turned = own @ np.linalg.qr(rng.normal(size=(400, 12, 12)))[0]
    assert scipy.stats.kstest(turned_p(turned), "uniform").pvalue > 0.01


@pytest.mark.parametrize("largest", [1, 10])
def test_random_matrices_seldom_prefer_an_offset(largest):
    """Whatever the table: row 0 of GPT-2's is ten times as large as the others, and meets itself at offset 0."""
    rng, offsets = np.random.default_rng(0), np.arange(-4, 5)
    p = []
    for _ in range(200):
        table = rng.normal(size=(64, 32))
        table[0] *= largest
        query, key = rng.normal(size=(2, 32, 8))
        p.append(by_offset(table @ query, table @ key, offsets, offsets <= 0)[1])
    assert np.mean(np.array(p) < 0.05) <= scipy.stats.binom.ppf(0.999, 200, 0.05) / 200
    assert min(p) > 1e-5


def test_a_head_whose_keys_are_moved_queries_prefers_that_offset():
    offsets = np.arange(-4, 5)
    table = np.random.default_rng(0).normal(size=(64, 8))
    curve, p = by_offset(table, np.roll(table, -2, 0), offsets, offsets <= 0)
    assert offsets[np.argmax(curve)] == -2
    assert p < 1e-6


def test_p_values_hold_far_out_for_steep_spectra():
    rng, values = np.random.default_rng(0), 0.5 ** np.arange(8.0)
    left, right = np.linalg.qr(rng.normal(size=(2, 40_000, 16, 8)))[0] * values
    squares = np.einsum("nai,naj->nij", left, right) ** 2
    share = squares.sum((1, 2)) / (values**2).sum() ** 2
    mean, variance, shape = (np.squeeze(one) for one in composition_null(values[None], values[None], 16))
    p = scipy.stats.chi2.sf(shape + (share - mean) * np.sqrt(2 * shape / variance), shape)
    assert np.mean(p < 0.001) < 0.0018


def test_mean_and_variance_of_random_compositions_are_exact():
    rng = np.random.default_rng(0)
    values = np.array([3.0, 1.0, 0.5]), np.array([2.0, 1.0])
    turned = np.linalg.qr(rng.normal(size=(40_000, 6, 6)))[0]
    squares = np.einsum("i,nij,j->n", values[0] ** 2, turned[:, :3, :2] ** 2, values[1] ** 2)
    squares /= (values[0] ** 2).sum() * (values[1] ** 2).sum()
    mean, variance, _ = composition_null(values[0][None], values[1][None], 6)
    np.testing.assert_allclose(squares.mean(), mean, rtol=0.01)
    np.testing.assert_allclose(squares.var(), variance[0, 0], rtol=0.03)


def test_a_vocabulary_smaller_than_the_lists(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=3, n_positions=64, n_embd=32, n_layer=1, n_head=4)).eval()
    found = circuits(model, tokens=5)
    assert (found.copied.values[0, 0] != "").sum() == 3
    assert report(found).finding.sentences


def test_unfit_models_and_bands_are_rejected():
    with pytest.raises(AttnscopeError, match="pixel_values"):
        circuits(tiny("vit"))
    with pytest.raises(AttnscopeError, match="band"):
        circuits(tiny("gpt2"), band=64)


def test_heads_without_a_copying_score_are_reported():
    """No logit reads the stream to which the heads of an encoder write."""
    result = circuits(tiny("t5"), tokenizer="bundled")
    assert result.copying_sum.isnull().any()
    assert result.copying_sum.notnull().any()
    assert report(result).finding.sentences[0].startswith("By their weight matrices alone, 0 of ")


def test_the_command_has_tables_a_page_and_the_graph(tmp_path):
    done = attnscope("circuits", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [*shown["tables"]] == ["heads", "pairs"]
    assert len(shown["tables"]["heads"]) == 12
    assert {path.name for path in (tmp_path / "run/figures").iterdir()} == {"copying.svg", "composition.svg"}
    stored = open_run(tmp_path / "run")
    strongest = shown["tables"]["pairs"][0]
    graph = graph_of(stored)
    weight = graph.edges[strongest["from"], strongest["to"], strongest["through"]]["weight"]
    np.testing.assert_allclose(weight, strongest["composition"] - strongest["random"])
    assert "Composition of heads" in (tmp_path / "run/report.html").read_text(encoding="utf-8")


def test_one_head_of_144_whose_phases_meet_at_an_offset_is_found():
    """999 random phases alone have no p below 0.001, too large for the false discovery rate of 144 heads."""
    rng, rates = np.random.default_rng(0), 10000.0 ** (-np.arange(8) / 8)
    waves = np.exp(1j * rates[:, None] * np.arange(-31, 1))
    products = rng.gamma(2, size=(144, 8)) * np.exp(2j * np.pi * rng.random((144, 8)))
    products[7] = abs(products[7]) * waves[:, 20].conj()
    p = peak_chances(abs(products), waves, (products @ waves).real.max(1), 0)
    assert np.flatnonzero(significant(p)).tolist() == [7]


def test_the_bound_on_random_phases_is_above_their_chance():
    drawn = np.cos(2 * np.pi * np.random.default_rng(0).random((400_000, 8))).sum(1)
    for height in (6.5, 7.0, 7.4):
        p = peak_chances(np.ones((1, 8)), np.ones((8, 1), complex), np.array([height]), 0)[0]
        assert (drawn >= height).mean() < p < 1e-3 + (drawn >= height).mean()
