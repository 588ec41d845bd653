"""`find` against eager weights written out, and on the model that knows what "it" stands for."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, NOUNS, SENTENCES
from attnscope.capture.load import load_model
from attnscope.models import EncoderForMaskedLM
from attnscope.results.reports import report_of, write_page
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny_reader

ROOT = Path(__file__).parents[2]
ANIMAL = "The animal didn't cross the street because it was too tired."
TEXT = "The lighthouse keeper lit the lamp, and the lighthouse burned until the keeper slept."


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
    found = attnscope.find(None, TEXT, query="keeper", key="lighthouse")
    np.testing.assert_allclose(found.weight, rows[..., columns].sum(-1).mean(-1), atol=1e-5)
    np.testing.assert_allclose(found.uniform, len(columns) / len(spans), atol=1e-6)


def test_the_same_offset_is_that_of_other_words_and_the_rank_is_among_words():
    text = "a b c d e f g h"
    weights = attnscope.weights(None, text, words="unicode").values
    found = attnscope.find(None, text, query="f", key="d")
    words = range(1, 9)  # the first and the last are special
    others = [(q, q - 2) for q in words if q != 6 and q - 2 in words]
    np.testing.assert_allclose(found.same_offset, np.mean([weights[:, :, q, k] for q, k in others], 0), atol=1e-6)
    ranks = 1 + (weights[:, :, 6, 1:9] > weights[:, :, 6, 4, None]).sum(-1)
    assert found["rank"].values.tolist() == ranks.tolist()
    assert found.strongest.values.tolist() == np.array([*"abcdefgh"])[weights[:, :, 6, 1:9].argmax(-1)].tolist()


@pytest.mark.parametrize(("reason", "noun"), [("tired", "animal"), ("wide", "street")])
def test_it_attends_to_the_noun_that_the_reason_fits(reason, noun):
    sentence = ANIMAL.replace("tired", reason)
    found = attnscope.find("bundled:pronoun", sentence, query="it", key=noun)
    assert float(found.weight.sel(layer=1, head=0)) > 0.95
    assert found.strongest.sel(layer=1, head=0) == noun
    report = report_of("find", found)
    assert (report.rows[0]["layer"], report.rows[0]["head"]) == (1, 0)
    assert (1, 0) in report.finding.leading
    assert "no test" in report.finding.certainty
    assert (
        float(attnscope.find("bundled:pronoun", sentence, query="because", key=noun).weight.sel(layer=1, head=0)) < 0.05
    )
    other = {"animal": "street", "street": "animal"}[noun]
    assert float(attnscope.find("bundled:pronoun", sentence, query="it", key=other).weight.sel(layer=1, head=0)) < 0.05


def test_the_general_model_has_no_such_head():
    report = report_of("find", attnscope.find(None, ANIMAL, query="it", key="animal"))
    assert report.finding.leading == []
    assert report.finding.sentences[0].startswith("Furthest above both baselines is head ")
    assert [row["above_mean"] for row in report.rows] == sorted(
        (row["above_mean"] for row in report.rows), reverse=True
    )
    assert "'animal' has rank" in report.finding.sentences[-1]
    assert "heads" not in " ".join(report.finding.sentences)  # one sentence is no test


def test_heads_are_counted_if_they_were_tested():
    """With one text, none; with eight, those whose weight is significantly above both baselines."""
    texts = [
        ANIMAL.replace("tired", reason) for reason in ("sleepy", "hungry", "ill", "weak", "lazy", "scared", "tired")
    ]
    one, many = (
        report_of("find", attnscope.find("bundled:pronoun", read, query="it", key="animal")) for read in (ANIMAL, texts)
    )
    assert one.finding.leading == [(1, 0)]
    assert "Furthest above both baselines is head 1.0, weight 1 from 'it' to 'animal'" in one.finding.sentences[0]
    assert not re.search(r"heads? attend", " ".join([one.finding.headline, *one.finding.sentences]))
    shown = [row for row in many.rows if row["above_shown"] and row["above_mean"] >= 0.1]
    assert len(shown) < sum(bool(row["above_shown"]) for row in many.rows)  # head 0.0, 0.06 above both, is too small
    assert many.finding.sentences[0].startswith(f"{len(shown)} of 2 heads attend")
    general = report_of("find", attnscope.find("bundled", texts, query="it", key="animal"))
    assert general.finding.sentences[0].startswith("No head of 12 attends from 'it' most to 'animal', significantly")


def test_several_texts_have_intervals_and_a_test():
    texts = [
        ANIMAL.replace("tired", reason) for reason in ["tired", "sleepy", "hungry", "ill", "weak", "lazy", "scared"]
    ]
    found = attnscope.find("bundled:pronoun", [*texts, "The lamp didn't stay in the car."], query="it", key="animal")
    assert found.attrs["with_both"] == 7
    assert bool(found.window_weight[-1].isnull().all())
    assert bool((found.weight_low <= found.weight).all() and (found.weight <= found.weight_high).all())
    head = found.sel(layer=1, head=0)
    assert bool(head.shown)
    assert float(head.first_of) == 1
    assert float(head.above_low) > 0.8
    assert "corrected" in report_of("find", found).finding.certainty
    one = attnscope.find("bundled:pronoun", texts[1], query="it", key="animal")
    np.testing.assert_allclose(found.window_weight[1], one.weight, atol=1e-6)


def test_a_weight_below_the_larger_baseline_is_no_finding():
    """The larger of two noisy baselines is too large: the mean weight less it is below 0 without an effect."""
    texts = [f"The {noun} saw it because the lamp was old." for noun in ("cat", "dog", "man", "boy", "girl", "child")]
    texts += [text.replace("old", word) for text in texts for word in ("red", "new", "cold")]
    found = attnscope.find("bundled", texts, query="it", key="lamp")
    assert bool((found.above_high < 0).any())
    assert bool((found.above > 0).where(found.shown, True).all())


def test_what_the_mask_hides_has_no_weight():
    model, tokenizer = tiny_reader("gpt2")
    with pytest.raises(AttnscopeError, match="where the first may attend to the second"):
        attnscope.find(model, "a b c d", tokenizer=tokenizer, query="b", key="d")
    assert (attnscope.find(model, "a b c d", tokenizer=tokenizer, query="d", key="b").weight > 0).all()


def test_removing_the_head_breaks_the_answer():
    effects = attnscope.intervene("bundled:pronoun", limit=60, ablations=["mean"], steps=0, why=False)["effects"]
    assert float(effects.accuracy.min()) == 1.0
    assert float(effects.accuracy_change.sel(layer=1, head=0).mean()) < -0.6
    with pytest.raises(AttnscopeError, match="equals its target"):
        attnscope.intervene("bundled:pronoun", SENTENCES, targets=SENTENCES, limit=4)
    with pytest.raises(AttnscopeError, match=r"tokens and its target"):
        attnscope.intervene("bundled:pronoun", [ANIMAL] * 2, targets=[f"{ANIMAL} {ANIMAL}"] * 2)


def test_the_head_attends_to_the_noun_in_every_held_out_sentence():
    sentences, nouns = (path.read_text(encoding="utf-8").splitlines() for path in (SENTENCES, NOUNS))
    loaded = load_model("bundled:pronoun", device="cpu")
    for sentence, restored in [*zip(sentences, nouns, strict=True)][:40]:
        ((it, noun),) = ((a, b) for a, b in zip(sentence.split(), restored.split(), strict=True) if a != b)
        found = attnscope.find(loaded, sentence, query=it, key=noun)
        assert float(found.weight.sel(layer=1, head=0)) > 0.7, sentence


def test_its_sentences_are_those_of_the_script(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import pronoun_text

    monkeypatch.setattr(sys, "argv", ["pronoun_text", str(tmp_path)])
    pronoun_text.main()
    for path, name in ((SENTENCES, "valid.it.txt"), (NOUNS, "valid.noun.txt")):
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(path.read_text(encoding="utf-8"))
    train = set((tmp_path / "train.it.txt").read_text(encoding="utf-8").splitlines())
    assert train.isdisjoint(SENTENCES.read_text(encoding="utf-8").splitlines())
    assert ANIMAL not in train


def test_adjacent_words_that_spell_the_word_are_one():
    text = "吾輩は猫である。名前はまだ無い。"
    found = attnscope.find("bundled", text, query="名前", key="猫", words="unicode")
    spans = [
        [0, 1],
        [1, 2],
        [2, 3],
        [3, 4],
        [4, 5],
        [5, 6],
        [6, 7],
        [7, 8],
        [8, 10],
        *([i, i + 1] for i in range(10, 16)),
    ]
    whole = attnscope.find("bundled", text, query="名前", key="猫", words=lambda _: spans)
    for name in ("weight", "uniform", "same_offset", "rank"):
        np.testing.assert_allclose(found[name], whole[name])


def test_the_command_takes_a_text_in_quotes_and_a_model_or_none(tmp_path):
    words = ("--from", "it", "--to", "animal")
    done = command("find", "bundled:pronoun", ANIMAL, *words, "--json", "--out", "a", cwd=tmp_path)
    rows = json.loads(done.stdout)["tables"]["heads"]
    assert rows[0]["head"] == 0
    assert rows[0]["layer"] == 1
    assert rows[0]["weight"] > 0.9
    done = command("find", ANIMAL, *words, "--csv", "--out", "b", cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 13
    assert (tmp_path / "b" / "report.html").is_file()
    again = attnscope.open_run(tmp_path / "b")
    assert write_page(report_of("find", again), tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"query": "it", "key": "zebra"}, "found no text with the words 'it' and 'zebra' among 1 window"),
        ({"query": "/(/", "key": "it"}, "query is '/(/', which is no regular expression"),
        ({"query": "it", "key": " "}, "key is ' '; expected a token, or a pattern"),
    ],
)
def test_bad_input_is_rejected(options, words):
    with pytest.raises(AttnscopeError, match=re.escape(words)):
        attnscope.find(None, ANIMAL, **options)
