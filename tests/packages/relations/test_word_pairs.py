"""`relations` from one word to another, against eager weights written out."""

import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL
from attnscope.models import EncoderForMaskedLM
from attnscope.results.reports import report_of, write_page
from attnscope_relations import relations
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny_reader

ANIMAL = "The animal didn't cross the street because it was too tired."
TEXT = "The lighthouse keeper lit the lamp, and the lighthouse burned until the keeper slept."
REASONS = ("tired", "sleepy", "hungry", "ill", "weak", "lazy", "scared")


def between(model, texts, query, key, **options):
    """The relation from one word to another."""
    return relations(model, texts, query=query, key=key, **{"untrained": False} | options).isel(relation=0)


def eager_weights(text):
    """The weights of transformers' eager attention, and the characters of each token."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = EncoderForMaskedLM.from_pretrained(MODEL, attn_implementation="eager").eval()
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    spans = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        return torch.cat(model(**encoded, output_attentions=True).attentions).double().numpy(), spans


def tokens_of(word, text, spans):
    """The tokens of each occurrence of a word."""
    found = [match.span() for match in re.finditer(rf"\b{word}\b", text)]
    return [[at for at, (i, j) in enumerate(spans) if start < j and i < end and i < j] for start, end in found]


def test_a_weight_is_summed_over_keys_and_averaged_over_queries_of_the_words():
    weights, spans = eager_weights(TEXT)
    queries, keys = (tokens_of(word, TEXT, spans) for word in ("keeper", "lighthouse"))
    assert max(map(len, queries + keys)) > 1
    assert len(queries) == len(keys) == 2
    columns = [at for key in keys for at in key]
    rows = np.stack([weights[:, :, row].mean(2) for row in queries], 2)  # of words
    found = between(None, TEXT, "keeper", "lighthouse")
    assert found.queries == 2
    np.testing.assert_allclose(found.weight, rows[..., columns].sum(-1).mean(-1), atol=1e-5)
    np.testing.assert_allclose(found.uniform, len(columns) / len(spans), atol=1e-6)


def test_the_links_of_a_lone_text_are_moved_along_it_and_the_rank_is_among_other_words():
    weights = attnscope.weights(None, "a b c d e f g h", words="unicode").values
    found = between(None, "a b c d e f g h", "f", "d")
    words = range(1, 9)  # the first and the last are special
    moved = [(query, query - 2) for query in words if query != 6 and query - 2 in words]
    np.testing.assert_allclose(found.exchanged_weight, np.mean([weights[:, :, q, k] for q, k in moved], 0), atol=1e-6)
    first = found.isel(window=0)
    others = [1, 2, 3, 4, 5, 7, 8]  # the first and the last are special
    row = weights[:, :, 6, others]
    np.testing.assert_array_equal(first.first_rank, 1 + (row > weights[:, :, 6, 4, None]).sum(-1))
    assert first.first_largest.values.tolist() == np.array([*"abcdegh"])[row.argmax(-1)].tolist()


@pytest.mark.parametrize(("reason", "noun"), [("tired", "animal"), ("wide", "street")])
def test_it_attends_to_the_noun_that_the_reason_fits(reason, noun):
    sentence = ANIMAL.replace("tired", reason)
    head = {"layer": 1, "head": 0}
    found = relations("bundled:pronoun", sentence, query="it", key=noun, untrained=False)
    assert float(found.weight.sel(head)[0]) > 0.95
    report = report_of("relations", found)
    assert (report.rows[0]["layer"], report.rows[0]["head"]) == (1, 0)
    assert "not tested" in report.finding.certainty
    assert report.finding.leading == []  # one sentence is no test
    assert report.finding.sentences[0] == "One text: nothing can be tested."
    assert report.finding.sentences[2].endswith(f"has rank 1 in this head; {noun!r} gets the largest weight.")
    assert len(report.tables[1].rows) == 2
    other = {"animal": "street", "street": "animal"}[noun]
    for query, key in (("because", noun), ("it", other)):
        assert float(between("bundled:pronoun", sentence, query, key).weight.sel(head)) < 0.05


def test_several_texts_have_intervals_and_a_test():
    texts = [ANIMAL.replace("tired", reason) for reason in REASONS]
    found = relations("bundled:pronoun", [*texts, "The lamp didn't stay in the car."], query="it", key="animal")
    assert found.sizes["window"] == 7  # a text without both words is left out
    assert bool(found.tested.all())
    assert "first_rank" not in found
    one = between("bundled:pronoun", texts[1], "it", "animal")
    np.testing.assert_allclose(found.window_weight[1, 0], one.weight, atol=1e-6)


def test_a_long_text_is_read_in_windows():
    """Words of different windows have no link; a window without one is not measured."""
    text = " ".join([ANIMAL] * 2 + ["The lamp didn't stay in the car."] * 12 + [ANIMAL])
    found = between(None, text, "it", "animal", window=64)
    parts = between(None, [" ".join([ANIMAL] * 2), ANIMAL], "it", "animal")
    assert found.sizes["window"] == 2
    assert found.window_queries.values.tolist() == parts.window_queries.values.tolist() == [2, 1]


def test_what_the_mask_hides_has_no_weight():
    model, tokenizer = tiny_reader("gpt2")
    with pytest.raises(AttnscopeError, match="the mask of the model hides later words"):
        between(model, "a b c d", "b", "d", tokenizer=tokenizer)
    assert (between(model, "a b c d", "d", "b", tokenizer=tokenizer).weight > 0).all()


def test_adjacent_words_that_spell_the_word_are_one():
    text = "吾輩は猫である。名前はまだ無い。"
    found = between("bundled", text, "名前", "猫")
    spans = [(at, at + 1) for at in range(8)] + [(8, 10)] + [(at, at + 1) for at in range(10, 16)]
    whole = between("bundled", text, "名前", "猫", words=lambda _: spans)
    for name in ("weight", "uniform", "chance", "first_rank"):
        np.testing.assert_allclose(found[name], whole[name])


def test_words_are_those_of_the_rule():
    sentence = "The well-known cat saw it."
    assert between("bundled", sentence, "it", "well").queries == 1
    with pytest.raises(AttnscopeError, match="found no text with the word 'well'"):
        between("bundled", sentence, "it.", "well", words="space")


def test_the_command_takes_a_text_in_quotes_and_a_model_or_none(tmp_path):
    words = ("--from", "it", "--to", "animal", "--no-untrained")
    done = command("relations", "bundled:pronoun", ANIMAL, *words, "--json", "--out", "a", cwd=tmp_path)
    rows = json.loads(done.stdout)["tables"]["heads"]
    assert (rows[0]["layer"], rows[0]["head"]) == (1, 0)
    assert rows[0]["weight"] > 0.9
    command("relations", ANIMAL, *words, "--out", "b", cwd=tmp_path)
    again = attnscope.open_run(tmp_path / "b")
    assert again.attrs["model"] == "small-mlm"
    assert write_page(report_of("relations", again), tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"query": "it", "key": "zebra"}, "found no text with the word 'zebra' among 1"),
        ({"query": "it"}, "found only one of --from and --to"),
        ({"query": "/(/", "key": "it"}, "query (--from) is '/(/', which is no regular expression"),
        ({"query": "it", "key": " "}, "key (--to) is ' '; expected a token, or a pattern"),
    ],
)
def test_bad_input_is_rejected(options, words):
    with pytest.raises(AttnscopeError, match=re.escape(words)):
        relations(None, ANIMAL, **options)
