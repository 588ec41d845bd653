"""The page of relations in a browser: arcs are the stored choices, names no markup, a saved drawing stands alone."""

import re
from pathlib import Path

import pytest

from attnscope.results.reports import report_of, write_page
from attnscope.results.scan_report import sample_of
from attnscope_relations import relations
from attnscope_relations.shown import texts_of
from tests.packages.relations.test_relations import ANIMAL, pronouns

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def found():
    texts = [text | {"document": f"{EVIL} {number}"} for number, text in enumerate(pronouns(60))]
    return relations("bundled:pronoun", texts, untrained=False)


@pytest.fixture(scope="module")
def page_file(found, tmp_path_factory):
    return write_page(report_of("relations", found), tmp_path_factory.mktemp("relations") / "report.html")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_arcs_are_the_stored_choices_of_the_chosen_head(found, page_file, visit, width, scheme):
    page, sample = visit(page_file, width=width, scheme=scheme), sample_of(found)
    for layer, head in ((1, 0), (0, 0)):
        page.click(f'#grid [data-head="{layer}"]')
        said = [one.get_attribute("aria-label") for one in page.query_selector_all("#links svg[role=img]")]
        expected = []
        for text in texts_of(sample):
            (link,) = text.links
            at = sample.isel(link=link.number).sel(layer=layer, head=head)
            mark = "✓" if int(at.choice) in link.keys else "✗"
            weight = f"{round(100 * float(at.weight)) / 100:g}"
            arc = f"{text.words[link.query[0]]} → {text.words[int(at.choice)]} ({mark}, weight {weight})"
            expected.append(f"{' '.join(text.words)}: {arc}")
        assert said == expected
        right = sum("✓" in one for one in said)
        assert f"on the linked word for {right} of {len(said)} queries" in page.inner_text("#links-say")
        dashed = page.query_selector_all("#links path[stroke-dasharray='5 3']")
        assert len(dashed) == len(said) - right
    assert EVIL in page.inner_text("#links figcaption >> nth=0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_saved_drawing_is_an_svg_by_itself(page_file, visit):
    page = visit(page_file)
    with page.expect_download() as download:
        page.click("#links figure >> nth=0 >> text=SVG")
    assert re.fullmatch(r"head-\d\.\d-text-\d+\.svg", download.value.suggested_filename)
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert "xhtml" not in text
    assert "var(" not in text


def test_one_text_opens_on_its_sentence_with_every_head_that_is_right(visit, tmp_path):
    found = relations("bundled:pronoun", ANIMAL, query="it", key="animal", untrained=False)
    page = visit(write_page(report_of("relations", found), tmp_path / "report.html"))
    assert page.is_visible("#links svg[role=img]")
    assert (
        page.eval_on_selector("#colour", "one => one.selectedOptions[0].textContent") == "weight"
    )  # as the title says
    drawn = page.text_content("#links svg[role=img]")
    for layer in range(2):
        weight = float(found.weight.sel(layer=layer, head=0)[0])
        assert f"head {layer}.0: {weight:.2f}" in drawn
