"""The pages, on desktop and phone, light and dark: what a screen reader, a keyboard and weak eyes need."""

import json
from functools import cache

import numpy as np
import pytest

import attnscope
import attnscope_cards
from attnscope.measure.stored import SAMPLE
from attnscope.results.reports import report_of, write_page
from attnscope.store.runs import RunFolder
from attnscope_relations import relations
from tests.measure.generation.causal_models import writer
from tests.packages.lineage.pages.planted_comparison import planted as planted_comparison
from tests.packages.lineage.pages.test_lineage_pages import made as planted_alignment
from tests.packages.relations.test_relations import pronouns
from tests.results.page.planted_explanation import explain_page_of
from tests.results.page.planted_intervention import planted_intervention
from tests.results.page.planted_patching import planted_patching
from tests.results.page.planted_result import planted, scan_page, with_bins, with_blocks, with_groups
from tests.undrawn_figures import sketched

# rules of axe-core that these pages broke, checked without it
EMPTY_HEADERS = """[...document.querySelectorAll('th, [role=columnheader], [role=rowheader]')]
    .filter((one) => !one.textContent.trim()).map((one) => one.outerHTML)"""
NAMES_OF_LANDMARKS = """[...document.querySelectorAll('section[aria-labelledby], nav, [role=region]')]
    .map((one) => one.getAttribute('aria-label')
        ?? document.getElementById(one.getAttribute('aria-labelledby')).textContent)"""
UNREACHABLE = """[...document.querySelectorAll('*')].filter((one) => {
    const style = getComputedStyle(one);
    return /auto|scroll/.test(style.overflowX + style.overflowY) && one.scrollWidth > one.clientWidth + 1
        && one.tabIndex < 0 && !one.querySelector('a, button, input, select, [tabindex="0"]')
        && one.clientWidth }).map((one) => one.outerHTML.slice(0, 80))"""
# text and what lies behind it, of everything that holds text and is seen
COLOURS = """[...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()
    && !one.closest('svg, script, style')
    && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((one) => {
        let behind = one;
        const solid = (node) => !/transparent|rgba\\(.*, 0\\)|\\/ 0\\)/.test(getComputedStyle(node).backgroundColor);
        while (behind.parentElement && !solid(behind)) behind = behind.parentElement;
        return [getComputedStyle(one).color, getComputedStyle(behind).backgroundColor, one.textContent.trim()] })"""


def in_blocks(sample):
    """A sample with the map of its first window in blocks of 8 tokens, as of a long one."""
    count = -(-int(sample.tokens[0]) // 8)
    equal = np.full((sample.sizes["layer"], sample.sizes["head"], count, count), 8 / count)
    dims = ("layer", "head", "block_query", "block_key")
    return (
        sample.assign(block_sum=(dims, equal), block_max=(dims, equal / 64))
        .assign_coords(block_text=("block", ["some words"] * count))
        .assign_attrs(block=8)
    )


def scanned_with_received(place):
    """A scan whose page draws what keys receive and shows what equal weights give."""
    text = "The tide comes in twice a day, and twice a day it goes out again. " * 4
    result = attnscope.scan(texts=text, statistics="recent_top_key,entropy,profile", out=place, show=[(0, 3)])
    with RunFolder(place, json.loads(result.attrs["signature"])) as run:
        return result, run.load(SAMPLE)


@pytest.fixture(scope="module")
def pages(explained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    model, tokenizer = writer()
    generated = attnscope.generate(model, ["A boat is out."], tokenizer=tokenizer, new_tokens=2)
    made = planted(layers=2, heads=3, texts=4, tokens=40, rank=12)
    with sketched():  # what lies around figures is looked at here
        return {
            "generate": write_page(report_of("generate", generated), folder / "generate.html"),
            "scan": scan_page(
                with_bins(with_blocks(with_groups(made.result))), in_blocks(made.sample), folder / "scan.html"
            ),
            "explain": explain_page_of(explained, folder / "explain.html"),
            "intervene": write_page(report_of("intervene", planted_intervention()), folder / "intervene.html"),
            "patch": write_page(report_of("patch", planted_patching()), folder / "patch.html"),
            "compare": write_page(report_of("compare", planted_comparison()), folder / "compare.html"),
            "align": write_page(report_of("align", planted_alignment()), folder / "align.html"),
            "relations": write_page(
                report_of("relations", relations("bundled:pronoun", pronouns(60), untrained=False)),
                folder / "relations.html",
            ),
            "roles": write_page(report_of("roles", attnscope.roles(limit=2)), folder / "roles.html"),
            "card": write_page(
                report_of("card", attnscope_cards.card(limit=2, window=32, controls="shuffled")), folder / "card.html"
            ),
            "received": scan_page(*scanned_with_received(folder / "run"), folder / "received.html"),
        }


@cache
def luminance(colour):
    channels = (
        np.array([float(part) for part in colour[colour.index("(") + 1 : -1].replace(",", " ").split()[:3]]) / 255
    )
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    "name", ["scan", "received", "roles", "card", "relations", "generate", "explain", "patch", "compare", "align"]
)
def test_headers_landmarks_scrolling_and_contrast(visit, pages, name):
    page = visit(pages[name])
    assert page.evaluate(EMPTY_HEADERS) == []
    landmarks = page.evaluate(NAMES_OF_LANDMARKS)
    assert len(set(landmarks)) == len(landmarks)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(UNREACHABLE) == []
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen[scheme] = page.evaluate(COLOURS)
        assert [(text, *two) for *two, text in seen[scheme] if contrast(*two) < 4.5] == []
    assert seen["light"] != seen["dark"]


@pytest.mark.parametrize("name", ["explain", "align"])
def test_figures_are_no_white_slabs_in_the_dark_and_show_that_they_scroll(visit, pages, name):
    page = visit(pages[name], scheme="dark")
    plate = page.locator(".plate").first
    assert luminance(plate.evaluate("one => getComputedStyle(one).backgroundColor")) < 0.05
    assert "invert" in plate.locator("img").evaluate("one => getComputedStyle(one).filter")
    shadows = plate.evaluate("one => getComputedStyle(one).backgroundImage")  # seen through the figure
    assert shadows.count("linear-gradient") == 4
    assert plate.locator("img").evaluate("one => getComputedStyle(one).mixBlendMode") == "screen"


def test_a_card_opens_on_the_scores_of_the_chosen_head(visit, pages):
    page = visit(pages["card"])
    numbers = json.loads(page.text_content("#data"))
    page.click('[data-head="3"]')
    drawn = page.eval_on_selector_all("#own svg >> nth=0 >> text", "all => all.map(one => one.textContent)")
    scores = {one["key"]: one["text"][3] for one in numbers["quantities"]}
    assert len(numbers["own"]["roles"]) >= 8
    said = [text.split("; ") for text in drawn[1::2]]
    assert [score for score, *_ in said] == [scores[f"scores.{role['role']}.score"] for role in numbers["own"]["roles"]]
    for (_, *more), role in zip(said, numbers["own"]["roles"], strict=True):
        assert ("no threshold published" in more) is (role["threshold"] is None)
    assert page.text_content("#own p").startswith("Head 0.3 has the role “previous token”: score 0.9")
    assert "attnscope intervene measures it" in page.text_content("#own p >> nth=1")
    example = numbers["own"]["examples"]["0.3"]
    assert page.text_content("#own blockquote bdi") == "".join(text for text, _ in example["pieces"])
    assert page.locator("#own blockquote mark").count() == 2
