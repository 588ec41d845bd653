"""The page and the figures of relations: what is drawn is what was measured, and texts are escaped."""

import json
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch

import attnscope
from attnscope.results.figures.style import svg_of
from attnscope.results.reports import figures_of, grid_of, report_of, write_page
from attnscope.results.scan_report import sample_of
from attnscope_relations import relations
from attnscope_relations.figures import arcs
from attnscope_relations.figures.arcs import Arc, Sentence, fitting, levels, sentence_arcs, side_by_side
from attnscope_relations.figures.contacts import contact_map
from attnscope_relations.figures.relations import file_names, passing, sentences
from attnscope_relations.figures.timeline import timeline
from attnscope_relations.shown import texts_of
from tests.packages.relations.test_relations import ANIMAL, pronouns, word_weights
from tests.packages.relations.test_relations import sentences as linked_sentences
from tests.tiny_models import tiny_reader

EVIL = "</script><img src=x onerror=alert(1)>"


def test_choices_are_those_of_eager_weights_written_out():
    texts = linked_sentences(8)
    found = relations(None, texts, untrained=False)
    sample = sample_of(found)
    drawn = [*texts_of(sample)]
    assert drawn
    written = {" ".join(word for word in text["text"].replace(".", " .").split()): text for text in texts}
    compared = 0
    for text in drawn:
        origin = written[" ".join(text.words)]
        merged, words = word_weights(origin["text"])
        pairs = {(words.index(pair["from"]), words.index(pair["to"])) for pair in origin["pairs"]}
        assert {(link.query[0], link.keys[0]) for link in text.links} == pairs
        for link in text.links:
            rows = merged[:, :, link.query[0]].copy()
            rows[..., link.query[0]] = -1
            np.testing.assert_array_equal(sample.choice[link.number], rows.argmax(-1))
            np.testing.assert_allclose(sample.weight[link.number], rows.max(-1), atol=1e-6)
            compared += 1
    assert compared >= 9


def test_arcs_of_a_figure_are_the_stored_choices():
    found = relations("bundled:pronoun", pronouns(60), untrained=False)
    sample = sample_of(found)
    text = next(texts_of(sample))
    link = text.links[0]
    chosen = sample.isel(link=link.number).sel(layer=1, head=0)
    svg = svg_of(sentences(found, "it")).decode()
    mark = "✓" if int(chosen.choice) in link.keys else "✗"
    assert f"{mark} {float(chosen.weight):.2f}" in svg
    assert "Head 1.0: it" in svg


def test_one_text_and_two_words_show_every_head_that_is_right():
    found = relations("bundled:pronoun", ANIMAL, query="it", key="animal", untrained=False)
    sample = sample_of(found)
    (text,) = texts_of(sample)
    assert text.words[text.links[0].query[0]] == "it"
    assert [text.words[key] for key in text.links[0].keys] == ["animal"]
    heads = passing(sample, 0, text.links[0].keys)
    assert heads[0] == (1, 0)
    assert len(heads) == int((found.score == 1).sum())
    svg = svg_of(sentences(found, "it → animal")).decode()
    for layer, head in heads:
        assert f"head {layer}.{head}: {float(sample.weight.sel(layer=layer, head=head)[0]):.2f}" in svg


def test_a_stored_run_draws_the_same_page_and_figures(tmp_path):
    texts = pronouns(60)
    stored = relations("bundled:pronoun", texts, untrained=False, out=tmp_path / "run")
    opened = attnscope.open_run(tmp_path / "run")
    for result in (stored, opened):
        report = report_of("relations", result)
        assert {"map", "scores", "sentences-it"} == {*figures_of(report)}
        assert grid_of(report) is not None
        page = write_page(report, tmp_path / "page.html").read_text(encoding="utf-8")
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
        assert data["labels"]["names"][0] == "it"
        assert data["tabs"][0] == "links"
        shown, sample = data["shown"], sample_of(result)
        np.testing.assert_array_equal(np.array(shown["choice"]).reshape(sample.choice.shape), sample.choice)
        np.testing.assert_allclose(np.array(shown["weight"]).ravel(), 100 * sample.weight.values.ravel(), atol=0.51)


def test_texts_are_escaped_on_the_page_and_in_figures(tmp_path):
    text = f"The cat {EVIL} sees a dog."
    pair = {"name": f"{EVIL} $x_1$", "from": [4, 7], "to": [text.index("sees"), text.index("sees") + 4]}
    found = relations(None, [{"text": text, "pairs": [pair], "document": EVIL}] * 2, untrained=False)
    report = report_of("relations", found)
    page = write_page(report, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert "</script><" not in page
    for figure in figures_of(report).values():
        svg = svg_of(figure).decode()
        assert "<img" not in svg
        assert "<script" not in svg


def test_contacts_above_the_diagonal_and_pairs_that_a_head_ranks_highest_below():
    contacts = np.full((12, 12), np.nan)
    features = np.random.default_rng(0).normal(size=(12, 12))
    features += features.T
    first, second = np.triu_indices(12, 6)
    contacts[first, second] = contacts[second, first] = 0
    contacts[0, 11] = contacts[11, 0] = contacts[1, 9] = contacts[9, 1] = 1
    features[11, 0] = features[0, 11] = 99
    axes = contact_map("Head 0.0", contacts, features).axes[0]
    gold, right, wrong = (line.get_xydata() for line in axes.lines[:3])
    assert {tuple(at) for at in gold.tolist()} == {(12, 1), (10, 2)}
    assert (right[:, 0] < right[:, 1]).all()
    assert [1, 12] in right.tolist()
    assert len(right) + len(wrong) == 12
    order = sorted(zip(second, first, strict=True), key=lambda pair: -features[pair])[:12]
    assert {tuple(at) for at in np.concatenate([right, wrong]).astype(int).tolist()} == {
        (b + 1, a + 1) for a, b in order
    }


def test_a_protein_is_drawn_as_a_map(tmp_path):
    model, tokenizer = tiny_reader("bert")
    letters = "abcdefgh"
    protein = {"sequence": letters, "contacts": [[1, 8], [2, 8]]}
    found = relations(
        model, [protein | {"id": f"p{number}"} for number in range(2)], tokenizer=tokenizer, untrained=False
    )
    if not any(text.map is not None for text in texts_of(sample_of(found))):
        pytest.skip("the tokenizer does not read residues")
    report = report_of("relations", found)
    assert "contacts-1" in figures_of(report)
    assert "contacts-maps" in write_page(report, tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_timeline_tells_right_and_wrong_starts_apart():
    words = [("one", 0.0, 0.4), ("two", 0.5, 0.9), ("three", 7.0, 7.4)]
    figure = timeline(words, {"1.0": [0.02, 0.8, np.nan]})
    drawn = [line for axes in figure.axes for line in axes.lines]
    right = np.concatenate([line.get_xdata() for line in drawn if line.get_marker() == "o"])
    wrong = np.concatenate([line.get_xdata() for line in drawn if line.get_marker() == "x"])
    assert 0.02 in right
    assert 0.8 in wrong
    assert "three" in svg_of(figure).decode()


def test_a_row_of_a_timeline_ends_where_a_word_begins():
    words = [(str(number), number * 0.7, number * 0.7 + 0.7) for number in range(13)]
    figure = timeline(words, {"1.0": [first for _, first, _ in words]})
    assert len(figure.axes) > 1
    for axes in figure.axes:
        low, high = axes.get_xlim()
        for bar in axes.collections:
            for path in bar.get_paths():
                if np.ptp(path.vertices[:, 1]) < 0.8 and np.ptp(path.vertices[:, 0]) > 0:  # the box of a word
                    assert low <= path.vertices[:, 0].min()
                    assert path.vertices[:, 0].max() <= high


def test_figures_of_sentences_are_named_by_their_relations():
    names = ["nsubj", "nsubj (reversed)", "it → animal", "it - animal", "?"]
    assert file_names(names) == ["nsubj", "nsubj-reversed", "it-animal", "it-animal-2", "relation"]


def test_arcs_over_the_same_words_are_apart():
    above = [Arc([0], [1]), Arc([0], [3]), Arc([2], [3]), Arc([0], [2, 3]), Arc([4], [5])]
    assert levels(above) == [1, 2, 1, 3, 1]
    figure = sentence_arcs(
        "title", [Sentence("abcdef", above, [Arc([0], [1], is_right=False, weight=0.5, label="✗ 0.50")])]
    )
    assert "✗ 0.50" in svg_of(figure).decode()


@pytest.mark.parametrize(("is_faint", "colour"), [(False, arcs.RIGHT), (True, arcs.WRONG)])
def test_an_arc_near_uniform_attention_is_grey_and_the_legend_says_so(is_faint, colour):
    arc = Arc([0], [1], is_right=True, weight=0.1, label="0.10", is_faint=is_faint)
    figure = sentence_arcs("title", [Sentence("abc", [], [arc])])
    drawn = [patch for patch in figure.axes[0].patches if isinstance(patch, PathPatch)]
    assert {to_hex(patch.get_edgecolor()) for patch in drawn} == {to_hex(colour)}
    assert ("at most twice uniform attention" in svg_of(figure).decode()) == is_faint


def test_adjacent_words_are_one_end_of_an_arc():
    assert side_by_side([1, 2, 4, 6, 7, 8]) == [[1, 2], [4], [6, 7, 8]]


def test_words_without_arcs_are_left_out_first():
    assert fitting([10] * 5, [1], 100) == [0, 1, 2, 3, 4]
    line = fitting([10] * 9, [1, 7], 80)
    assert {1, 7} <= {*line}
    assert None in line
    assert [word for word in line if word is not None] == sorted(word for word in line if word is not None)
