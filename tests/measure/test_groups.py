"""Weights of groups on groups, held against the weights that eager attention writes out."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.forward import decoder_start
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.reference import causal_mask, padding_mask, window_mask
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.rows import GroupMarks
from attnscope.read.encoded import texts_of, windows_of
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer
from tests.tiny_models import tiny_reader

N = 20
RIGHT = torch.arange(N)[None] < torch.tensor([N, 13])[:, None]
GAPS = torch.rand(2, 1, N, N, generator=torch.Generator().manual_seed(0)) > 0.4
CALLS = {
    "plain": {},
    "causal": {"causal": True},
    "padding": {"mask": padding_mask(RIGHT).expand(2, 1, N, N)},
    "padding, causal": {"mask": padding_mask(RIGHT) & causal_mask(N, N)},
    "window": {"mask": window_mask(N, N, left=4, right=2)[None, None]},
    "gaps": {"mask": GAPS},
    "a mask in numbers": {"bias": torch.zeros(1, 1, N, N).masked_fill(~causal_mask(N, N), -torch.inf)},
    "learned sinks": {"sinks": torch.tensor([1.0, 2.0, 3.0]), "causal": True},
}
TEXTS = ["The tide comes in twice a day, and twice a day it goes out again.", "A lamp.", "Ships, 3 of them, wait!"]


def by_hand(weights, queries, keys, count):
    """Mean over the rows of one group of the weight on another, group by group; NaN where either has no token."""
    expected = np.full((*weights.shape[:2], count, count), np.nan)
    for text, head in np.ndindex(weights.shape[:2]):
        matrix = weights[text, head].double().numpy()
        seen = matrix.sum(1) > 0
        for i in range(count):
            rows = (queries[text].numpy() == i) & seen
            for j in range(count):
                columns = keys[text].numpy() == j
                if rows.any() and columns.any():
                    expected[text, head, i, j] = matrix[rows][:, columns].sum(1).mean()
    return expected


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled tiles and plain ones
def test_they_are_those_of_the_weights_under_every_mask(name, dtype):
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(2, 3, N, 4, generator=generator, dtype=dtype) for _ in range(2))
    given = {k: v.to(dtype) if k in {"bias", "sinks"} else v for k, v in CALLS[name].items()}
    call = AttentionCall(query, key, key, scale=0.7, **given)
    real = RIGHT if "padding" in name else torch.ones_like(RIGHT)
    # the third group is in no text, the second not in text 1
    numbers = torch.randint(0, 2, (2, N), generator=generator).where(torch.tensor([[True], [False]]), 0)
    numbers[0, ::5] = 3
    groups = GroupMarks(numbers.where(real, -1), numbers.where(real, -1), 4)
    marks = Marks(real, real, torch.zeros_like(real), groups)
    _, found = measure_call(call, ("group_weight",), 2, N - 1, marks)
    weights = attend_in_full(call)[1]
    expected = by_hand(weights, groups.queries, groups.keys, 4)
    np.testing.assert_allclose(found["group_weight"].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert np.isnan(expected[:, :, 2]).all()
    assert np.isnan(expected[1, :, :, 1]).all()
    allowed = (weights > 0)[:, :1].double()
    equal = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)
    expected = by_hand(equal, groups.queries, groups.keys, 4)
    np.testing.assert_allclose(found["equal_group_weight"].numpy(), expected, rtol=1e-5, atol=1e-6)
    if name != "learned sinks":
        sums = np.nansum(found["group_weight"].numpy(), -1)
        np.testing.assert_allclose(sums[:, :, 0], 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "padding, causal", "gaps"])
def test_a_head_of_positions_alone_is_predicted_by_positions(name):
    """Scores of each offset and of the first token at random: weights on groups follow from these alone."""
    generator = torch.Generator().manual_seed(2)
    offset = torch.arange(N)[None] - torch.arange(N)[:, None]
    scores = torch.stack([torch.randn(2 * N, generator=generator)[offset + N] for _ in range(3)])[None]
    scores[..., 0] = 1.0
    x = torch.zeros(2, 3, N, 4)
    call = AttentionCall(x, x, x, scale=1.0, bias=scores.expand(2, -1, -1, -1), **CALLS[name])
    real = RIGHT if "padding" in name else torch.ones_like(RIGHT)
    numbers = torch.randint(0, 3, (2, N), generator=generator).where(real, -1)
    marks = Marks(real, real, torch.zeros_like(real), GroupMarks(numbers, numbers, 3))
    names = ("group_weight", "position_group_weight")
    _, found = measure_call(call, names, 32, 32, marks)  # bins double: the first far one begins at 33
    places, own = (found[one].numpy() for one in names[::-1])
    np.testing.assert_allclose(places, own, atol=1e-5)
    assert np.abs(own - found["equal_group_weight"].numpy()).max() > 0.1


@pytest.mark.parametrize("offset", [9, 10, -10, None])
def test_positions_predict_a_head_of_one_offset_and_not_one_that_looks_for_a_group(offset):
    """Every offset of the band is a position of its own: scores depend on one, and the group recurs at that period."""
    length = 40
    away = torch.arange(length)[None] - torch.arange(length)[:, None]
    numbers = (torch.arange(length) % abs(offset or 10) == 0).long()[None]
    if offset is None:
        numbers = torch.randint(0, 2, (1, length), generator=torch.Generator().manual_seed(3))
        bias = (numbers[:, :, None] == numbers[:, None]).float()[:, None] * 5
    else:
        bias = (away == offset).float()[None, None] * 20
    x = torch.zeros(1, 1, length, 4)
    real = torch.ones(1, length, dtype=torch.bool)
    marks = Marks(real, real, ~real, GroupMarks(numbers, numbers, 2))
    call = AttentionCall(x, x, x, scale=1.0, bias=bias)
    _, found = measure_call(call, ("group_weight", "position_group_weight"), 10, length - 1, marks)
    own, predicted = (found[name][0, 0] for name in ("group_weight", "position_group_weight"))
    if offset is None:
        assert bool((own.diagonal() > 0.95).all())
        assert bool((predicted.diagonal() < 0.7).all())
        np.testing.assert_allclose(predicted.sum(-1), 1, rtol=1e-6)
    else:
        assert float(own[1, 1]) > 0.75
        torch.testing.assert_close(predicted, own, rtol=0, atol=0.005)


def test_statistics_of_the_queries_of_a_group_are_those_of_its_rows():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 3, N, 4, generator=generator)
    call = AttentionCall(x, x, x, scale=0.7, mask=CALLS["padding"]["mask"], causal=True)
    numbers = torch.randint(0, 2, (2, N), generator=generator).where(RIGHT, -1)
    marks = Marks(RIGHT, RIGHT, torch.zeros_like(RIGHT), GroupMarks(numbers, numbers, 3))
    _, found = measure_call(call, ("outside", "entropy", "first_token", "mean_offset"), 2, N - 1, marks)
    weights = attend_in_full(call)[1].double()
    offset = torch.arange(N)[None] - torch.arange(N)[:, None]
    expected = {
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "first_token": weights[..., 0],
        "mean_offset": (weights * offset).sum(-1),
        "outside": (weights * (offset.abs() > 2)).sum(-1),
    }
    for name, rows in expected.items():
        by_group = found[f"{name}_by_group"]
        assert by_group[..., 2].isnan().all()  # no query is in it
        for text, group in np.ndindex(2, 2):
            mean = rows[text][:, numbers[text] == group].mean(-1)
            torch.testing.assert_close(by_group[text, :, group], mean, rtol=1e-4, atol=1e-5)
    seen = torch.arange(1, N + 1).double().log()
    for group in range(2):
        mean = seen[numbers[0] == group].mean()
        torch.testing.assert_close(found["equal_entropy_by_group"][0, 0, group], mean)


def lengths(tokens):
    """A group for tokens of one character, and one for longer ones."""
    return ["short" if len(token.strip()) == 1 else "long" for token in tokens]


@pytest.mark.parametrize("family", ["bert", "bloom"])  # bloom never asks the registry: by eager weights
def test_a_scan_of_padded_texts_equals_eager_attention_of_each_alone(family):
    model, tokenizer = tiny_reader(family)
    found = attnscope.scan(
        model, TEXTS, tokenizer=tokenizer, window=32, batch_size=3, band=2, statistics="entropy", groups=lengths
    )
    assert found.group_query.values.tolist() == found.group_key.values.tolist()
    assert found.attrs["capture"] == ("eager weights" if family == "bloom" else "registry")
    names = found.group_query.values.tolist()
    model.set_attn_implementation("eager")
    for number, window in enumerate(windows_of(texts_of(TEXTS), tokenizer, length=32)):
        with torch.no_grad():
            layers = model(torch.tensor([window.ids]), output_attentions=True).attentions
        numbers = torch.tensor([[names.index(name) for name in lengths(window.tokens)]])
        for layer, weights in enumerate(layers):
            expected = by_hand(weights, numbers, numbers, 2)[0]
            np.testing.assert_allclose(found.group_weight.values[number, layer], expected, rtol=1e-4, atol=1e-5)


def test_queries_are_in_groups_of_the_target_and_keys_in_those_of_the_source():
    model, tokenizer = small_model("bart"), small_tokenizer()
    text, target = "a bat, the hat", "ein hut"
    found = attnscope.scan(
        model, [text], targets=[target], tokenizer=tokenizer, window=40, band=2, statistics="entropy", groups=vowels
    )
    assert found.layer_kind.values.tolist()[:4] == ["self", "self", "causal", "cross"]
    names = found.group_query.values.tolist()
    source, labels = tokenizer(text).input_ids, tokenizer(text_target=target).input_ids
    read = [decoder_start(model)(labels), *labels[:-1]]
    shown = tokenizer.convert_ids_to_tokens
    sides = [torch.tensor([[names.index(one) for one in vowels(shown(ids))]]) for ids in (source, read)]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(input_ids=torch.tensor([source]), labels=torch.tensor([labels]), output_attentions=True)
    expected = by_hand(eager.cross_attentions[0], sides[1], sides[0], len(names))[0]
    np.testing.assert_allclose(found.group_weight.values[0, 3], expected, rtol=1e-4, atol=1e-5)
    expected = by_hand(eager.decoder_attentions[0], sides[1], sides[1], len(names))[0]
    np.testing.assert_allclose(found.group_weight.values[0, 2], expected, rtol=1e-4, atol=1e-5)


def vowels(tokens):
    return ["vowel" if token.strip(" ▁") in set("aeiou") else "other" for token in tokens]


def test_a_run_with_groups_is_another_run_and_resumes_as_it_is(tmp_path):
    given = {"texts": TEXTS, "statistics": "entropy"}
    plain = attnscope.scan(**given)
    first = attnscope.scan(**given, groups="types", out=tmp_path / "run", show=False)
    again = attnscope.scan(**given, groups="types", out=tmp_path / "run", show=False)
    assert first.identical(again)
    assert first.entropy_by_group.dims == ("window", "layer", "head", "group_query")
    assert "groups" not in json.loads(plain.attrs["signature"])["settings"]
    assert json.loads(first.attrs["signature"])["settings"]["groups"] == "types"
    by_length, by_other = (
        attnscope.scan(**given, groups=rule).attrs["signature"]
        for rule in (lengths, lambda tokens: ["all"] * len(tokens))
    )
    assert by_length != by_other
    with pytest.raises(AttnscopeError, match="holds another run"):
        attnscope.scan(**given, groups=lengths, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("colours", "there is no rule of groups 'colours'"),
        ("roles", "roles need chats, but the texts are not chats"),
        (lambda tokens: ["a"], r"returned 1 names for \d+ tokens for window 1 .*; expected a string for each token"),
        (lambda tokens: "a" * len(tokens), "expected a list with a name for each token"),
        (lambda tokens: [None] * len(tokens), "returned None for window 1 "),
        (lambda tokens: [f"{i}" for i in range(len(tokens))], "found .. groups; expected at most 16"),
    ],
)
def test_invalid_groups_are_rejected(groups, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.scan(texts=TEXTS, groups=groups)
