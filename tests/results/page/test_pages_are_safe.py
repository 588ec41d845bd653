"""No page lets text from outside become markup, and none loads anything."""

import json
import re

import pytest

from attnscope.results.reports import report_of, write_page
from tests.packages.lineage.pages.planted_comparison import planted as planted_comparison
from tests.packages.lineage.pages.test_lineage_pages import made as planted_alignment
from tests.results.page.planted_intervention import planted_intervention
from tests.results.page.planted_patching import planted_patching
from tests.results.page.planted_result import HOSTILE, planted, scan_page

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"


def hostile_scan():
    """A scan whose tokens, names and signature are hostile."""
    made = planted()
    sample, result, evil = made.sample.copy(deep=True), made.result.copy(deep=True), HOSTILE[0]
    sample["token"].values[0, : len(HOSTILE)] = HOSTILE
    result.attrs.update(model=evil, signature=json.dumps({"corpus": {"name": evil}}), summary=json.dumps({evil: evil}))
    result["entropy"].attrs["long_name"] = evil
    return result.assign_coords(cluster=[evil, *map(str, result.cluster.values[1:])]), sample


@pytest.fixture(scope="module")
def pages(tmp_path_factory, explain_page):
    folder = tmp_path_factory.mktemp("pages")
    trees = {"align": planted_alignment, "compare": planted_comparison}
    trees |= {"intervene": planted_intervention, "patch": planted_patching}
    paths = {verb: write_page(report_of(verb, made()), folder / f"{verb}.html") for verb, made in trees.items()}
    paths |= {"explain": explain_page, "scan": scan_page(*hostile_scan(), folder / "scan.html")}
    return {verb: path.read_text(encoding="utf-8") for verb, path in paths.items()}


@pytest.mark.parametrize("verb", ["align", "compare", "explain", "intervene", "patch", "scan"])
def test_text_from_outside_is_escaped_and_nothing_is_loaded(pages, verb):
    page = pages[verb]
    for markup in ("<img src=x", "<b>", "<i>hand", "<script>alert"):
        assert markup not in page
    assert page.count("</script>") == page.count("<script")
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert set(re.findall(r"https?://[^\"'\s<]*", page)) <= {"http://www.w3.org/2000/svg"}


def test_the_page_of_a_scan_holds_hostile_tokens_as_data(pages):
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', pages["scan"])[1])
    assert data["window"]["windows"][0][0]["tokens"][: len(HOSTILE)] == HOSTILE
