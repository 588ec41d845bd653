"""The page of an explanation: what it says, what it cannot hold, how it behaves in a real browser."""

import re

import numpy as np
import pytest
import xarray as xr

from attnscope.explanation.study import Analysis, Picture, Section, TextTable
from attnscope.results.figures import explain as _explain_content
from attnscope.results.page.parts import Picture as PagePicture
from attnscope.results.page.parts import Section as PageSection
from attnscope.results.schema import Finding, Report, Table
from attnscope.support.errors import AttnscopeError
from tests.report.planted_explanation import SKIPPED, explain_page_of, only


@pytest.fixture(scope="module")
def text(explain_page):
    return explain_page.read_text(encoding="utf-8")


def test_each_analysis_has_a_section_with_its_figures(text):
    assert re.findall(r'<section class="card" id="([a-z-]+)"', text) == [
        "heads",
        "heads-table",
        "table",
        "waves",
        "shift",
        "controls",
        "content",
        "scheme",
        "interventions",
        "forms",
        "interventions-table",
        "care",
        "notes",
    ]
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,', text)) == 18


def test_everything_from_outside_is_escaped(text):
    assert "planted &lt;b&gt;model&lt;/b&gt;" in text
    assert "<b>model" not in text
    assert "<script>alert" not in text
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; &amp; so on" in text
    assert "<img src=x" not in text


def test_the_page_may_load_nothing(text):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text).group(1)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_the_page_reports_the_offsets_that_the_mask_allows(explained, tmp_path):
    causal = only(explained, "verdict")
    verdict = explained["verdict"].to_dataset().assign_attrs(positions=64)
    causal["verdict"] = xr.DataTree(
        verdict.assign_coords(lowest_offset=("layer", [-63] * 3), highest_offset=("layer", [0] * 3))
    )
    page = explain_page_of(causal, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "The mask allows offsets −63 to 0: peaks are searched only there" in page
    assert "mask" not in page[page.index("<h1") : page.index("<nav")]  # what was found, not how


def test_one_analysis_alone_is_a_page(explained, tmp_path):
    alone = xr.DataTree.from_dict({"position_pca": explained["position_pca"].to_dataset()})
    page = explain_page_of(alone, tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'id="heads-table"' not in page


def test_a_figure_with_a_second_name_is_linked_by_its_title(monkeypatch):
    copy = Picture("again_under_a_name", "Plate IX", same_as="spectrum")
    table = TextTable("Sizes", "", ("head",), lambda _: [("0.0",)], lambda _: "")
    asked = Section("sizes", "Sizes", "")
    added = Analysis("sizes", "", "", xr.Dataset, section=asked, pictures=(copy,), table=table)
    monkeypatch.setattr(_explain_content, "analyses_of", lambda _: [added])
    shown = [PageSection("waves", "", "", [PagePicture("", 1, "spectrum")])]
    tree = xr.DataTree.from_dict({"sizes": xr.Dataset()})
    report = Report("explain", "", "", "", Finding([], ""), [Table("heads", "", (), [])], tree)
    _, made = _explain_content.text_tables(report, shown)
    assert made.tables[0].elsewhere == [("figure-spectrum", "Plate IX")]


def test_the_heads_requested_are_shown(explained, tmp_path):
    page = explain_page_of(only(explained, "verdict", "phase_map"), tmp_path / "r.html", heads=[(2, 3)])
    page = page.read_text(encoding="utf-8")
    assert "Detailed figures show heads 2.3 (" in page


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
    page = visit(explain_page)
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
