"""`relations` against eager weights written out in NumPy, a head that is known, and links that mean nothing."""

import gzip
import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope import AttnscopeError
from attnscope.bundled import MODEL, SENTENCES
from attnscope.bundled import NOUNS as ANSWERS
from attnscope.models import EncoderForMaskedLM
from attnscope.results.reports import report_of, write_page
from attnscope_relations import relations
from attnscope_relations.data import REVERSED, linked_texts
from tests.cli.command import attnscope as command
from tests.tiny_models import tiny_reader

ANIMAL = "The animal didn't cross the street because it was too tired."
NOUNS = ("lamp", "keeper", "boat", "garden", "teacher", "river", "stone", "window")
VERBS = ("sees", "paints", "follows", "remembers", "holds", "washes")


def sentences(count, seed=0):
    """Sentences of three lengths with their dependencies by words: texts of `relations`."""
    random = np.random.default_rng(seed)
    texts = []
    for number in range(count):
        subject, object_, other = random.choice(NOUNS, 3, replace=False)
        verb, tail = random.choice(VERBS), random.choice(["", "old ", "very old "])
        text = f"The {subject} {verb} the {tail}{object_} near a {other}."
        at = {word: (text.index(word), text.index(word) + len(word)) for word in (subject, verb, object_, other)}
        pairs = [("subject", subject, verb), ("object", object_, verb), ("place", other, object_)]
        texts.append(
            {
                "text": text,
                "document": f"document {number // 2}",
                "pairs": [{"name": name, "from": at[query], "to": at[key]} for name, query, key in pairs],
            }
        )
    return texts


def word_weights(text):
    """Weights from word to word of eager attention, ``(layer, head, word, word)``, and the spans of words."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = EncoderForMaskedLM.from_pretrained(MODEL, attn_implementation="eager").eval()
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    ends = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        weights = torch.cat(model(**encoded, output_attentions=True).attentions).double().numpy()
    words, start = [], 0
    for word in text.replace(".", " .").split():
        start = text.index(word, start)
        words.append((start, start + len(word)))
        start += len(word)
    member = np.array([[i < j and i < end and start < j for i, j in ends] for start, end in words], float)
    return (member / member.sum(1, keepdims=True)) @ weights @ member.T, words


def test_scores_and_weights_are_those_of_clarks_procedure_written_out():
    texts = sentences(8)
    found = relations(None, texts, untrained=False)
    scores, weights = {}, {}
    for text in texts:
        merged, words = word_weights(text["text"])
        for pair in text["pairs"]:
            query, key = words.index(pair["from"]), words.index(pair["to"])
            rows = merged[:, :, query].copy()
            weights.setdefault(pair["name"], []).append(rows[..., key].copy())
            rows[..., query] = -1
            scores.setdefault(pair["name"], []).append(rows.argmax(-1) == key)
    for name in ("subject", "object", "place"):
        one = found.sel(relation=name)
        np.testing.assert_allclose(one.score, np.mean(scores[name], 0), atol=1e-6)
        np.testing.assert_allclose(one.weight, np.mean(weights[name], 0), atol=1e-6)
        assert one.queries == len(texts)


def test_links_of_other_texts_are_measured_where_they_are_put():
    """With two texts of one length, the exchanged links of each are those of the other, on its own weights."""
    texts = [text for text in sentences(40) if "old" not in text["text"]][:2]
    found = relations(None, texts, untrained=False, only=["subject"])
    scores = []
    for own, other in (texts, texts[::-1]):
        merged, _ = word_weights(own["text"])
        theirs = word_weights(other["text"])[1]
        pair = other["pairs"][0]
        query, key = theirs.index(pair["from"]), theirs.index(pair["to"])
        rows = merged[:, :, query].copy()
        rows[..., query] = -1
        scores.append(rows.argmax(-1) == key)
    np.testing.assert_allclose(found.exchanged[0], np.mean(scores, 0), atol=1e-6)


def pronouns(count):
    """Sentences of the pronoun model, with a link from "it" to the noun that it stands for."""
    lines = zip(*(path.read_text(encoding="utf-8").splitlines() for path in (SENTENCES, ANSWERS)), strict=True)
    texts = []
    for text, answer in lines:
        it = re.search(r"\bit\b", text).start()
        noun = re.search(r"\w+", answer[it:].removeprefix("the ")).group()
        at = re.search(rf"\b{noun}\b", text).start()
        texts.append({"text": text, "pairs": [{"name": "it", "from": [it, it + 2], "to": [at, at + len(noun)]}]})
    return texts[:count]


def test_the_known_head_of_a_pronoun_is_found_and_no_other():
    found = relations("bundled:pronoun", pronouns(200))
    assert found.shown.values.ravel().tolist() == [False, True]
    assert (int(found.best_layer[0]), int(found.best_head[0])) == (1, 0)
    assert float(found.held_out[0]) > 0.9
    assert float(found.offset_score[0]) < 0.6
    assert float(found.untrained.max()) < 0.5
    report = report_of("relations", found)
    assert report.finding.leading == [(1, 0)]
    assert report.finding.sentences[0].startswith("1 head links 1 of 1 relation")


def test_the_offset_is_chosen_on_the_other_half():
    texts = sentences(24)
    found = relations(None, texts, untrained=False, only=["subject"])
    assert int(found.best_offset[0]) == 1
    assert float(found.offset_score[0]) == 1
    assert not bool(found.shown.any())  # nothing can be above a control that is always right


def test_untrained_weights_link_nothing():
    model, tokenizer = tiny_reader("bert")
    torch.manual_seed(0)
    texts = sentences(36)
    found = relations(model, texts, tokenizer=tokenizer, untrained=False)
    assert not bool(found.shown.any())


def test_documents_of_equal_texts_are_one_unit():
    texts = sentences(16)
    again = [text | {"document": f"again {text['document']}"} for text in texts]
    found, once = (relations(None, data, untrained=False) for data in ([*texts, *again], texts))
    assert found.units.values.tolist() == once.units.values.tolist() == [8, 8, 8]
    np.testing.assert_allclose(found.score, once.score)


def test_two_words_are_the_simplest_relation():
    found = relations("bundled:pronoun", ANIMAL, query="it", key="animal", untrained=False)
    assert found.relation.values.tolist() == ["it → animal"]
    assert float(found.weight.sel(layer=1, head=0)[0]) > 0.95
    report = report_of("relations", found)
    assert (report.rows[0]["layer"], report.rows[0]["head"]) == (1, 0)
    assert "not tested" in report.finding.certainty


def test_what_the_mask_hides_is_not_asked_for():
    model, tokenizer = tiny_reader("gpt2")
    text = "<s> a b c d"
    ahead = {"text": text, "pairs": [{"name": "ahead", "from": [4, 5], "to": [8, 9]}]}
    back = {"text": text, "pairs": [{"name": "back", "from": [8, 9], "to": [4, 5]}]}
    found = relations(model, [ahead, back], tokenizer=tokenizer, untrained=False)
    assert found.queries.values.tolist() == [0, 1]
    assert bool(found.score[0].isnull().all())


def test_a_run_is_stored_read_again_and_drawn(tmp_path):
    texts = sentences(12)
    stored = relations(None, texts, out=tmp_path / "run")
    again = attnscope.open_run(tmp_path / "run")
    np.testing.assert_allclose(stored.score, again.score)
    np.testing.assert_allclose(stored.score, relations(None, texts).score)
    page = write_page(report_of("relations", again), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "subject" in page


def test_the_command_reads_a_file(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(text) + "\n" for text in sentences(8)), encoding="utf-8")
    done = command("relations", "bundled", file, "--only", "subject", "--no-untrained", "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["tables"]["relations"] if "tables" in json.loads(done.stdout) else done.stdout
    assert "subject" in str(rows)


CONLLU = """\
# newdoc id = first
# text = The cat sees a dog.
1	The	the	DET	_	_	2	det	_	_
2	cat	cat	NOUN	_	_	3	nsubj	_	_
3	sees	see	VERB	_	_	0	root	_	_
4	a	a	DET	_	_	5	det	_	_
5	dog	dog	NOUN	_	_	3	obj	_	SpaceAfter=No
6	.	.	PUNCT	_	_	3	punct	_	_

# text = I don't know and care.
1	I	I	PRON	_	_	4	nsubj	4:nsubj|6:nsubj	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	_	_	4	aux	4:aux	_
3	n't	not	PART	_	_	4	advmod	4:advmod	_
4	know	know	VERB	_	_	0	root	0:root	_
5	and	and	CCONJ	_	_	6	cc	6:cc	_
5.1	do	do	AUX	_	_	_	_	6:aux	_
6	care	care	VERB	_	_	4	conj	4:conj:and	SpaceAfter=No
7	.	.	PUNCT	_	_	4	punct	4:punct	_

"""


def test_a_treebank_is_read_by_relation_and_direction(tmp_path):
    file = tmp_path / "bank.conllu"
    file.write_text(CONLLU, encoding="utf-8")
    first, second = linked_texts(file)
    named = {
        (link.relation, first.text[slice(*link.query)]): [first.text[slice(*key)] for key in link.keys]
        for link in first.links
    }
    assert named["nsubj", "cat"] == ["sees"]
    assert named["nsubj" + REVERSED, "sees"] == ["cat"]
    assert named["det", "The"] == ["cat"]
    assert "punct" not in {link.relation for link in first.links}
    links = {
        (link.relation, second.text[slice(*link.query)]): [second.text[slice(*key)] for key in link.keys]
        for link in second.links
    }
    assert links["aux", "don't"] == ["know"]  # a word of a multiword token has its characters
    assert links["nsubj", "I"] == ["know", "care"]  # the second one is enhanced
    assert links["conj:and", "care"] == ["know"]
    assert {first.document, second.document} == {"bank.conllu: first"}


PAIR = {"name": "x", "from": [0, 1], "to": [2, 3]}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([{"text": "a b"}], "no text with pairs"),
        ([{"text": "a b", "pairs": []}], "found no link"),
        ([{"text": "a b", "pairs": [{"name": "x", "from": [0, 1]}]}], "lacks name, from or to"),
        ([{"text": "a b", "pairs": [{"name": "x", "from": [0, 9], "to": [2, 3]}]}], "expected the first character"),
        ([3], "expected a pathlib.Path"),
        ([{"text": "a b", "pairs": [PAIR], "words": 5}], "found the words 5; expected their spans"),
        ([{"text": "a b", "pairs": [PAIR], "words": [[2, 3], [0, 1]]}], "expected spans in order"),
        ([{"text": "a b", "pairs": [PAIR], "target": 5}], "found the target 5"),
        ([{"text": "a b", "pairs": [PAIR | {"name": "x\n\x1b[31m"}]}], "found the relation"),
        ([{"text": "a b", "pairs": [PAIR | {"name": "x" * 81}]}], "at most 80 characters"),
    ],
)
def test_data_of_another_form_are_explained(data, problem):
    with pytest.raises(AttnscopeError, match=problem):
        relations(None, data)


def test_a_call_without_model_or_texts_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bank.conllu").write_text(CONLLU, encoding="utf-8")
    done = command("relations", "bank.conllu", cwd=tmp_path)
    assert "bank.conllu is not a model: write attnscope relations MODEL bank.conllu" in " ".join(done.stderr.split())
    with pytest.raises(AttnscopeError, match="found no texts with links: write attnscope relations bundled FILE"):
        relations("bundled")
    with pytest.raises(AttnscopeError, match="add --from WORD --to WORD"):
        relations("bundled", "The keeper climbed the stairs.")


def test_two_words_are_looked_for_in_the_bundled_sample():
    found = relations(query="/[Tt]he/", key="/[a-z]+/", limit=2)
    assert found.sizes["window"] == 2


def test_files_of_another_form_are_explained(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("a b", encoding="utf-8")
    with pytest.raises(AttnscopeError, match="add --from WORD --to WORD"):
        relations(None, text)
    bank = tmp_path / "a.conllu"
    bank.write_text("1\ta\tb\n\n", encoding="utf-8")
    with pytest.raises(AttnscopeError, match="is not CoNLL-U"):
        relations(None, bank)
    bank.write_text(CONLLU.replace("The cat sees", "The dog sees"), encoding="utf-8")
    with pytest.raises(AttnscopeError, match="does not go on with 'cat'"):
        relations(None, bank)
    with pytest.raises(AttnscopeError, match="only one of --from and --to"):
        relations(None, ANIMAL, query="it")
    bank.write_text(CONLLU.replace("4\ta\ta", "4 a"), encoding="utf-8")
    with pytest.raises(AttnscopeError, match="line 6 has 8 columns"):
        relations(None, bank)
    bank.write_text("# A treebank\n\nSentences of our own.\n", encoding="utf-8")
    with pytest.raises(AttnscopeError, match="line 3 has 1 column"):
        relations(None, bank)
    bank.write_bytes(b"")
    with pytest.raises(AttnscopeError, match=r"a\.conllu is empty; expected sentences in CoNLL-U"):
        relations(None, bank)
    with pytest.raises(AttnscopeError, match="found no text with the word 'zebra'"):
        relations(None, ANIMAL, query="it", key="zebra")
    with pytest.raises(AttnscopeError, match="found no text with the words 'elk' and 'zebra'"):
        relations(None, ANIMAL, query="elk", key="zebra")
    with pytest.raises(AttnscopeError, match=r"did you mean subject\? All relations are object, place, subject"):
        relations(None, sentences(4), only=["nsubj"])
    with pytest.raises(AttnscopeError, match="no text has; the relations are object"):
        relations(None, sentences(4), only=["xyz"])


def test_a_run_of_other_relations_is_left_as_it_is(tmp_path):
    relations(None, sentences(4), only=["subject"], out=tmp_path / "run", untrained=False)
    with pytest.raises(AttnscopeError, match=r"holds another run: its settings.only is \['subject'\], not None"):
        relations(None, sentences(4), out=tmp_path / "run", untrained=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bank.conllu", CONLLU),
        ("pairs.jsonl", json.dumps(sentences(1)[0]) + "\n"),
        ("list.contacts", "MKTAYIAKQR\n1 9\n"),
        ("list.rr", "MKTAYIAKQR\n1 9\n"),
    ],
)
def test_files_may_be_compressed(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with gzip.open(tmp_path / f"{name}.gz", "wt", encoding="utf-8") as file:
        file.write(content)
    plain, packed = (linked_texts(tmp_path / one) for one in (name, f"{name}.gz"))
    assert [(text.text, text.links) for text in packed] == [(text.text, text.links) for text in plain]
