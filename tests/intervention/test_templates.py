"""Pairs from templates fit the tokenizer, are balanced, and are split by item."""

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import attnscope
import attnscope_circuits
from attnscope import AttnscopeError
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.load import load_model
from attnscope.catalogue import function_of
from attnscope.intervention.pair_sources import pairs_of_input, positions_of
from attnscope.intervention.pairs import EncodedPairs
from attnscope.intervention.templates import TASKS
from attnscope.results.reports import report_of
from tests.tiny_models import tiny, tiny_reader


@pytest.fixture(scope="module")
def of_words():
    """A tokenizer of words and marks, with the space before them, that knows all words of the tasks."""
    rows = [row for task in TASKS for row in attnscope.pairs(task, count=400).itertuples()]
    texts = [text for row in rows for text in (row.clean, row.corrupted)]
    for row in rows:
        for side in (row.answer, row.wrong):
            texts += [side] if isinstance(side, str) else side
    before = pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Punctuation(),
    ])  # fmt: skip
    words = sorted({word for text in texts for word, _ in before.pre_tokenize_str(text)})
    ids = {word: number for number, word in enumerate(["?", *words])}
    inner = Tokenizer(models.WordLevel(ids, unk_token="?"))
    inner.pre_tokenizer = before
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="?")


@pytest.mark.parametrize("task", [task for task in TASKS if task != "greater-than"])
def test_the_pairs_of_a_task_are_balanced_and_halves_share_no_item(task, of_words):
    found = attnscope.pairs(task, tokenizer=of_words, count=40)
    assert len(found) == 40
    assert not found.duplicated(["clean", "corrupted"]).any()
    for row in found.itertuples():
        assert len(of_words(row.clean)["input_ids"]) == len(of_words(row.corrupted)["input_ids"])
        assert row.clean != row.corrupted
        assert row.answer != row.wrong
    first, second = (set(found.item[found.half == half]) for half in (0, 1))
    assert first
    assert second
    assert not first & second
    assert found.equals(attnscope.pairs(task, tokenizer=of_words, count=40))  # of the same seed
    assert not found.equals(attnscope.pairs(task, tokenizer=of_words, count=40, seed=1))


def test_answers_of_a_turned_pair_are_exchanged():
    found = attnscope.pairs("agreement", count=40)
    assert (found.answer == " is").sum() == (found.answer == " are").sum() == 20
    plural = found.clean.str.contains(r"^The \w+s ")
    assert ((found.answer == " are") == plural).all()
    assert set(attnscope.pairs("agreement", count=10, turns=False).answer) == {" is"}


def test_every_combination_is_made_once():
    found = attnscope.pairs(
        "The {noun} near the {other}", answer=" is", wrong=" are", count=100, turns=False,
        noun=[("key", "keys"), ("lamp", "lamps")], other=["door", "wall", "road"],
    )  # fmt: skip
    assert len(found) == 6
    assert set(zip(found.item, found.half, strict=True)) in [{("key", 0), ("lamp", 1)}, {("key", 1), ("lamp", 0)}]
    assert (found.corrupted == found.clean.str.replace(r"(key|lamp)", r"\1s", regex=True)).all()


@pytest.mark.parametrize(
    ("template", "given", "message"),
    [
        ("The {noun}", {"answer": "x"}, "found no words for the gap noun"),
        ("The noun", {"answer": "x"}, "found no gap in 'The noun'"),
        ("The {noun}", {"answer": "x", "noun": [1, 2]}, "noun is .1, 2.; expected words"),
        ("The {noun}", {"answer": "x", "noun": ["a", "b"]}, "clean and corrupted text would be the same"),
        ("The {noun}", {"answer": "x", "noun": [("a", "b")]}, "clean and corrupted answers are the same"),
        ("agreement", {"nuon": ["a"]}, "agreement is a task with its own texts, words and answers"),
        ("The {noun}", {"noun": ["a"]}, "found no answer; expected one for 'The {noun}', or a task: agreement"),
        ("The {noun}", {"answer": "x", "noun": "key"}, "noun is 'key'; expected words"),
        ("The {noun}", {"answer": "x", "noun": [("a", "b", "c")]}, "noun is .*; expected words"),
        (
            "The {noun}",
            {"answer": "x", "noun": [("a", "b")], "verb": ["b"]},
            "no text has a gap verb; the gaps are: noun",
        ),
        (
            "The {noun}",
            {"answer": "x", "noun": [("a", "b")], "item": "verb"},
            "item is 'verb'; expected the name of a gap",
        ),
        ("The {noun", {"answer": "x", "noun": ["a"]}, "'The {noun' is no template"),
        ("agreement", {"answer": " is"}, "agreement is a task with its own texts"),
        ("The {noun", {"answer": "x"}, "'The {noun' is no template"),
    ],
)
def test_a_template_that_cannot_be_filled_is_rejected(template, given, message):
    with pytest.raises(AttnscopeError, match=message):
        attnscope.pairs(template, **given)


def test_no_pair_that_fits_the_tokenizer_says_why(of_words):
    with pytest.raises(AttnscopeError, match="found no pair that fits: clean and corrupted text have 2 and 3 tokens"):
        attnscope.pairs("The {noun}", answer=" is", wrong=" are", noun=[("key", "old keys")] * 2, tokenizer=of_words)


def test_pairs_that_are_left_out_are_counted_with_their_reason(of_words, caplog):
    nouns = [(noun, f"{more}{noun}s") for noun in ("key", "lamp", "dog") for more in ("", "old ")]
    found = attnscope.pairs("The {noun}", answer=" is", wrong=" are", noun=nouns, tokenizer=of_words, turns=False)
    (said,) = caplog.messages
    assert said == found.attrs["left_out"]
    assert said == (f"found {len(found)} of 50 pairs, and left out 2: clean and corrupted text have 2 and 3 tokens (2)")


def test_several_answers_are_the_log_of_their_summed_probabilities(of_words):
    pairs = pairs_of_input(attnscope.pairs("greater-than", tokenizer=of_words, count=4))
    loaded = LoadedModel(tiny("gpt2"), of_words, "tiny", {})
    encoded = EncodedPairs.of(pairs, loaded)
    logits = torch.randn(len(pairs), 1, len(of_words), generator=torch.Generator().manual_seed(0))
    shares = logits.softmax(-1)[:, 0]
    for found, pair, share in zip(encoded.difference(logits), pairs, shares, strict=True):
        likely, less = (
            share[[of_words.convert_tokens_to_ids(word) for word in words]].sum() for words in (pair.answer, pair.wrong)
        )
        assert found == pytest.approx(float((likely / less).log()), abs=1e-5)
        assert min(map(int, pair.answer)) > max(map(int, pair.wrong))


def test_a_data_frame_is_read_as_its_rows():
    rows = [{"clean": "a b", "corrupted": "a c", "answer": "d", "wrong": "e"}]
    frame = pd.DataFrame([rows[0] | {"item": 1, "target": float("nan")}])
    assert pairs_of_input(frame) == pairs_of_input(rows)


def test_one_item_makes_one_half():
    words = {"noun": [("key", "keys")], "place": ["door", "wall"]}
    found = attnscope.pairs("The {noun} near the {place}", answer=" is", wrong=" are", **words)
    assert set(found.half) == {0}
    assert len(found) == 4


@pytest.mark.usefixtures("no_types")  # names of files are paths
def test_names_without_an_ending_that_are_no_files_are_said():
    with pytest.raises(AttnscopeError, match="found no file clean; expected files of texts, or a task alone"):
        attnscope.patch(pairs=["clean", "corrupted"])


@pytest.mark.parametrize(
    ("what", "family"),
    [(what, family) for what in ("patch", "edges") for family in ("llama", "bamba")]
    + [("patch", family) for family in ("gpt2", "bert", "t5")],
)
def test_one_answer_in_a_list_is_that_answer_and_several_are_named(what, family):
    model, tokenizer = tiny_reader(family)
    mask = tokenizer.mask_token if family == "bert" else ""
    words = [("day", "night"), ("sea", "sun")]
    rows = [{"clean": f"The {a}{mask}", "corrupted": f"The {b}{mask}", "answer": "a", "wrong": "b"} for a, b in words]
    verb, settings = function_of(what), {"tokenizer": tokenizer}
    settings |= {"steps": 0} if what == "patch" else {"draws": 1, "method": "eap"}
    several = [
        verb(model, [row | {"answer": right, "wrong": wrong} for row in rows], **settings)
        for right, wrong in (("a", "b"), (["a"], ["b"]), (["a", "c"], ["b"]))
    ]
    one, listed, more = (found["pairs"].difference if what == "patch" else found.score for found in several)
    np.testing.assert_allclose(one, listed, atol=1e-4, rtol=1e-4)
    assert abs(one - more).max() > 1e-3
    said = [report_of(what, found).care for found in several]
    assert ["Each side has several answers." in care for care in said] == [False, False, True]


@pytest.mark.parametrize("what", ["heads", "resid_post"])
def test_a_span_is_patched_as_by_an_edit_of_its_tokens(what):
    loaded = load_model("bundled:tasks", device="cpu")
    words = {"subject": [("key", "keys"), ("dog", "dogs")], "attractor": ["house near the road", "house"]}
    agreement = attnscope.pairs("The {subject} near the {attractor}", answer=" is", wrong=" are", **words, count=3)
    assert agreement.spans[0]["subject"][0] == (4, 4 + len(agreement.clean[0].split()[1]))
    found = attnscope.patch(loaded, agreement, what=what, positions=["subject", "attractor", "prediction"], steps=0)
    chosen = found["pairs"].difference
    chosen = chosen.sel(layer=1, head=1) if what == "heads" else chosen.sel(block=1)
    assert [*chosen.position] == ["subject", "attractor", "prediction"]
    for number, pair in enumerate(agreement.to_dict("records")):
        ids = [loaded.tokenizer(text, return_tensors="pt").input_ids for text in (pair["clean"], pair["corrupted"])]
        names = [loaded.tokenizer.decode(one).strip() for one in ids[0][0]]
        subject, last = names.index(pair["clean"].split()[1]), len(names) - 1
        first = next(at for at, name in enumerate(names) if name == "house")
        for name, at in (("subject", [subject]), ("attractor", [*range(first, last + 1)]), ("prediction", [last])):
            kept = []

            def put_in(own, at=at, kept=kept):
                kept.append(own.clone())
                own = own.clone()
                own[:, at] = kept[0][:, at]
                return own

            key = (1, 1) if what == "heads" else "1.resid_post"
            with torch.no_grad(), attnscope.edit(loaded.model, {key: put_in}, on="z") as edited:
                logits = [edited(one).logits[0, -1] for one in ids][1]
            right, wrong = (loaded.tokenizer(pair[side]).input_ids[-1] for side in ("answer", "wrong"))
            expected = float(logits[right] - logits[wrong])
            np.testing.assert_allclose(chosen.isel(pair=number).sel(position=name), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("spans", "positions", "message"),
    [
        ({}, ["verb"], "pair 1: there is no span 'verb' .*choose from prediction"),
        ({"verb": [3, 5]}, ["verb"], "pair 1: the span 'verb' is 'wa', which begins or ends inside the token"),
        ({"verb": [[3, 6], [0, 2]]}, ["verb"], "is at positions 3 of the clean text and 1, 2 of the corrupted one"),
        ({"verb": [3, 60]}, ["verb"], "the span 'verb' is .3, 60. in a text of 18 characters"),
        ({"verb": "was"}, ["verb"], "the span 'verb' is 'was' in a text of 18 characters; expected names with"),
        (["verb"], ["verb"], "the field 'spans' is .'verb'.; expected names"),
        ({"verb": [3, 6]}, [], "name spans, one or more"),
    ],
)
def test_spans_that_cannot_be_patched_are_named(spans, positions, message):
    pair = {"clean": "It was part<mask>.", "corrupted": "It was due<mask>.", "answer": " of", "wrong": " to"}
    with pytest.raises(AttnscopeError, match=message):
        attnscope.patch("bundled", [pair | {"spans": spans}], positions=positions, steps=0)


def agreement_of(loaded):
    words = {"subject": [("key", "keys"), ("dog", "dogs")], "attractor": ["house near the road", "house"]}
    return attnscope.pairs("The {subject} near the {attractor}", answer=" is", wrong=" are", **words, count=3)


def test_an_edge_at_a_span_is_that_of_hooks_there_and_spans_add_up():
    model, tokenizer = tiny_reader("llama")
    spans = {"first": [0, 2], "last": [[7, 11], [7, 10]]}
    pairs = [{"clean": "It was part", "corrupted": "He was due", "answer": " of", "wrong": " to", "spans": spans}]
    how = {"tokenizer": tokenizer, "sizes": [0.0, 1.0], "draws": 1}
    exact = attnscope_circuits.edges(model, pairs, method="exact", positions=["first"], **how)
    first, second = model.eval().model.layers
    ids = [tokenizer(pairs[0][side], return_tensors="pt").input_ids[:, :-1] for side in ("clean", "corrupted")]
    written = []
    with torch.no_grad():
        keep = first.mlp.register_forward_hook(lambda _, __, returned: written.append(returned))
        logits, _ = (model(one).logits[0, -1] for one in ids)
        keep.remove()
        change = written[1] - written[0]
        at = positions_of(pairs, "first", LoadedModel(model, tokenizer, "llama", {}))
        assert 0 < at.sum() < at.size / 2
        change[:, ~at[0]] = 0
        norm, values, read = second.input_layernorm, second.self_attn.v_proj, []

        def put_in(_, __, returned):
            changed = values.forward(norm.forward(read[0] + change))
            return torch.cat([changed[..., :8], returned[..., 8:]], -1)  # of the first of two heads of values

        hooks = [norm.register_forward_pre_hook(lambda _, given: read.append(given[0]))]
        hooks.append(values.register_forward_hook(put_in))
        moved = model(ids[0]).logits[0, -1] - logits
        for hook in hooks:
            hook.remove()
    right, wrong = (tokenizer(pairs[0][side], add_special_tokens=False).input_ids[0] for side in ("answer", "wrong"))
    np.testing.assert_allclose(
        exact.score.sel(sender="m0", receiver="a1.h0<v>"), moved[right] - moved[wrong], atol=1e-5
    )
    assert abs(float(moved[right] - moved[wrong])) > 1e-4
    np.testing.assert_allclose(exact.difference.isel(pair=0), [[exact.without[0], exact.clean[0]]] * 3, atol=1e-4)

    def scores(*names):
        return attnscope_circuits.edges(model, pairs, method="eap", positions=names, **how).score

    np.testing.assert_allclose(scores("first", "last"), scores("first") + scores("last"), atol=1e-5)


def test_parts_of_heads_by_span_are_sums_of_those_by_key():
    loaded = load_model("bundled:tasks", device="cpu")
    pairs = agreement_of(loaded)
    names = ["subject", "attractor", "prediction"]
    found = attnscope_circuits.attribute(loaded, pairs=pairs, positions=names, by_position=True)
    measured = found["predictions"]
    for name in names:
        within = positions_of(pairs, name, loaded)
        by_hand = np.where(within[:, None], measured.by_key.to_numpy()[..., : within.shape[1]], 0).sum(-1)
        heads = measured.kind.to_numpy() == "head"
        np.testing.assert_allclose(measured.by_span.sel(span=name)[:, heads], by_hand[:, heads], atol=1e-6)
    assert np.isnan(measured.by_span.isel(component=0)).all()  # the embedding
    alone = attnscope_circuits.attribute(loaded, pairs=pairs, positions=names)["predictions"]
    np.testing.assert_array_equal(alone.by_span, measured.by_span)
    assert "by_key" not in alone
    rows = next(table for table in report_of("attribute", found).tables if table.name == "spans").rows
    assert {row["span"] for row in rows} == {*names}
    with pytest.raises(AttnscopeError, match="name spans of pairs"):
        attnscope_circuits.attribute(loaded, ["a text"], positions=["subject"])


@pytest.mark.parametrize("key", [(1, 1), "1.resid_post", "blocks.1.attn.hook_z"])
@torch.no_grad()
def test_an_edit_at_a_span_leaves_all_else(key):
    loaded = load_model("bundled:tasks", device="cpu")
    pairs = agreement_of(loaded)
    short = pairs[pairs.clean.str.endswith("house")]
    ids = loaded.tokenizer([*short.clean], return_tensors="pt").input_ids
    within = torch.from_numpy(positions_of(short, "subject", loaded))

    def zero_there(tensor):
        tensor = tensor.clone()
        tensor[within] = 0
        return tensor

    with attnscope.edit(loaded.model, {key: torch.zeros_like}, on="z", positions=within) as edited:
        found = edited(ids).logits
    with attnscope.edit(loaded.model, {key: zero_there}, on="z") as edited:
        torch.testing.assert_close(found, edited(ids).logits)
    assert float((found - loaded.model(ids).logits).abs().max()) > 0.01
    edit = attnscope.edit(loaded.model, {key: torch.zeros_like}, on="z", positions=within)
    with edit as edited, pytest.raises(AttnscopeError, match="found positions of shape"):
        edited(ids[:, :2])
