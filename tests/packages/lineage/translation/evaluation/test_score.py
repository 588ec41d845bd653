"""Scores agree with sacreBLEU's own; refusals say what to do."""

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

import attnscope_lineage
from attnscope.support.errors import AttnscopeError
from tests.packages.lineage.translation.corrupted_translations import corrupted, sentences

REFERENCE = sentences(120)
SYSTEMS = {"first": corrupted(REFERENCE, 0.3, 1), "second": corrupted(REFERENCE, 0.26, 2), "same": None}
SYSTEMS["same"] = SYSTEMS["first"]


@pytest.fixture(scope="module")
def result():
    return attnscope_lineage.score(SYSTEMS, [REFERENCE], resamples=300)


def test_scores_and_intervals_are_those_of_sacrebleu(result, monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    metrics = {"BLEU": BLEU(force=True), "chrF": CHRF()}
    test = PairedTest(list(SYSTEMS.items()), metrics, [REFERENCE], test_type="bs", n_samples=300)
    signatures, peers = test()
    for metric, peer in (("BLEU", "BLEU"), ("chrF", "chrF2")):
        ours = result.sel(metric=metric)
        np.testing.assert_allclose(ours["score"], [entry.score for entry in peers[peer]], rtol=1e-12)
        half_width = (ours["upper"] - ours["lower"]) / 2
        single = 100 * np.finfo(np.float32).eps  # theirs are of single precision
        np.testing.assert_allclose(half_width, [entry.ci for entry in peers[peer]], rtol=0, atol=single)
        assert json.loads(result.attrs["signature"])[metric] == signatures[peer].format()


def test_the_baseline_is_compared_with_nothing_and_an_equal_system_does_not_differ(result):
    assert np.isnan(result["difference"].sel(system="first")).all()
    assert np.isnan(result["p_value"].sel(system="first")).all()
    same = result.sel(system="same")
    for name in ("difference", "difference_lower", "difference_upper"):
        assert (same[name] == 0).all()
    assert (same["p_value"] == 1).all()
    assert (result["lower"] < result["score"]).all()
    assert (result["score"] < result["upper"]).all()


def test_a_bucket_is_scored_as_its_sentences_alone(result):
    sources = ["x " * (len(line.split()) + 1) for line in REFERENCE]
    parts = attnscope_lineage.score(SYSTEMS, [REFERENCE], texts=[*sources], by_length=[10, 20, 100], resamples=100)
    assert list(parts["bucket"].values) == ["1-10", "11-20", "21-100", "101+"]
    chosen = [i for i, line in enumerate(REFERENCE) if 11 <= len(line.split()) + 1 <= 20]
    assert parts["sentences"].values[1] == len(chosen)
    assert parts["sentences"].sum() == len(REFERENCE)
    alone = attnscope_lineage.score(
        {name: [lines[i] for i in chosen] for name, lines in SYSTEMS.items()},
        [[REFERENCE[i] for i in chosen]],
        resamples=100,
    )
    for name in ("score", "lower", "upper"):
        np.testing.assert_array_equal(parts[f"{name}_by_length"].isel(bucket=1), alone[name])
    assert np.isnan(parts["score_by_length"].isel(bucket=3)).all()


@pytest.mark.parametrize("tokenize", ["13a", "intl", "zh", "ja-mecab", "char", "none"])
def test_the_tokenizers_are_those_of_sacrebleu(tokenize):
    if tokenize == "ja-mecab":
        pytest.importorskip("MeCab")
    hypotheses, references = ["彼は本を読む。", "The cat, sat."], ["彼は本を読んだ。", "A cat, sat."]
    ours = attnscope_lineage.score([hypotheses], [references], tokenize=tokenize, lowercase=True, resamples=0)
    peer = BLEU(tokenize=tokenize, lowercase=True)
    assert float(ours["score"].sel(metric="BLEU").item()) == peer.corpus_score(hypotheses, [references]).score
    assert json.loads(ours.attrs["signature"])["BLEU"] == peer.get_signature().format()


def test_moses_and_lower_case_is_multi_bleu_on_tokenised_text():
    # The tokens are by hand; multi-bleu.perl: exp of the mean log precision times the brevity penalty.
    ours = attnscope_lineage.score(
        [["The man's dog doesn't bark, it sleeps."]],
        [["the man's dog doesn't bark, she sleeps."]],
        tokenize="moses",
        lowercase=True,
        resamples=0,
    )
    # the man 's dog doesn 't bark , it sleeps .   -> 11 tokens, one of which is wrong
    precisions = [10 / 11, 8 / 10, 6 / 9, 5 / 8]
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert float(ours["score"].sel(metric="BLEU").item()) == pytest.approx(expected, rel=1e-12)
    signature = json.loads(ours.attrs["signature"])["BLEU"]
    assert "case:lc" in signature
    assert "tok:moses.en-sacremoses." in signature


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "says"),
    [
        ([["a", "b"]], [["a"]], {}, "system 1 has 2 lines and reference 1 has 1"),
        ([[]], [[]], {}, "system 1 is empty"),
        ([], [["a"]], {}, "hypotheses is empty"),
        ([["a"]], [["a"]], {"tokenize": "moose"}, "tokenize is 'moose'.*; expected one of '13a'"),
        ([["a"]], [["a"]], {"by_length": [10]}, "need the source sentences"),
        ([["a"]], [["a"]], {"by_length": [10, 5], "texts": ["a b"]}, "expected positive, increasing"),
        ([["a"]], [["a"]], {"by_length": [5], "texts": ["猫がいる"]}, "--length-in characters"),
        ([["a"]], [["a"]], {"texts": ["a", "b"]}, "the text has 2"),
        ([["a"]], [["a"]], {"length_in": "bits"}, "length_in is 'bits'"),
        ([["a"]], [["a"]], {"resamples": -1}, "resamples .* is -1; expected a whole number from 0"),
        ([Path("nowhere.txt")], [["a"]], {}, r"nowhere.txt: no such file"),
        ([Path("/")], [["a"]], {}, "found a folder; expected a file: name one inside it"),
        (["nowhere.txt"], [["a"]], {}, r"looks like a file"),
    ],
)
def test_what_is_wrong_is_reported(hypotheses, references, options, says):
    with pytest.raises(AttnscopeError, match=says):
        attnscope_lineage.score(hypotheses, references, **options)


def test_text_without_spaces_is_scored_by_its_language_or_rejected():
    made, right = ["吾輩は猫である。名前は無い。"], ["吾輩は猫である。名前はまだ無い。"]
    with pytest.raises(AttnscopeError, match=r"no spaces between words.*--language ja"):
        attnscope_lineage.score([made], [right])
    with pytest.raises(AttnscopeError, match=r"'jp' has no tokenizer here: set their language"):
        attnscope_lineage.score([made], [right], language="jp")
    pytest.importorskip("MeCab")
    by_language = attnscope_lineage.score([made], [right], language="ja-JP", resamples=0)
    assert by_language.identical(attnscope_lineage.score([made], [right], tokenize="ja-mecab", resamples=0))
    assert float(by_language["score"].sel(metric="BLEU").item()) > 50
    asked = attnscope_lineage.score([made], [right], tokenize="13a", resamples=0)
    assert "tok:13a" in asked.attrs["signature"]
    assert "treats a sentence as one word" in asked.attrs["note"]
    assert "note" not in by_language.attrs


def test_one_sentence_has_no_interval():
    found = attnscope_lineage.score({"a": ["a b c d e"], "b": ["a b c d f"]}, [["a b c d e"]], resamples=20)
    assert found[["lower", "upper", "p_value", "difference_lower"]].isnull().all().to_array().all()
    assert found["score"].notnull().all()


# A stand-in for COMET's command: the share of the reference's words that a sentence has, and of the source's.
COMET_SCORE = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if options["--model"] == "unknown":
    sys.exit("Traceback\\nKeyError: unknown model")
source, hypothesis, reference = (open(options[name]).read().splitlines() for name in ("-s", "-t", "-r"))
def share(one, other):
    return len(set(one.split()) & set(other.split())) / len(set(other.split()))
scores = [(share(mt, ref) + share(mt, src)) / 2 for src, mt, ref in zip(source, hypothesis, reference)]
json.dump({{options["-t"]: [{{"COMET": score}} for score in scores]}}, open(options["--to_json"], "w"))
"""


@pytest.fixture
def comet(tmp_path, monkeypatch):
    command = tmp_path / "comet-score"
    command.write_text(COMET_SCORE.format(python=sys.executable))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def test_comet_is_the_mean_of_its_sentences_with_intervals_and_tests(comet):
    sources = [f"a{i} b c" for i in range(40)]
    references = [[f"a{i} x y" for i in range(40)], [f"z{i} x" for i in range(40)]]
    systems = {"good": [f"a{i} x y" for i in range(40)], "bad": [f"a{i} x q" if i % 2 else "q" for i in range(40)]}
    scored = attnscope_lineage.score(systems, references, texts=sources, comet="Unbabel/wmt22-comet-da", resamples=200)
    good = 100 * ((1 + 1 / 3) / 2 + (1 / 2 + 1 / 3) / 2) / 2
    bad = 100 * ((2 / 3 + 1 / 3) / 2 + (1 / 2 + 1 / 3) / 2) / 2 / 2
    of_comet = scored.sel(metric="COMET")
    assert of_comet.score.values.tolist() == pytest.approx([good, bad])
    assert float(of_comet.lower.sel(system="bad")) < bad < float(of_comet.upper.sel(system="bad"))
    assert float(of_comet.p_value.sel(system="bad")) < 0.05
    assert json.loads(scored.attrs["signature"])["COMET"] == "model:wmt22-comet-da"
    without = attnscope_lineage.score(systems, references, resamples=200)
    xr.testing.assert_equal(scored[["score", "lower"]].sel(metric=["BLEU", "chrF"]), without[["score", "lower"]])


def test_without_comet_or_sources_it_says_so(request):
    with pytest.raises(AttnscopeError, match=r"^found no command comet-score: pipx install unbabel-comet, .* leave"):
        attnscope_lineage.score([["a b"]], ["a b"], texts=["c"], comet="model")
    request.getfixturevalue("comet")
    with pytest.raises(AttnscopeError, match="COMET reads the sentences that were translated"):
        attnscope_lineage.score([["a b"]], ["a b"], comet="model")
    with pytest.raises(AttnscopeError, match=r"with the model unknown failed: KeyError: unknown model\. Pass"):
        attnscope_lineage.score([["a b"]], ["a b"], texts=["c"], comet="unknown")
