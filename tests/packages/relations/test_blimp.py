"""Lines as BLiMP writes them: their links, and the same margins as minimal pairs of other lines."""

import json

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope_relations import relations
from attnscope_relations.data import AGREEMENT, BEFORE, linked_texts
from tests.cli.command import attnscope as command

# lines of our own, with the fields of BLiMP's files
ONE_PREFIX = {
    "sentence_good": "Nora's brothers haven't sung.",
    "sentence_bad": "Nora's brothers hasn't sung.",
    "one_prefix_prefix": "Nora's brothers",
    "one_prefix_word_good": "haven't",
    "one_prefix_word_bad": "hasn't",
    "field": "morphology",
    "linguistics_term": "subject_verb_agreement",
    "UID": "regular_plural_subject_verb_agreement_1",
    "simple_LM_method": True,
    "one_prefix_method": True,
    "two_prefix_method": False,
    "lexically_identical": False,
    "pairID": "7",
}
TWO_PREFIX = {
    "sentence_good": "Only a poet should ever sing.",
    "sentence_bad": "Even a poet should ever sing.",
    "two_prefix_prefix_good": "Only a poet should",
    "two_prefix_prefix_bad": "Even a poet should",
    "two_prefix_word": "ever",
    "UID": "only_npi_licensor_present",
    "two_prefix_method": True,
    "pairID": "0",
}
LAST = {"sentence_good": "Ann can't help herself.", "sentence_bad": "Ann can't help himself."}  # of another release
LAST |= {"UID": "anaphor_gender_agreement", "pair_id": 3}


def links(line):
    (text,) = linked_texts(line)
    return text, {
        (link.relation, *(text.text[slice(*span)] for span in (link.query, *link.keys))) for link in text.links
    }


def test_a_subject_that_is_added_is_what_the_differing_word_depends_on():
    text, found = links(ONE_PREFIX | {"subject": [7, 15]})
    name = ONE_PREFIX["UID"]
    assert found == {(name, "haven't", "brothers")}  # the subject is the word before, too
    assert text.document == f"{name} 7"
    assert text.answers == (ONE_PREFIX["sentence_good"], ONE_PREFIX["sentence_bad"])
    _, found = links(LAST | {"subject": [0, 3]})
    name = LAST["UID"]
    assert found == {(name, "herself", "Ann"), (name + BEFORE, "help", "Ann")}


def test_pairs_of_two_prefixes_mark_both_ends():
    _, found = links(TWO_PREFIX)
    name = TWO_PREFIX["UID"]
    assert found == {(name, "ever", "Only"), (name + BEFORE, "should", "Only")}


def test_pairs_of_spans_may_be_added():
    pair = {"name": "determiner", "from": [7, 11], "to": [5, 6]}
    assert links(TWO_PREFIX | {"pairs": [pair]})[1] == {("determiner", "poet", "a")}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (ONE_PREFIX, 'does not mark the word that "haven\'t" depends on. Add its characters'),
        (ONE_PREFIX | {"verb": [16, 23]}, "a verb without a subject"),
        (ONE_PREFIX | {"subject": [7, 99]}, "expected the first character"),
        (ONE_PREFIX | {"sentence_bad": "Nora's brother hasn't sung."}, "differ in 2 words"),
        (ONE_PREFIX | {"sentence_bad": "Nora's brothers sung."}, "differ in 2 words"),
        (ONE_PREFIX | {"sentence_bad": ONE_PREFIX["sentence_good"]}, "expected two texts that differ"),
        ({"sentence_good": "Ann sings."}, "expected two texts that differ"),
        (TWO_PREFIX | {"two_prefix_word": "never"}, "does not mark the word that 'Only' depends on"),
    ],
)
def test_what_a_line_lacks_is_explained(line, problem, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(AttnscopeError, match=f"pairs.jsonl, line 1: .*{problem}"):
        linked_texts(file)


def agreement(count):
    """The same minimal pairs as BLiMP writes them, with a subject, and as other lines."""
    lines, others = [], []
    for number, (_, row) in enumerate(attnscope.pairs("agreement", count=count).iterrows()):
        good, bad = (f"{row.clean}{answer} old." for answer in (row.answer, row.wrong))
        subject = [*row.spans["subject"][0]]
        lines.append({"sentence_good": good, "sentence_bad": bad, "subject": subject, "pairID": str(number)})
        verb = [len(row.clean) + 1, len(row.clean) + len(row.answer)]
        others.append({"good": good, "bad": bad, "verb": verb, "subject": subject, "id": str(number)})
    return lines, others


def test_margins_are_those_of_other_minimal_pairs(tmp_path):
    lines, others = agreement(40)
    found, expected = (relations("bundled:tasks", data, ablate=True, untrained=False) for data in (lines, others))
    assert found.relation.values.tolist() == [AGREEMENT, AGREEMENT + BEFORE]
    for name in ("score", "margin", "ablated", "ablated_others"):
        np.testing.assert_allclose(found[name], expected[name])
    file = tmp_path / "paradigm.jsonl"
    named = [line | {"UID": "copula"} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in named), encoding="utf-8")
    done = command("relations", "bundled:tasks", file, "--ablate", "--no-untrained", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["tables"]["ablation"]
    assert {row["relation"] for row in rows} == {"copula", "copula" + BEFORE}
    np.testing.assert_allclose(rows[0]["margin"], float(found.margin.max()), rtol=1e-5)
