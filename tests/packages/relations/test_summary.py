"""Scores, controls and tests of relations on sums that are written out, and which words count."""

import numpy as np
import pytest
import torch
import xarray as xr

from attnscope import AttnscopeError
from attnscope_relations import relations
from attnscope_relations.summary import halves_of, summary_of
from attnscope_zoo.catalogue import build
from tests.packages.relations.test_relations import word_weights

QUERIES = 20  # of each document


def summed(right, *, exchanged=0.0, offset=0.0, chance=0.0, seed=0):
    """The summary of one relation, from shares ``(document, head)`` of right queries and those of controls."""
    right = np.asarray(right, float)
    documents, heads = right.shape
    cells = ("window", "relation", "layer", "head")
    whole = np.full((documents, 1), float(QUERIES))

    def of_heads(shares):
        return cells, np.broadcast_to(QUERIES * np.asarray(shares, float), (documents, heads))[:, None, None]

    sums = {
        "queries": (cells[:2], whole),
        "exchanged_queries": (cells[:2], whole),
        "right": of_heads(right),
        "weight": of_heads(right),
        "exchanged_right": of_heads(exchanged),
        "exchanged_weight": of_heads(exchanged),
        "chance": (cells[:3], np.full((documents, 1, 1), QUERIES * chance)),
        "uniform": (cells[:3], np.full((documents, 1, 1), QUERIES * chance)),
        "at_offset": ((*cells[:2], "offset"), np.full((documents, 1, 2), QUERIES * offset)),
    }
    coordinates = {"source": ("window", np.arange(documents)), "layer": [0], "offset": [-1, 1]}
    windows = xr.Dataset({f"window_{name}": values for name, values in sums.items()}, coordinates)
    return summary_of(windows, None, seed).isel(relation=0)


def test_the_best_head_is_scored_where_it_was_not_chosen():
    """Each of two heads is right in one half of the documents alone, and is chosen there: the other half counts."""
    half = halves_of(12, 0)
    right = np.stack([half, ~half], 1)
    summary = summed(right)
    assert float(summary.held_out) == 0
    assert summary.score.values.ravel().tolist() == [0.5, 0.5]
    assert not bool(summary.linked)
    other = halves_of(12, 1)
    assert not np.array_equal(half, other)
    assert 0 < float(summed(right, seed=1).held_out) < 1


def shares(seed, mean=0.8, documents=24):
    return np.clip(np.random.default_rng(seed).normal(mean, 0.05, (documents, 3)), 0, 1)


@pytest.mark.parametrize("control", ["exchanged", "offset", "chance"])
def test_a_head_must_be_above_every_control(control):
    assert bool(summed(shares(0), **{control: 0.6}).linked)
    assert not bool(summed(shares(0), **{control: 0.85}).linked)
    p = float(summed(shares(0), **{control: 0.85}).held_out_p)
    assert p == 1


def test_a_small_difference_is_no_link_however_certain():
    summary = summed(shares(0), exchanged=0.74)
    assert float(summary.held_out_p) < 0.01
    assert 0 < float(summary.held_out_above) < 0.1
    assert not bool(summary.linked)
    assert not bool(summary.shown.any())


def test_heads_are_shown_only_in_a_linked_relation():
    linked = summed(shares(0), exchanged=0.3)
    assert bool(linked.linked)
    assert bool(linked.shown.all())
    assert not bool(summed(shares(0), exchanged=0.3, chance=0.85).shown.any())


def test_fewer_than_six_documents_are_not_tested():
    summary = summed(shares(0, documents=5))
    assert np.isnan(summary.held_out_p)
    assert not bool(summary.tested.any())
    assert not bool(summary.linked)


def test_a_query_of_several_words_is_their_mean():
    text = "The old lamp sees the very old garden near a stone."
    query, key = (4, 12), (31, 37)
    assert (text[slice(*query)], text[slice(*key)]) == ("old lamp", "garden")
    merged, words = word_weights(text)
    rows = [number for number, (start, end) in enumerate(words) if start < query[1] and query[0] < end]
    column = next(number for number, (start, end) in enumerate(words) if start < key[1] and key[0] < end)
    assert len(rows) == 2
    row = merged[:, :, rows].mean(2)
    found = relations(None, [{"text": text, "pairs": [{"name": "x", "from": query, "to": key}]}], untrained=False)
    np.testing.assert_allclose(found.weight[0], row[..., column], atol=1e-6)
    row[..., rows] = -1
    np.testing.assert_allclose(found.score[0], row.argmax(-1) == column, atol=1e-6)


def test_the_first_token_of_a_causal_model_does_not_count_as_a_key():
    """Many heads rest on it, whatever it is; a special token there is not counted in any case."""
    planted = build("previous-decoder-1")
    text = "t3 t4 t5 t6"

    def one(query, key):
        pair = {"name": "x", "from": (3 * query, 3 * query + 2), "to": (3 * key, 3 * key + 2)}
        return relations(planted.model, [{"text": text, "pairs": [pair]}], tokenizer=planted.tokenizer, untrained=False)

    with pytest.raises(AttnscopeError, match="first token of a causal model does not count"):
        one(3, 0)
    assert one(2, 1).score.values.min() == 1  # the only word that is left
    ids = planted.tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        planted.model.set_attn_implementation("eager")
        attentions = planted.model(ids, output_attentions=True).attentions
    weights = torch.cat(attentions)[:, :, 3].numpy()
    np.testing.assert_array_equal(one(3, 2).score[0], weights[..., 2] > weights[..., 1])
