"""`view`: its maps against all weights, what it rejects, and its page in a browser."""

import json
import re

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.kernels.call import AttentionCall
from attnscope.results.page.parts import encode
from attnscope.results.view import Maps, largest_in_tiles, small_maps, thumb

TEXT = "The keeper lit the lamp before the tide came in, and the lamp burned until the morning."


@pytest.fixture(scope="module")
def view():
    return attnscope.view("bundled", TEXT, layer=2, head=1)


def decoded(codes):
    return np.where(codes, 2.0 ** ((codes.astype(float) - 255) * 16 / 254), 0)


def test_weights_are_those_of_attnscope_weights(view):
    expected = attnscope.weights("bundled", TEXT, layer=2, head=1)
    np.testing.assert_allclose(view.weights.values, expected.values, atol=1e-6)
    assert view.weights.key_token.values.tolist() == expected.key_token.values.tolist()


def test_a_byte_holds_a_weight_to_two_percent():
    weights = np.array([[0.0, 1e-6, 2.0**-15.9, 0.001, 0.3, 0.5, 1.0]])
    found = decoded(encode(weights))[0]
    assert found[:2].tolist() == [0, 0]
    np.testing.assert_allclose(found[2:], weights[0, 2:], rtol=0.023)


def test_a_large_map_is_sent_in_tiles_that_show_the_largest_weight(view):
    sent = view.maps.codes(2, 1, cells=100)
    assert sent["codes"].size <= 100
    weights = view.weights.values
    tile = sent["tile"]
    assert sent["codes"][1, 2] == encode(weights[tile : 2 * tile, 2 * tile : 3 * tile].max(keepdims=True))[0, 0]
    assert largest_in_tiles(np.eye(7), 3).tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(("query", "token"), [("lamp", "lamp"), ("5", None), ("tide came", "tide")])
def test_it_opens_with_a_chosen_token(query, token):
    view = attnscope.view("bundled", TEXT, query=query)
    whole = view.maps.texts["text"]
    assert view.token == 5 if token is None else token.startswith(whole[view.token].strip())


def test_a_pair_knows_which_tokens_are_of_which_sentence():
    maps = attnscope.view("bundled", pair=("The tide is out.", "The boats lie on the sand.")).maps
    second = "".join(token for token, part in zip(maps.texts["text"], maps.segments, strict=True) if part)
    assert second.removesuffix("</s>").strip() == "The boats lie on the sand."


def test_weights_of_ones_own_have_their_own_tokens():
    given = tuple(torch.softmax(torch.randn(1, 2, 3, 4), -1) for _ in range(2))
    shown = attnscope.view(given, tokens=["a", "b", "c", "d"], query_tokens=["x", "y", "z"], layer=1, head=1)
    np.testing.assert_allclose(shown.weights.values, given[1][0, 1], atol=1e-6)
    assert shown.weights.query_token.values.tolist() == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("bundled", {"texts": TEXT, "layer": 7}, "there is no layer 7 (layer, head): layers go from 0 to 2"),
        ("bundled", {"texts": TEXT, "head": 9}, "there is no head 9 (layer, head): layers go from 0 to 2"),
        ("bundled", {"texts": TEXT, "query": "lam"}, "expected a word of the text, or 0 to"),
        ("bundled", {"texts": TEXT, "query": "999"}, "expected a word of the text, or 0 to"),
        ("bundled", {"texts": TEXT, "pair": ("a", "b")}, "found a text and a pair"),
        ([np.ones((2, 2))], {}, "expected (head, query, key)"),
        ([np.ones((1, 2, 2))], {"tokens": ["a"]}, "found 1 query tokens"),
    ],
)
def test_bad_input_is_rejected(source, options, words):
    with pytest.raises(AttnscopeError, match=re.escape(words)):
        attnscope.view(source, **options)


def test_the_page_holds_no_markup_of_the_text(tmp_path):
    page = attnscope.view("bundled", "</script><script>alert(1)</script> & <b>so</b> on").save(tmp_path / "view.html")
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == 3  # its data, its words and its program
    held = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert "".join(held["meta"]["texts"]["text"]["tokens"]).startswith("<s> </script><script>alert(1)")


@pytest.mark.parametrize(("scheme", "dark"), [("dark", True), ("light", False)])
def test_the_map_has_the_colour_of_its_page(view, visit, tmp_path, scheme, dark):
    canvas = visit(view.save(tmp_path / "view.html"), scheme=scheme).locator(".map canvas[aria-label]")
    corner = canvas.evaluate("c => Math.max(...c.getContext('2d').getImageData(2, 2, 1, 1).data.slice(0, 3))")
    assert (corner < 128) == dark


def test_a_token_of_the_page_shows_where_it_attends(view, visit, tmp_path):
    page = visit(view.save(tmp_path / "view.html"))
    page.get_by_label("Layer 0, head 1", exact=True).click()
    page.locator(".queries .token").nth(5).click()
    weights = view.maps.weights(0, 1)[5]
    tokens = view.maps.texts["text"]
    best = int(weights.argmax())
    near = "|".join(str(round(100 * weights[best] * step)) for step in (0.98, 0.99, 1, 1.01, 1.02))  # 8 bits a weight
    page.locator(
        ".note", has_text=re.compile(rf"attends most to “{re.escape(tokens[best].replace(' ', '␣'))}” \(>?({near})%\)")
    ).wait_for()
    shade = page.locator(".queries .token").nth(best).evaluate("token => token.style.getPropertyValue('--w')")
    assert float(shade) == pytest.approx(weights[best] ** 0.5, rel=0.02)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".queries .token.current[data-token='6']").wait_for()
    assert page.evaluate("document.activeElement.dataset.token") == "6"


def test_a_figure_has_the_width_and_the_letters_of_a_paper(view, tmp_path):
    figure = attnscope.figures.attention(view.weights, tmp_path / "head.pdf", width=6.75)
    assert figure.get_size_inches()[0] == 6.75
    assert (tmp_path / "head.pdf").is_file()
    axes = figure.axes[0]
    assert {label.get_fontsize() for label in axes.get_xticklabels()} == {7}
    np.testing.assert_allclose(axes.images[0].get_array(), view.weights.values)


@pytest.mark.parametrize(("count", "named"), [(39, True), (64, False)])
def test_a_notebooks_picture_names_the_tokens_that_fit(count, named):
    weights = torch.softmax(torch.randn(1, count, count), -1)
    axes = attnscope.view([weights], tokens=[f"token{i}" for i in range(count)]).figure().axes[0]
    assert (axes.get_yticklabels()[1].get_text() == axes.get_xticklabels()[1].get_text() == "token1") is named


def test_small_maps_of_long_texts_show_the_lines_of_the_whole_map():
    """From some queries of each tile: no more than from all of them, and a head that attends 200 tokens back."""
    torch.manual_seed(0)
    key = torch.randn(1, 1, 700, 64)
    call = AttentionCall(4 * key.roll(200, 2), key, key, scale=1.0, causal=True)
    maps = Maps({0: call}, {0: "causal"}, {"text": ["x"] * 700})
    whole = largest_in_tiles(maps.weights(0, 0), 59)
    np.testing.assert_array_equal(maps.tiles(0, 0, 59), whole)
    small, whole = small_maps(call, 12)[0], encode(thumb(whole, 12))
    assert small.shape == whole.shape == (12, 12)
    assert (small <= whole).all()
    assert not small[np.triu_indices(12, 1)].any()
    line = whole[4:] > 250
    assert line.sum() > 12
    assert (small[4:] > 250)[line].mean() > 0.9


def test_a_text_of_special_tokens_and_weights_of_zero_open_too(visit, tmp_path):
    zero = torch.zeros(1, 1, 2, 2)
    page = visit(attnscope.view([zero], ["<s>", "</s>"]).save(tmp_path / "view.html"))
    page.locator(".finding", has_text="0%").wait_for()
    assert page.locator(".token.current").count() == 1
