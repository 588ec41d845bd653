"""The page of an explanation: what it says, what it cannot hold, how it behaves in a real browser."""

import re

import numpy as np
import pytest
import xarray as xr

from attnscope.results.page.heads import of_report
from attnscope.results.reports import report_of
from attnscope.support.errors import AttnscopeError
from tests.results.page.planted_explanation import SKIPPED, explain_page_of, only


@pytest.fixture(scope="module")
def text(explain_page):
    return explain_page.read_text(encoding="utf-8")


def test_each_analysis_has_a_section_with_its_figures(text):
    assert re.findall(r'<details class="card" id="([a-z-]+)"', text) == [
        "heads",
        "heads-table",
        "shift",
        "content",
        "scheme",
        "interventions",
        "table",
        "waves",
        "controls",
        "forms",
        "interventions-table",
        "care",
        "notes",
    ]
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,', text)) == 18


def test_the_map_marks_as_many_heads_as_the_headline_counts(explained):
    report = report_of("explain", explained)
    weight = next(one for one in of_report(report)["quantities"] if one["name"] == "weight")
    assert report.finding.headline.startswith(f"{sum(shown is True for shown in weight['shown'])} of ")
    assert sum(shown is True for shown in weight["shown"]) > 0


def test_the_page_reports_the_offsets_that_the_mask_allows(explained, tmp_path):
    causal = only(explained, "verdict")
    verdict = explained["verdict"].to_dataset().assign_attrs(positions=64)
    causal["verdict"] = xr.DataTree(
        verdict.assign_coords(lowest_offset=("layer", [-63] * 3), highest_offset=("layer", [0] * 3))
    )
    page = explain_page_of(causal, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "The mask allows offsets −63 to 0: peaks are searched only there" in page
    assert "mask" not in page[page.index("<h1") : page.index("<nav")]  # what was found, not how


def test_nothing_to_show_is_rejected(tmp_path):
    with pytest.raises(AttnscopeError, match="nothing that a page could show"):
        explain_page_of(xr.DataTree(), tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def column(page, index):
    cells = page.eval_on_selector_all(
        f"#heads-table tbody td:nth-child({index + 1})", "all => all.map(cell => cell.dataset.value)"
    )
    return np.array([float(cell) for cell in cells if cell])


@pytest.mark.parametrize("index", [0, 6])
def test_a_click_on_a_heading_sorts(visit, explain_page, index):
    page = visit(explain_page, fragment="#heads-table")  # which unfolds it
    heading = page.locator("#heads-table thead tr").last.locator("th").nth(index)
    first = heading.get_attribute("data-first")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == first
    sign = 1 if first == "ascending" else -1
    assert (sign * np.diff(column(page, index)) >= 0).all()
    heading.locator("button").click()
    assert (sign * np.diff(column(page, index)) <= 0).all()
    other = page.locator("#heads-table thead button").nth(1 - min(index, 1))
    other.focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "none"


def test_reasons_and_signature_are_text(visit, explain_page):
    page = visit(explain_page)
    assert all(
        any(reason in note for note in page.locator("#notes p").all_text_contents()) for reason in SKIPPED.values()
    )
    assert not page.is_visible("#signature pre")
    page.click("#signature summary")
    assert "<script>alert(2)</script>" in page.text_content("#signature pre")
