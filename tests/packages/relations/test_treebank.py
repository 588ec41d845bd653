"""The data of tests/data/relations: trees keep the rules of Universal Dependencies, spans cover words."""

import json
import re
from collections import Counter
from pathlib import Path

import conllu
import pytest

DATA = Path(__file__).parents[2] / "data" / "relations"
TREEBANKS = {"english": (300, 25, (4, 25)), "japanese": (150, 15, (4, 27))}  # sentences, documents, words

# fmt: off
UPOS = {
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT",
    "SCONJ", "VERB"
}
RELATIONS = {
    "acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "compound", "conj", "cop",
    "csubj", "det", "discourse", "dislocated", "expl", "fixed", "flat", "iobj", "mark", "nmod", "nsubj",
    "nummod", "obj", "obl", "orphan", "parataxis", "punct", "root", "vocative", "xcomp"
}
# fmt: on
SUBTYPES = {
    "english": "acl:relcl advcl:relcl aux:pass cc:preconj compound:prt csubj:pass det:predet nmod:poss "
    "nsubj:pass obl:agent",
    "japanese": "nsubj:outer",
}
SUBJECTS = {"nsubj", "nsubj:pass", "csubj", "csubj:pass"}
RIGHTWARDS = {"appos", "conj", "fixed", "flat", "orphan"}
UPOS_OF = {
    "advmod": {"ADV", "ADJ", "PART", "CCONJ", "DET"},
    "amod": {"ADJ", "VERB"},
    "aux": {"AUX"},
    "case": {"ADP", "PART"},
    "cc": {"CCONJ"},
    "cop": {"AUX"},
    "det": {"DET"},
    "expl": {"PRON"},
    "flat": {"PROPN"},
    "mark": {"SCONJ", "PART", "ADP", "ADV"},
    "nummod": {"NUM"},
    "punct": {"PUNCT"},
}
# Relations below a function word, next to conjuncts, punctuation and the rest of a fixed phrase.
BELOW = {
    "aux": {"advmod"},
    "case": {"advmod", "obl"},
    "cc": set(),
    "cop": {"advmod"},
    "det": {"advmod"},
    "fixed": set(),
    "mark": {"advmod", "obl"},
    "punct": set(),
}
ALWAYS_BELOW = {"cc", "conj", "fixed", "punct"}


def words_of(sentence):
    return [word for word in sentence if isinstance(word["id"], int)]


def kind(word):
    return word["deprel"].partition(":")[0]


def below(words):
    """The children of each word by its number."""
    children = {word["id"]: [] for word in [{"id": 0}, *words]}
    for word in words:
        children[word["head"]].append(word)
    return children


def descendants(children, head):
    inside = {head}
    for child in children[head]:
        inside |= descendants(children, child["id"])
    return inside


def written(sentence):
    """The text of a sentence from its forms and spaces."""
    text, covered = "", 0
    for token in sentence:
        if isinstance(token["id"], int):
            if token["id"] <= covered:
                continue
        elif token["id"][1] == "-":
            covered = token["id"][2]
        else:
            continue
        text += token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ")
    return text.rstrip()


@pytest.fixture(scope="module", params=TREEBANKS)
def treebank(request):
    return request.param, conllu.parse((DATA / f"{request.param}.conllu").read_text(encoding="utf-8"))


def test_sentences_and_documents_are_as_many_and_as_long_as_the_readme_says(treebank):
    language, sentences = treebank
    count, documents, (shortest, longest) = TREEBANKS[language]
    assert len(sentences) == len({sentence.metadata["sent_id"] for sentence in sentences}) == count
    names = [sentence.metadata["newdoc id"] for sentence in sentences if "newdoc id" in sentence.metadata]
    assert len(names) == len(set(names)) == documents
    assert {sentence.metadata["sent_id"].rpartition("-")[0] for sentence in sentences} == set(names)
    lengths = [sum(word["upos"] != "PUNCT" for word in words_of(sentence)) for sentence in sentences]
    assert shortest <= min(lengths) < max(lengths) <= longest
    texts = Counter(sentence.metadata["text"] for sentence in sentences)
    assert texts.most_common(1)[0][1] == 1


def test_each_sentence_is_a_tree_of_its_text(treebank):
    for sentence in treebank[1]:
        name, words = sentence.metadata["sent_id"], words_of(sentence)
        assert [word["id"] for word in words] == [*range(1, len(words) + 1)], name
        assert [word["id"] for word in words if word["head"] == 0] == [w["id"] for w in words if kind(w) == "root"], (
            name
        )
        children = below(words)
        assert len(children[0]) == 1, name
        assert descendants(children, 0) == {*range(len(words) + 1)}, name  # else a cycle
        assert written(sentence) == sentence.metadata["text"], name


def test_tags_and_relations_are_of_universal_dependencies(treebank):
    language, sentences = treebank
    relations = RELATIONS | set(SUBTYPES[language].split())
    for sentence in sentences:
        for word in words_of(sentence):
            where = sentence.metadata["sent_id"], word["form"], word["upos"], word["deprel"]
            assert word["upos"] in UPOS, where
            assert word["deprel"] in relations, where
            assert word["upos"] in UPOS_OF.get(kind(word), UPOS), where
            assert word["upos"] != "PUNCT" or kind(word) == "punct", where
            assert word["lemma"], where


def test_function_words_have_no_content_below_them(treebank):
    for sentence in treebank[1]:
        children = below(words_of(sentence))
        for word in words_of(sentence):
            allowed = BELOW.get(kind(word))
            found = {kind(child) for child in children[word["id"]]}
            assert allowed is None or found <= allowed | ALWAYS_BELOW, (
                sentence.metadata["sent_id"],
                word["form"],
                found,
            )


def test_coordination_names_and_fixed_phrases_go_from_left_to_right(treebank):
    for sentence in treebank[1]:
        for word in words_of(sentence):
            where = sentence.metadata["sent_id"], word["form"]
            assert kind(word) not in RIGHTWARDS or word["head"] < word["id"], where
        for head, children in below(words_of(sentence)).items():
            fixed = [child["id"] for child in children if kind(child) == "fixed"]
            assert fixed == [*range(head + 1, head + 1 + len(fixed))], (sentence.metadata["sent_id"], head)


def test_a_predicate_has_one_subject_and_one_object(treebank):
    for sentence in treebank[1]:
        for head, children in below(words_of(sentence)).items():
            relations = Counter(child["deprel"] for child in children)
            assert sum(relations[name] for name in SUBJECTS) <= 1, (sentence.metadata["sent_id"], head)
            assert relations["obj"] + relations["ccomp"] <= 1, (sentence.metadata["sent_id"], head)
            assert relations["iobj"] <= relations["obj"] + relations["ccomp"], (sentence.metadata["sent_id"], head)


def test_a_passive_subject_has_a_passive_verb(treebank):
    for sentence in treebank[1]:
        name = sentence.metadata["sent_id"]
        for children in below(words_of(sentence)).values():
            relations = {child["deprel"] for child in children}
            assert not relations & {"nsubj:pass", "csubj:pass"} or "aux:pass" in relations, name
            assert "aux:pass" not in relations or not relations & {"nsubj", "csubj", "cop"}, name


def test_no_arc_of_punctuation_crosses_another(treebank):
    for sentence in treebank[1]:
        words = words_of(sentence)
        children = below(words)
        for word in words:
            if kind(word) != "punct":
                continue
            first, last = sorted((word["id"], word["head"]))
            name = sentence.metadata["sent_id"], word["id"]
            assert {*range(first + 1, last)} <= descendants(children, word["head"]), name
            for other in words:
                start, end = sorted((other["id"], other["head"]))
                if 0 < start < word["id"] < end:  # an arc over the mark: its head is above the mark, too
                    assert word["id"] in descendants(children, other["head"]), name


def test_enhanced_relations_reach_every_word_and_empty_node():
    sentences = conllu.parse((DATA / "english.conllu").read_text(encoding="utf-8"))
    shared = empty = 0
    for sentence in sentences:
        nodes = [token for token in sentence if isinstance(token["id"], int) or token["id"][1] == "."]
        reached, last = {0}, set()
        while reached != last:
            last = reached
            reached = last | {node["id"] for node in nodes if last & {head for _, head in node["deps"]}}
        assert reached == {0, *(node["id"] for node in nodes)}, sentence.metadata["sent_id"]
        shared += sum(len(node["deps"]) - 1 for node in nodes)
        empty += len(nodes) - len(words_of(sentence))
    assert (shared, empty) == (99, 12)


def objects(name):
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    values = [json.loads(line) for line in lines]
    assert len({value["id"] for value in values}) == len(values)
    return values


def covers_words(text, span):
    """Whether a span begins and ends at the border of a word."""
    start, end = span
    return {start, end} <= {border for word in re.finditer(r"\w+", text) for border in word.span()} and start < end


def test_a_mention_follows_its_antecedent_and_what_stands_between_is_marked():
    passages = objects("coreference.jsonl")
    assert len(passages) == 30
    pairs = [(passage["text"], pair) for passage in passages for pair in passage["pairs"]]
    assert len(pairs) == 90
    for text, pair in pairs:
        assert pair["name"] == "coreference"
        assert all(covers_words(text, pair[end]) for end in ("from", "to", "nearer") if end in pair), pair
        assert pair["to"][1] < pair["from"][0], pair
        if "nearer" in pair:
            assert pair["to"][1] < pair["nearer"][0] < pair["nearer"][1] < pair["from"][0], pair
    assert sum("nearer" in pair for _, pair in pairs) == 69
    for passage in passages:
        assert 2 <= len(re.findall(r"[.?!](?= |$)", passage["text"])) <= 4, passage["id"]


def test_choices_of_a_pronoun_are_balanced():
    """Each situation is there with either person, and pronouns, first and second names are right equally often."""
    pairs = objects("coreference-choice.jsonl")
    assert len(pairs) == 40
    for pair in pairs:
        good, (start, end) = pair["good"], pair["verb"]
        other = {"He": "She", "She": "He"}[good[start:end]]
        assert pair["bad"] == good[:start] + other + good[end:]
        assert all(covers_words(good, pair[name]) for name in ("verb", "subject", "competitor"))
        assert max(pair["subject"][1], pair["competitor"][1]) < start
    situations = {pair["document"]: [] for pair in pairs}
    for pair in pairs:
        right, wrong = (pair["good"][slice(*pair[name])] for name in ("subject", "competitor"))
        text = pair["good"].replace(right, "RIGHT").replace(wrong, "WRONG")
        situations[pair["document"]].append((right, wrong, text[: text.index(". ")]))
    for (right, wrong, text), (right_too, wrong_too, text_too) in situations.values():
        assert (right, wrong, text) == (wrong_too, right_too, text_too)
    assert sum(pair["good"][slice(*pair["verb"])] == "She" for pair in pairs) == 20
    assert sum(pair["subject"][0] < pair["competitor"][0] for pair in pairs) == 20


def test_a_minimal_pair_differs_in_the_word_that_agrees():
    pairs = objects("agreement.jsonl")
    assert len(pairs) == 67
    assert len({pair["good"] for pair in pairs} | {pair["bad"] for pair in pairs}) == 2 * len(pairs)
    for pair in pairs:
        good, bad = pair["good"].split(), pair["bad"].split()
        assert sum(right != wrong for right, wrong in zip(good, bad, strict=True)) == 1, pair["id"]
        (start, end), (bad_start, bad_end) = pair["verb"], pair["bad_verb"]
        assert start == bad_start
        assert pair["good"][:start] == pair["bad"][:start]
        assert pair["good"][start:end] != pair["bad"][start:bad_end]
        assert pair["good"][end:] == pair["bad"][bad_end:], pair["id"]
        assert pair["good"][slice(*pair["subject"])] == pair["bad"][slice(*pair["bad_subject"])], pair["id"]
        spans = {"good": ("verb", "subject", "attractor"), "bad": ("bad_verb", "bad_subject")}
        for side, names in spans.items():
            assert all(covers_words(pair[side], pair[name]) for name in names if name in pair), pair["id"]
