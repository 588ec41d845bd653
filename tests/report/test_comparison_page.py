"""The page of a comparison: its numbers, and that nothing from outside gets into it unescaped."""

import html
import re

import pytest
import xarray as xr

from attnscope.results.reports import report_of, write_page
from tests.report.planted_comparison import NAMES, planted


def page(folder, **changes):
    return write_page(report_of("compare", planted(**changes)), folder / "new" / "report.html").read_text(
        encoding="utf-8"
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return page(tmp_path_factory.mktemp("report"))


def cells(text, table):
    rows = re.findall("<tr>(.*?)</tr>", re.findall("<table.*?>(.*?)</table>", text, re.DOTALL)[table], re.DOTALL)
    return [
        [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows
    ]


def test_the_table_says_what_was_found(text):
    heading, fixed, additive, transformer = cells(text, 0)
    assert heading[:4] == ["System", "BLEU", "ChrF", "Difference"]
    assert fixed[:4] == [NAMES[0], "30.5 29.0 to 32.0", "55.2 53.8 to 56.8", ""]
    assert additive[3:5] == ["+67.7 +66.2 to +69.2", "0.001"]
    assert transformer[-1].startswith("40.0%")
    assert "Baselines: diagonal 50.0%, random words 80.0% (below 75.0% in 1 of 100)." in text


def test_scores_stand_by_length(text):
    heading, first, *_, last = cells(text, 1)
    assert heading[:4] == ["System", "Length", "Sentences", "BLEU"]
    assert first[:4] == [NAMES[0], "1-10", "85", "97.0 94.0 to 100.0"]
    assert last[:4] == [NAMES[2], "51+", "86", "90.0 87.0 to 93.0"]
    flat = " ".join(html.unescape(re.sub("<[^>]+>", "", text)).split())
    assert "fixed vector compresses the sentence into one fixed vector" in flat
    told = "From 85 sentences of 1-10 words to 86 of 51+, BLEU changes from 97.0 to 11.0 with fixed vector,"
    assert told in flat
    # 99 to 97 lies within intervals of 3 on either side, 98 to 90 does not
    assert f"from 99.0 to 97.0 with {NAMES[1]} (their intervals overlap)," in flat
    assert "from 98.0 to 90.0 with Transformer." in flat


def test_one_system_has_no_test(tmp_path):
    tree = xr.DataTree.from_dict(
        {name: node.to_dataset().isel(system=[0]) for name, node in planted().children.items()}
    )
    tree.attrs = planted().attrs
    text = write_page(report_of("compare", tree), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 translation system compared" in text
    assert "paired bootstrap" not in text
    assert "P" not in cells(text, 0)[0]
