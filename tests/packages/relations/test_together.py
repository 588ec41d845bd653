"""All heads together against scikit-learn on eager weights, planted heads, trees written out, and random models."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attnscope.results.reports import report_of
from attnscope_relations import relations, together
from attnscope_relations.data import linked_texts
from attnscope_relations.together import FOLDS, STRENGTH
from attnscope_relations.trees import arborescence, is_tree
from attnscope_zoo.catalogue import build
from tests.packages.relations.test_relations import CONLLU, pronouns, sentences, word_weights
from tests.tiny_models import tiny_reader


def features(merged, query):
    """Weights of every head from a word to each word, and back, ``(word, feature)``."""
    flat = merged.reshape(-1, *merged.shape[2:])
    return np.concatenate([flat[:, query], flat[:, :, query]]).T


def regression(rows, labels):
    """scikit-learn's, on standardised features."""
    fitted = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, tol=1e-6, max_iter=1000))
    return fitted.fit(np.concatenate(rows), np.concatenate(labels))


def test_scores_and_weights_are_those_of_scikit_learn_on_weights_written_out():
    # a token spans "very old", whose words the weights written out count otherwise
    texts = [text for text in sentences(80) if "very" not in text["text"]][:40]
    texts = [text | {"document": str(number // 2)} for number, text in enumerate(texts)]
    found = relations(None, texts, together=True, untrained=False, only=["object"])
    rows, labels = [], []
    for text in texts:
        merged, words = word_weights(text["text"])
        pair = text["pairs"][1]
        query = words.index(pair["from"])
        others = [word for word in range(len(words)) if word != query]
        rows.append(features(merged, query)[others])
        labels.append(np.array(others) == words.index(pair["to"]))
    fold = (np.random.default_rng(0).permutation(20) % FOLDS).repeat(2)  # two texts are a document
    right, alone = np.zeros(40), np.zeros(40)
    hits = np.array([label[row.argmax(0)] for row, label in zip(rows, labels, strict=True)])
    for number in range(FOLDS):
        train = np.flatnonzero(fold != number)
        fitted = regression([rows[at] for at in train], [labels[at] for at in train])
        best = hits[train].sum(0).argmax()
        for at in np.flatnonzero(fold == number):
            right[at] = labels[at][fitted.predict_proba(rows[at])[:, 1].argmax()]
            alone[at] = hits[at, best]
    assert float(found.together.sel(by="together")[0]) == pytest.approx(right.mean())
    assert float(found.together.sel(by="one head")[0]) == pytest.approx(alone.mean())
    expected = regression(rows, labels)[-1].coef_[0]
    np.testing.assert_allclose(found.together_weight[0].values.ravel(), expected, atol=1e-3)


def planted_texts(planted):
    """The texts of a planted model, with a relation for each planted head from its queries to its key."""
    texts = []
    for number, row in enumerate(planted.ids.tolist()):
        words = [f"t{token}" for token in row]
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        spans = [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]
        pairs = []
        for (layer, head), all_keys in planted.attended.items():
            for query, keys in enumerate(all_keys[0].keys[number]):
                if int(keys.sum()) == 1:
                    to = spans[int(keys.nonzero()[0])]
                    pairs.append({"name": f"{layer}.{head}", "from": spans[query], "to": to})
        texts.append({"text": " ".join(words), "pairs": pairs})
    return texts


def largest(found, relation):
    """Direction, layer and head of the largest weight."""
    weights = found.together_weight.sel(relation=relation).values
    return np.unravel_index(np.nanargmax(weights), weights.shape)


@pytest.mark.parametrize(
    "name",
    [
        "copying-encoder-1",
        "lookup-encoder-1",
        "lookup-decoder-2",
        "gate-encoder-1",
        "rare-decoder-1",
        "copying-decoder-1",
    ],
)
def test_the_planted_head_has_the_largest_weight(name):
    """Of each head whose key no other head attends to, as its own score shows."""
    planted = build(name)
    found = relations(
        planted.model, planted_texts(planted), tokenizer=planted.tokenizer, together=True, untrained=False
    )
    alone = 0
    for relation in found.relation.values:
        of_relation = found.sel(relation=relation)
        assert float(of_relation.together.sel(by="together")) > 0.99
        if int((of_relation.score > 0.5).sum()) > 1:  # a decoy, or a fixed offset that another head has too
            continue
        alone += 1
        direction, layer, head = largest(found, relation)
        assert (direction, f"{layer}.{head}") == (0, relation)
    assert alone


def test_the_head_of_a_pronoun_has_the_largest_weight():
    found = relations("bundled:pronoun", pronouns(120), together=True)
    assert largest(found, "it") == (0, 1, 0)
    assert bool(found.together_shown[0])
    assert not bool(found.together_gains[0])  # that head alone is always right
    assert float(found.together.sel(by="untrained")[0]) < 0.5


def random_links(generator, texts=40, words=14):
    """Texts of random letters with links between random places, each text a document."""
    linked = []
    for number in range(texts):
        letters = [chr(97 + int(letter)) for letter in generator.integers(26, size=words)]
        pairs = []
        for name in ("a", "b"):
            first, second = (
                2 * int(place) for place in sorted(generator.choice(np.arange(1, words), 2, replace=False))
            )
            pairs.append({"name": name, "from": [second, second + 1], "to": [first, first + 1]})
        linked.append({"text": " ".join(letters), "pairs": pairs, "document": str(number)})
    return linked


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "modernbert"])
def test_random_models_link_nothing_together(family):
    model, tokenizer = tiny_reader(family)
    texts = random_links(np.random.default_rng(len(family)))
    found = relations(model, texts, tokenizer=tokenizer, together=True, untrained=False)
    assert not bool(found.together_shown.any() | found.together_gains.any())
    assert bool(np.isfinite(found.together_p).all())


# --- trees ---


def trees_of(nodes, root):
    """All trees of a few nodes."""
    choices = [[-1] if node == root else [head for head in range(nodes) if head != node] for node in range(nodes)]
    return [heads for heads in itertools.product(*choices) if is_tree(heads)]


def best_tree(scores, root):
    """The tree with the largest sum of scores, by trying all."""

    def total(heads):
        return sum(scores[word, head] for word, head in enumerate(heads) if head >= 0)

    return list(max(trees_of(len(scores), root), key=total))


def test_a_tree_has_the_largest_sum_of_scores():
    generator = np.random.default_rng(0)
    cycles = 0
    for _ in range(100):
        scores, root = generator.normal(size=(5, 5)) - 3, int(generator.integers(5))
        assert arborescence(scores, root) == best_tree(scores, root)
        largest_of_each = [int(row.argmax()) for row in scores - 100 * np.eye(5)]
        largest_of_each[root] = -1
        cycles += not is_tree(largest_of_each)
    assert cycles > 10  # else this shows nothing


def test_what_is_a_tree():
    assert is_tree([1, -1, None, 1])
    assert not is_tree([1, 0, -1])  # a cycle
    assert not is_tree([-1, -1])  # two roots
    assert not is_tree([1, None, -1])  # a word at one outside
    assert not is_tree([])


NAMES, ADJECTIVES, NOUNS = ("Ann", "Bo", "Cy", "Di"), ("old", "red", "tall"), ("boat", "lamp", "tree", "house")


def bank(count, seed=0):
    """A treebank: names see nouns with adjectives, in two orders; two sentences a document."""
    random, lines = np.random.default_rng(seed), []
    for number in range(count):
        name, adjective, noun = random.choice(NAMES), random.choice(ADJECTIVES), random.choice(NOUNS)
        words = [(name, 1, "nsubj"), ("sees", -1, "root"), (adjective, 3, "amod"), (noun, 1, "obj")]
        if random.random() < 0.5:
            words = [(adjective, 1, "amod"), (noun, 3, "obj"), (name, 3, "nsubj"), ("sees", -1, "root")]
        lines += [f"# newdoc id = {number}"] if number % 2 == 0 else []
        for at, (word, head, relation) in enumerate([*words, (".", 1, "punct")], start=1):
            lines.append(f"{at}\t{word}\t_\tX\t_\t_\t{head + 1}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines) + "\n"


def test_trees_are_those_of_a_short_reference(tmp_path):
    file = tmp_path / "bank.conllu"
    file.write_text(bank(40), encoding="utf-8")
    found = relations(None, file, together=True, untrained=False)
    rows, labels, roots = [], [], []
    for text in linked_texts(file):
        merged, _ = word_weights(text.text)
        heads = np.array(text.heads[:4])
        roots.append(int(np.flatnonzero(heads < 0)[0]))
        for word in range(4):
            others = [other for other in range(4) if other != word]
            rows.append(features(merged, word)[others])
            labels.append(np.array(others) == heads[word])
    fold = (np.random.default_rng(0).permutation(20) % FOLDS).repeat(2)
    right = []
    for sentence, root in enumerate(roots):
        train = [
            4 * at + word for at in np.flatnonzero(fold != fold[sentence]) for word in range(4) if word != roots[at]
        ]
        fitted = regression([rows[at] for at in train], [labels[at] for at in train])
        scores = np.zeros((4, 4))
        for word in range(4):
            scores[word, np.arange(4) != word] = fitted.decision_function(rows[4 * sentence + word])
        tree = best_tree(scores, root)
        gold = np.array(linked_texts(file)[sentence].heads[:4])
        right += [tree[word] == gold[word] for word in range(4) if word != root]
    assert float(found.uas.sel(parser="together")) == pytest.approx(np.mean(right))
    assert int(found.uas_words) == 120
    assert float(found.uas.sel(parser="word after")) == pytest.approx(2 / 3, abs=0.34)


def test_a_reader_has_the_heads_of_words(tmp_path):
    file = tmp_path / "bank.conllu"
    file.write_text(CONLLU, encoding="utf-8")
    first, second = linked_texts(file)
    assert first.heads == (1, 2, -1, 4, 2, None)
    # don't is one word: its head is the first outside of it
    assert second.heads == (2, 2, -1, 4, 2, None)


def test_a_causal_model_has_trees(tmp_path):
    file = tmp_path / "bank.conllu"
    file.write_text(bank(24), encoding="utf-8")
    model, tokenizer = tiny_reader("gpt2")
    found = relations(model, file, tokenizer=tokenizer, together=True, untrained=False)
    assert bool(found.uas.drop_sel(parser="untrained").notnull().all())
    assert bool(found.uas_weight.sel(direction="back").notnull().all())  # a head after its dependent attends back


# --- limits, and the report ---


def test_few_documents_are_not_put_together():
    found = relations(None, sentences(4), together=True, untrained=False)
    assert bool(found.together.isnull().all())
    report = report_of("relations", found)
    assert report.finding.sentences[0] == "4 texts: nothing can be tested."
    assert report.finding.sentences[-1].startswith("Heads are not put together: --together needs 6 or more documents")


def test_a_large_corpus_is_put_together_in_part(monkeypatch):
    monkeypatch.setattr(together, "_ROOM", 1 << 18)
    found = relations(None, sentences(60), together=True, untrained=False)
    report = report_of("relations", found)
    note = next(note for note in report.notes if note.startswith("Heads are put together"))
    used = int(note.split()[5])
    assert 0 < used < 60
    assert bool(found.together.sel(by="together").notnull().all())


def test_long_texts_give_a_sample_of_the_other_words(monkeypatch):
    whole = relations(None, sentences(30), together=True, untrained=False)
    monkeypatch.setattr(together, "_OTHERS", 2)
    few = relations(None, sentences(30), together=True, untrained=False)
    again = relations(None, sentences(30), together=True, untrained=False)
    assert float(abs(few.together_weight - again.together_weight).max()) == 0
    assert float(abs(few.together_weight - whole.together_weight).max()) > 0


def test_the_report_has_tables_of_all_heads(tmp_path):
    file = tmp_path / "bank.conllu"
    file.write_text(bank(40), encoding="utf-8")
    torch.manual_seed(0)
    report = report_of("relations", relations(None, file, together=True))
    tables = {table.name: table for table in report.tables}
    assert {"together", "trees", "weights"} <= {*tables}
    trees = {row["parser"].partition(" (")[0]: row["uas"] for row in tables["trees"].rows}
    assert trees["each word at the one after"] == pytest.approx(2 / 3)
    assert {row["relation"] for row in tables["weights"].rows} >= {"nsubj", "any (tree)"}
    assert "scikit-learn" in report.method
