"""What page and terminal say of the table of heads: nothing of columns that a model does not have."""

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import attnscope
from attnscope.explanation.ranking import READINGS, HeadExplanation, rank_explanations
from attnscope.explanation.report import _about_zero, report
from attnscope.results.figures.explain import explain_figures
from attnscope.results.figures.positions import scheme_kernel
from attnscope.results.page.explain import write_explain_report
from attnscope.results.render import print_report
from attnscope.store.runs import skipped_of
from tests.families import tiny
from tests.sketched import sketched
from tests.translation.small_translators import small_tokenizer

TEXTS = ["a hat and a bat are on the mat but the cat sat on the hat of a man who ran after the bat in the end. " * 3]
OF_READINGS = ("within half a token", "estimates of another head", "a frame that both readings")


def explained(model, band=5):
    return attnscope.explain(model, TEXTS, tokenizer=small_tokenizer(), window=24, band=band, limit=4)


def leaning(family):
    """A random model whose heads prefer an offset: its queries and keys, or its bias, are made large."""
    model = tiny(family)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "relative_attention_bias" in name:
                weights.mul_(40)
            elif family == "llama" and any(part in name for part in ("q_proj", "k_proj")):
                weights.normal_(std=0.02)
                weights[:, 0] = 3.0
            elif family == "llama" and "embed_tokens" in name:
                weights[:, 0] = 1.0
    return model


@pytest.fixture(scope="module")
def trees():
    own = {family: explained(leaning(family)) for family in ("llama", "t5")}
    return own | {"random llama": explained(tiny("llama")), "bundled": attnscope.explain(limit=2)}


@pytest.fixture(scope="module")
def pages(trees, tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    with sketched():  # what lies around figures is read here
        files = {family: write_explain_report(tree, place / f"{family}.html") for family, tree in trees.items()}
    return {family: words_of(file.read_text(encoding="utf-8")) for family, file in files.items()}


def words_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>|&#39;", " ", page))


def printed(tree, width=80):
    out = io.StringIO()
    print_report(report(tree), Console(file=out, width=width))
    return out.getvalue()


def both(trees, pages, family):
    return pages[family], words_of(printed(trees[family]))


def test_a_rotary_model_has_no_readings_and_chance_is_that_of_random_phases(trees, pages):
    for said in both(trees, pages, "llama"):
        assert not [words for words in OF_READINGS if words in said]
        assert "how often it would be if the rotation had random phases" in said.replace("How often", "how often")
        assert "takes heads as independent" not in said or "So many come by chance" in said


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(("offset", "told"), [(0.4, True), (-0.02, True), (-1.0, False), (None, False)])
def test_a_reading_of_about_0_may_be_a_token_that_meets_itself(reading, offset, told):
    row = HeadExplanation(0, None, 0, prefers=True, positional=True, agree=None)
    assert ("meet themselves" in _about_zero([row, replace(row, **{reading: offset})])) == told


def test_where_no_head_prefers_an_offset_no_change_of_its_weight_is_told():
    settings = {"tokenizer": small_tokenizer(), "window": 24, "band": 5, "limit": 4, "interventions": True}
    tree = attnscope.explain(tiny("gpt2"), TEXTS, **settings)
    (changes,) = (table for table in report(tree).tables if table.name == "interventions")
    assert changes.rows == []
    figure = dict(explain_figures(tree))["interventions"]
    assert not [text.get_text() for axes in figure.axes for text in axes.texts]
    shifted = "positions-shifted" in tree["interventions"].change.values
    assert shifted != ("positions-shifted" in skipped_of(tree))


def test_a_model_with_a_table_of_positions_has_readings_and_no_scheme(trees, pages):
    for said in both(trees, pages, "bundled"):
        assert "oth estimates are within half a token of the offset of the weights" in said
        assert "random phases" not in said
        assert "random order" not in said


def test_of_a_random_model_no_head_is_foretold_and_nothing_is_explained(trees, pages):
    rows = rank_explanations(trees["random llama"])
    assert not any(row.prefers for row in rows)
    assert {(row.kernel_agrees, row.kernel_share, row.position_share) for row in rows} == {(None, None, None)}
    assert {row.offset_of_kernel for row in rows} == {None}  # every curve has a largest value
    kernel = trees["random llama"]["scheme_kernel"].to_dataset()
    titles = [axes.get_title(loc="left") for axes in scheme_kernel(kernel, [(0, 0), (1, 0)]).axes]
    assert {title.split("\n")[1] for title in titles if title} == {"weights none, scheme none"}
    assert "Offsets and what position explains" not in pages["random llama"]
    assert "parts of profiles that are flat" in pages["random llama"]
    assert "parts of profiles that are flat" not in pages["llama"]
    for said in both(trees, pages, "random llama"):
        assert "alone foretells" not in said
        assert "foretold by chance" not in said.lower()
