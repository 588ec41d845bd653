"""The page of a walk: every step, its numbers as the terminal has them, one step a screen in a browser."""

import html
import re

import pytest

import attnscope
from attnscope.bundled import MODEL
from attnscope_lineage import walk
from attnscope_lineage.head_walk import walk_toy
from attnscope_lineage.page.walk import write
from attnscope_lineage.steps import steps


def test_a_walk_is_short_where_it_is_shown_and_whole_where_it_is_printed():
    followed = walk_toy()
    assert repr(followed) == "<Walk of SelfAttention(8), 4 tokens: print() it for every step>"
    assert all(step.title in str(followed) for step in steps(followed))
    assert "凸結合" not in str(followed)
    attnscope.set_language("ja")
    try:
        assert "凸結合" in str(followed)
    finally:
        attnscope.set_language("en")


@pytest.fixture
def language(request):
    attnscope.set_language(request.param)
    yield request.param
    attnscope.set_language("en")


@pytest.mark.parametrize("language", ["en", "ja"], indirect=True)
def test_a_page_has_every_step_with_tokens_as_they_are(language, tmp_path):
    """A token that is a word of the catalogue, such as "re" or "red", is not translated."""
    walked = walk(MODEL, "The animal was too tired to cross the street.", device="cpu")
    text = write(walked, tmp_path / "walk.html").read_text(encoding="utf-8")
    expected = steps(walked, language, columns=40, rows=40)
    assert len(re.findall(r'<section class="card step"', text)) == len(expected)
    assert f'<html lang="{language}">' in text
    assert "https:" not in text
    weights = next(table for step in expected for table in step.tables if table.caption.startswith("A:"))
    rows = re.search(r"<figcaption>A: .*?<tbody>(.*?)</tbody>", text, re.DOTALL)[1]
    names = re.findall(r'<th scope="row" translate="no">([^<]*)</th>', rows)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", rows)
    assert [html.unescape(name) for name in names] == [row[0] for row in weights.rows]
    assert cells == [cell for row in weights.rows for cell in row[1:]]


def test_a_notebook_shows_the_page_in_a_frame():
    assert walk_toy()._repr_html_().startswith("<iframe srcdoc=")
