"""Scores without a matrix are those of the matrix: every role, on eager attention's own weights."""

import numpy as np
import pytest
import torch

from attnscope.detection.probes import Answer, Probe, _calls, plain_window
from attnscope.detection.role import PUBLISHED, ROLES, Nearness, RepeatedCalls, TextCalls
from attnscope.detection.roles import measured, sites_of
from attnscope.kernels.call import AttentionCall
from tests.tiny_models import tiny

SINKS, RECENT = 2, 6
REACH = Nearness(near=3, kept=((RECENT, SINKS), (4, 1)))
REACHED = "kept_4_1"
PERIOD, BEGINS = 10, 1
FAMILIES = ("gpt2", "gemma2", "gpt_oss", "bert", "t5", "bloom")
GENERATOR = np.random.default_rng(0)
TEXT = GENERATOR.integers(3, 60, 24).tolist()
MARKS = GENERATOR.random(24) < 0.3
WORDS = GENERATOR.permutation(np.arange(3, 60))[:PERIOD].tolist()
TWICE = [1, *WORDS, *WORDS]
ANSWERED = Answer((1, *range(20, 35), 25, 26, 27, 28), needle=(6, 7, 8, 9), tokens=(26, 27, 29), hidden="")


def matrices(model, ids):
    """What the model's own eager attention gives: by kind of layer, in the order of its calls."""
    given = {"input_ids": torch.tensor([ids])}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = given["input_ids"]
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    model.set_attn_implementation(before)
    if model.config.is_encoder_decoder:
        pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
        layers = [*out.encoder_attentions, *(matrix for pair in pairs for matrix in pair)]
    else:
        layers = out.attentions
    return [layer[0].double().numpy() for layer in layers]


def by_hand(name, weights):
    """The definitions, written out over matrices (head, query, key)."""
    count = weights.shape[-1]
    offset = np.arange(count) - np.arange(count)[:, None]
    seen = (weights > 0).any(0)
    if name == "sink":
        late = seen.sum(0) < count / 2
        return np.where(late, 0.0, weights.sum(1) / seen.sum(0).clip(1)).max(-1)
    if name == "streaming":
        kept = (np.arange(count) < SINKS) | (offset > -RECENT)
        return (weights * kept).sum(-1)[:, SINKS + RECENT :].mean(-1)
    if name == REACHED:
        lost = (np.arange(count) >= 1) & (offset <= -4)
        return 1 - ((weights * lost).sum(-1) / weights.sum(-1))[:, 5:].mean(-1)  # a learned sink is no token
    if name in {"duplicate_token", "induction"}:
        after = int(name == "induction")
        again = range(BEGINS + PERIOD, BEGINS + 2 * PERIOD)
        return np.mean([weights[:, place, place - PERIOD + after] for place in again], 0)
    if name == "retrieval":  # at places 17, 18, 19 it says 26, 27, 29; the needle holds 25 to 28, at places 6 to 9
        top = weights[:, 17:20].argmax(-1)
        return ((top[:, 0] == 7).astype(float) + (top[:, 1] == 8)) / 4
    pairs = {
        "previous_token": offset == -1,
        "next_token": offset == 1,
        "current_token": offset == 0,
        "first_token": np.broadcast_to(np.arange(count) == 0, offset.shape),
        "local": np.abs(offset) <= REACH.near,
        "delimiter": np.broadcast_to(MARKS, offset.shape),
    }[name]
    return (weights * pairs).sum((1, 2)) / count


@pytest.mark.parametrize("family", FAMILIES)
def test_every_role_is_scored_as_the_matrix_says(family):
    model = tiny(family)
    marks = torch.tensor(MARKS)[None]
    probes = [
        Probe("text", (plain_window(TEXT, "text"),), lambda _, call: TextCalls.of(call, marks, REACH)),
        Probe("repeated", (plain_window(TWICE, "twice"),), lambda _, call: RepeatedCalls.of(call, BEGINS, PERIOD)),
        Probe("needle", (plain_window(ANSWERED.ids, "prompt"),), lambda _, call: _calls(ANSWERED, call)),
    ]
    sites = sites_of(model, probes[0])
    names = [*PUBLISHED, REACHED]
    made = measured(model, sites, probes, names, lambda _: None, with_equal=True)
    for probe in probes:
        layers = matrices(model, list(probe.windows[0].ids))
        assert len(layers) == len(sites)
        for name in (name for name in names if ROLES[name].probe == probe.kind):
            for site, weights in zip(sites, layers, strict=True):
                score = made[name].isel({probe.kind: 0, "layer": site.index}).values
                equal = made[f"equal_{name}"].isel({probe.kind: 0, "layer": site.index}).values
                if site.kind not in ROLES[name].layers:
                    assert np.isnan(score).all()
                    assert np.isnan(equal)
                    continue
                np.testing.assert_allclose(score, by_hand(name, weights), atol=2e-6, err_msg=name)
                if name != "retrieval":  # the largest of equal weights is no single key
                    even = (weights > 0).any(0, keepdims=True) / (weights > 0).any(0).sum(-1, keepdims=True)
                    np.testing.assert_allclose(equal, by_hand(name, even)[0], atol=2e-6, err_msg=name)


def test_uniform_attention_copies_as_often_as_a_random_key():
    model = tiny("gpt2")
    probe = Probe("needle", (plain_window(ANSWERED.ids, "prompt"),), lambda _, call: _calls(ANSWERED, call))
    made = measured(model, sites_of(model, probe), [probe], ["retrieval"], lambda _: None, with_equal=True)
    np.testing.assert_allclose(made.equal_retrieval.values, (1 / 18 + 1 / 19) / 4)


def test_an_answer_that_repeats_itself_copies_no_more_than_the_needle():
    """The head attends to the token that is said, and the answer says the needle three times."""
    ids = (*range(20), 6, 7, 8, 6, 7, 8, 6, 7)
    answered = Answer(ids, needle=(6, 7, 8), tokens=(6, 7, 8) * 3, hidden="")
    keys = torch.eye(20)[torch.tensor(ids)][None, None]
    queries = keys.clone()
    queries[0, 0, 19:] = 100 * torch.eye(20)[torch.tensor(answered.tokens)]
    score = _calls(answered, AttentionCall(queries, keys, keys, 1.0, causal=True)).score()
    assert 0 < score <= 1
