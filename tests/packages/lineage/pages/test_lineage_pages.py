"""The pages of alignments and comparisons: their numbers."""

import html
import re

import numpy as np
import pytest
import xarray as xr

from attnscope.report.schema import text_of
from attnscope.results.reports import report_of, write_page
from attnscope_lineage.links import AlignmentScore, Controls
from tests.packages.lineage.pages.planted_comparison import NAMES, planted

# --- alignments ---


HOSTILE = "</script><img src=x onerror=alert(1)>"


def made(pairs=3, words=4, head=1, error_rates=((0.9, 0.256),), *, judged=True):
    weights = np.random.default_rng(0).dirichlet(np.ones(words), words)
    sides = {"source": [HOSTILE, *["猫"] * (words - 1)], "target": ["&amp;"] * words}
    coordinates = {side: (f"{side}_word", np.array(of_side, object)) for side, of_side in sides.items()}
    links = dict.fromkeys(("links", "sure", "possible"), "0-0")
    shape = 1234, *np.shape(error_rates)
    nodes = {
        "pairs": xr.Dataset(
            {name: ("pair", np.full(1234, words)) for name in ("source_words", "target_words")}
            | {"links_of_heads": (("pair", "layer", "head"), np.full(shape, "0-0", object))}
        ),
        "links": xr.Dataset({"line": ("link", range(1, 1235))}, {"layer": 0, "head": head}),
    }
    if judged:
        scores = AlignmentScore(0.256, 0.75, 0.7, 3000), Controls(0.5, 0.8, 0.7)
        nodes["scores"] = xr.Dataset(vars(scores[0]) | vars(scores[1]) | {"gold_links_outside": 6})
        nodes["heads"] = xr.Dataset({"error_rate": (("layer", "head"), list(error_rates))})
    for i in range(pairs):
        shown = {"weights": (("target_word", "source_word"), weights), "error_rate": i / 10, **links}
        nodes[f"shown/{i + 1}"] = xr.Dataset(shown, coordinates)
    tree = xr.DataTree.from_dict(nodes)
    tree.attrs = {"model": "planted <b>model</b>", "signature": '{"by": "<i>hand</i>"}'}
    return tree


def page(path, **changes):
    return write_page(report_of("align", made(**changes)), path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return page(tmp_path_factory.mktemp("report") / "new" / "report.html")


def test_the_page_says_how_wrong_whose_and_over_what(text):
    flat = " ".join(re.sub("<[^>]+>", "", text).split())
    assert "1,234 sentence pairs: error rate 25.6%, precision 75.0%, recall 70.0%." in flat
    assert "1,234 sentence pairs, links of head 0.1." in flat
    assert "The best of many heads." in flat
    assert "6 gold links beyond the end" in text
    assert "Line 2, error rate 10.0%" in text
    assert re.findall(r'id="pair-(\d)" open', text) == ["2"]  # neither the luckiest nor the worst
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,', text)) == 4


def test_one_head_is_not_the_best_of_many(tmp_path):
    text = page(tmp_path / "r.html", error_rates=[[0.256]], head=0)
    assert "very head" not in text
    assert "best of many" not in text


def test_a_page_without_a_certainty_has_no_sentence_of_it(tmp_path):
    assert "Certainty:" in page(tmp_path / "r.html")
    assert "Certainty:" not in page(tmp_path / "r.html", judged=False)


# --- comparisons ---


def comparison_page(folder, **changes):
    return write_page(report_of("compare", planted(**changes)), folder / "new" / "report.html").read_text(
        encoding="utf-8"
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return comparison_page(tmp_path_factory.mktemp("report"))


def cells(compared, table):
    rows = re.findall("<tr>(.*?)</tr>", re.findall("<table.*?>(.*?)</table>", compared, re.DOTALL)[table], re.DOTALL)
    return [
        [html.unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall("<t[hd].*?</t[hd]>", row)] for row in rows
    ]


def test_the_table_says_what_was_found(compared):
    heading, fixed, additive, transformer = cells(compared, 0)
    assert heading[:4] == ["System", "BLEU", "chrF", "Difference"]
    assert fixed[:4] == [NAMES[0], "30.5 29.0 to 32.0", "55.2 53.8 to 56.8", ""]
    assert additive[3:5] == ["+67.7 +66.2 to +69.2", "0.001"]
    assert transformer[-1].startswith("40.0%")
    assert "Controls: diagonal 50.0%, random words 80.0% (below 75.0% in 1 of 100)." in compared


def test_the_best_is_held_against_the_first_or_the_first_against_the_second_best():
    tree = planted()
    best = str(tree["scores"].score.sel(metric="BLEU").idxmax("system").item())
    assert report_of("compare", tree).finding.headline.startswith(f"{best} has the highest BLEU")
    assert f"(compared with {NAMES[0]}: p = 0.001)" in report_of("compare", tree).finding.headline
    tree["scores"].score[0] = 99.5
    assert f"(compared with {best}: p = 0.001)" in report_of("compare", tree).finding.headline


def test_the_smallest_p_is_one_in_sentence_and_table():
    """Of 1,000 resamples it is 1 / 1001."""
    tree = planted()
    tree["scores"].p_value[1:] = 1 / 1001
    report = report_of("compare", tree)
    assert "p < 0.001" in report.finding.headline
    column = next(one for one in report.tables[0].quantities if one.name == "bleu_p_value")
    assert text_of(column, report.tables[0].rows[1]) == ("<0.001", "")


def test_scores_stand_by_length(compared):
    heading, first, *_, last = cells(compared, 1)
    assert heading[:4] == ["System", "Length", "Sentences", "BLEU"]
    assert first[:4] == [NAMES[0], "1-10", "85", "97.0 94.0 to 100.0"]
    assert last[:4] == [NAMES[2], "51+", "86", "90.0 87.0 to 93.0"]
    flat = " ".join(html.unescape(re.sub("<[^>]+>", "", compared)).split())
    assert "fixed vector: one fixed vector represents the whole sentence" in flat
    told = "BLEU of 85 sentences of 1-10 words and of 86 of 51+: 97.0 and 11.0 with fixed vector,"
    assert told in flat
    # 99 to 97 lies within intervals of 3 on either side, 98 to 90 does not
    assert f"99.0 and 97.0 with {NAMES[1]} (their intervals overlap)," in flat
    assert "98.0 and 90.0 with Transformer." in flat


def test_one_system_has_no_test(tmp_path):
    tree = xr.DataTree.from_dict(
        {name: node.to_dataset().isel(system=[0]) for name, node in planted().children.items()}
    )
    tree.attrs = planted().attrs
    text = write_page(report_of("compare", tree), tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"Translation systems: {NAMES[0]}" in text
    assert "paired bootstrap" not in text
    assert "P" not in cells(text, 0)[0]
