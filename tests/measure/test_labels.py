"""Kinds of heads: planted heads of each kind are named, heads of random weights are not."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import attnscope
from attnscope.bundled import MODEL, TEXT
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import measure
from attnscope.measure.labels import named_clusters, over_texts, places_of, summarize, with_rows
from attnscope.measure.means import queries
from attnscope.measure.passes import bin_coordinates, plan
from attnscope.measure.quantities import DEFAULT, STATISTICS, dimensions
from attnscope.measure.ranking import majority_names, rank_heads
from attnscope.measure.rows import equal_rows, indicator_columns, reduce_call
from attnscope.measure.stored import notes_of
from tests.tiny_models import tiny

N, BAND = 320, 10
OFFSET = np.arange(N)[None, :] - np.arange(N)[:, None]
NOISE = np.random.default_rng(0).random((N, N))

#: Scores of planted heads; -9 and less is no weight to speak of.
BOTH_SIDES = {
    "previous": np.where(OFFSET == -1, 9.0, 0.0),
    "next": np.where(OFFSET == 1, 9.0, 0.0),
    "self": np.where(OFFSET == 0, 9.0, 0.0),
    "offset -3": np.where(OFFSET == -3, 9.0, 0.0),
    "offset +2": np.where(OFFSET == 2, 9.0, 0.0),
    "first token": np.where(np.arange(N) == 0, 9.0, 0.0) + 0.0 * OFFSET,
    "special tokens": np.where(np.arange(N) == N - 1, 9.0, 0.0) + 0.0 * OFFSET,
    "local": np.where(np.abs(OFFSET) <= 6, 7.0, 0.0),
    "local left": np.where((OFFSET < 0) & (OFFSET >= -6), 7.0, 0.0),
    "local right": np.where((OFFSET > 0) & (OFFSET <= 6), 7.0, 0.0),
    "within 16": np.where((np.abs(OFFSET) > 4) & (np.abs(OFFSET) <= 16), 7.0, 0.0),
    "within 32 left": np.where((OFFSET < -12) & (OFFSET >= -32), 7.0, 0.0),
    "leftward": np.where(OFFSET < 0, 3.0, 0.0),
    "rightward": np.where(OFFSET > 0, 3.0, 0.0),
    "uniform": 0.0 * OFFSET,
    "mixed": 40.0 * NOISE,
}
CAUSAL = {name: BOTH_SIDES[name] for name in ("previous", "self", "offset -3", "first token", "within 16", "mixed")} | {
    "local": np.where((OFFSET <= 0) & (OFFSET >= -6), 7.0, 0.0),
    "within 32": np.where((OFFSET <= -20) & (OFFSET >= -31), 7.0, 0.0),
    "uniform over the past": 0.0 * OFFSET,
}


def scanned(scores, kind, texts=3):
    """What `scan` would measure of one layer with these scores, on texts of the same length."""
    zeros = torch.zeros(texts, len(scores), N, 4)
    bias = torch.tensor(np.stack(list(scores.values())))[None].float()
    call = AttentionCall(zeros, zeros, zeros, scale=1.0, causal=kind == "causal", bias=bias)
    valid = torch.ones(texts, N, dtype=torch.bool)
    special = torch.zeros_like(valid)
    special[:, [0, -1]] = True
    need = plan(DEFAULT, BAND, indicator_columns(valid, special), N - 1)
    found = reduce_call(measure(call, need)[1], DEFAULT, valid, valid)
    nulls = [name for name in DEFAULT if STATISTICS[name].has_equal]
    equal = reduce_call(equal_rows(call, need), nulls, valid, valid)
    variables = {name: (dimensions(name), value[:, None].numpy()) for name, value in found.items()}
    variables |= {f"equal_{name}": (dimensions(f"equal_{name}"), value.numpy()) for name, value in equal.items()}
    coordinates = {"offset": np.arange(-BAND, BAND + 1), "layer_kind": ("layer", [kind])}
    return xr.Dataset(variables | {"length": ("window", np.full(texts, N))}, coordinates | bin_coordinates(BAND, N - 1))


@pytest.mark.parametrize(("kind", "scores"), [("self", BOTH_SIDES), ("causal", CAUSAL)])
def test_planted_heads_get_their_names_and_ranks(kind, scores):
    results = scanned(scores, kind)
    found = summarize(results)
    assert majority_names(found)[0] == list(scores)
    assert sorted(found.cluster.values) == sorted(scores)
    assert (found.majority_share == 1).all()
    assert json.loads(found.summary)["named"]["heads"] == len(scores) - 2
    if kind == "self":  # in cross-attention no offset is a neighbour
        across = majority_names(summarize(results.assign_coords(layer_kind=("layer", ["cross"]))))[0]
        assert across[:3] == ["offset -1", "offset +1", "same position"]
        return
    for head, name in enumerate(scores):  # alone as among others
        assert majority_names(summarize(results.isel(head=[head])))[0] == [name]
    whole = found.merge(results)
    ranked = {rank: [list(scores)[row["head"]] for row in rows] for rank, rows in rank_heads(whole).items()}
    assert set(ranked["positional"]) == {"previous", "offset -3", "local"}
    assert set(ranked["local"]) == {"previous", "self", "offset -3", "local", "within 16"}
    assert ranked["sink-like"] == ["first token"]
    rest = 0.25 * whole[["band_sum", "bin_sum", "first_token", "outside"]]  # a learned sink takes the rest
    assert rank_heads(whole.assign(rest))["local"] == []
    one_row = {
        "length": whole.length * 0 + 1,
        "band_sum": whole.band_sum / N,
        "equal_band_sum": whole.equal_band_sum / N,
    }
    few = rank_heads(whole.assign(one_row).isel(window=[0]))  # what few rows show may be chance
    assert few["positional"] == few["local"] == []


def test_a_weight_that_equal_weights_would_have_gives_no_name():
    """In texts of 8 tokens a causal model that knows nothing puts 0.34 of its weight on the token itself."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    found = attnscope.scan(random_model("llama", 0, tokenizer), ["It is so."], tokenizer=tokenizer, window=12)
    assert float(found.band_sum.sel(offset=0).max() / found.length[0]) > 0.3
    assert set(np.ravel(majority_names(found))) == {"uniform over the past"}


def test_a_head_that_attends_to_one_token_has_no_side():
    """A token in the last third is on the right of most, and is the same for all."""
    one = np.where(np.arange(N) == 260, 14.0, 0.0) + 0.0 * OFFSET
    results = scanned({"one token": one, "rightward": BOTH_SIDES["rightward"]}, "self")
    assert float(results.bin_sum.sel(offset_bin=slice(1, None)).sum("offset_bin")[0, 0, 0]) > 0.7 * N
    assert majority_names(summarize(results))[0] == ["mixed", "rightward"]


def test_few_rows_name_no_head():
    """What is beyond doubt over hundreds of rows may be chance over three."""
    results = scanned({"previous": np.where(OFFSET == -1, 5.15, 0.0)}, "self")
    share = float(results.band_sum.sel(offset=-1)[0, 0, 0]) / N
    assert 0.3 < share < 0.4
    assert majority_names(summarize(results))[0] == ["previous"]
    sums = [name for name in results.data_vars if str(name).endswith("_sum")]
    small = results.isel(window=slice(1)).assign(length=("window", [3]))
    small = small.assign({name: small[name] * 3 / N for name in sums})
    assert majority_names(summarize(small))[0] == ["mixed"]


def random_model(kind, seed, tokenizer, loud=False):
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes)) if kind == "llama" else BertForMaskedLM(BertConfig(**sizes))
    for parameter in model.parameters() if loud else ():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.mark.parametrize("loud", [False, True])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_random_weights_have_no_kinds(kind, loud):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    found = attnscope.scan(random_model(kind, 1, tokenizer, loud), [TEXT], tokenizer=tokenizer, window=64, limit=4)
    assert found.labels.startswith("No head labels beyond chance")
    assert json.loads(found.summary)["named"]["heads"] == 0
    assert rank_heads(found) == {"positional": [], "local": [], "sink-like": []}
    if not loud:
        assert found.sizes["cluster"] == 1


def test_random_heads_that_suit_the_first_token_are_no_sinks():
    """All rows look at one key: that it gets more than by rows that know nothing is no sign of training."""
    tokenizer, twice = AutoTokenizer.from_pretrained(MODEL), 0
    sizes = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 8, "intermediate_size": 64}
    for seed in range(2):
        torch.manual_seed(seed)
        config = LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.5, **sizes)
        model = LlamaForCausalLM(config).eval()
        found = attnscope.scan(model, [TEXT], tokenizer=tokenizer, window=128, limit=6)
        share, equal = (found[name].mean("window") for name in ("first_token", "equal_first_token"))
        twice += int(((share >= 0.1) & (share >= 2 * equal)).any())
        assert rank_heads(found)["sink-like"] == []
        assert found.labels.startswith("No head labels beyond chance")
    assert twice, "no head has twice what equal weights give: nothing is tried"


def test_the_number_of_clusters_can_be_set():
    results = scanned(BOTH_SIDES, "self")
    found = summarize(results, clusters=4)
    assert found.sizes["cluster"] == 4
    assert len(set(found.cluster.values)) == 4
    assert found.labels.startswith("4 clusters of heads: ")
    many = summarize(results, clusters=100)
    assert many.labels.startswith(f"{many.sizes['cluster']} clusters of heads (100 requested, but no more ")
    assert len(set(many.cluster.values)) == many.sizes["cluster"] < 100
    places = places_of(over_texts(with_rows(results, queries(results))))
    twice = places.pooled(np.array([0, 0]), np.array([0, 1]), 2)
    assert named_clusters(["mixed", "mixed"], twice)[1].endswith("% in the band, no. 2)")


def test_the_story_model_has_kinds_that_fit_a_causal_model(models):
    found = attnscope.scan(models / "stories260K-llama", [TEXT], window=256, limit=4)
    names = {name for row in majority_names(found) for name in row}
    assert {"previous", "local", "within 16"} <= names
    assert not any(word in name for name in names for word in ("left", "right", "next"))
    ranked = rank_heads(found)
    assert ranked["positional"]
    assert ranked["local"]


def test_the_chemistry_model_keeps_its_heads_through_its_layers(models):
    reactions = ["CC(=O)O.CO>>CC(=O)OC", "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1", "CCBr.N1CCOCC1>>CCN1CCOCC1"]
    found = attnscope.scan(models / "rxnmapper-albert", reactions)
    names, ranked = majority_names(found), rank_heads(found)
    assert ranked["positional"]
    assert ranked["sink-like"]
    assert {row[3] for row in names} == {"previous"}
    assert {row[4] for row in names} == {"next"}


@pytest.mark.parametrize(("family", "told"), [("bloom", True), ("gpt2", False)])
def test_local_heads_of_a_bias_by_distance_need_no_training_says_a_note(family, told):
    """Random weights: ALiBi alone makes heads local, and a model without a bias has no such note."""
    ids = np.random.default_rng(0).integers(3, 60, (16, 60)).tolist()
    scan = attnscope.scan(tiny(family), ids, tokenizer="bundled", device="cpu")
    notes = notes_of(scan)
    assert ("which alone can make heads local" in notes.get("bias", "")) == told
    assert "bias" not in notes_of(scan.assign_attrs(labels="No head labels beyond chance: mixed: 8."))
