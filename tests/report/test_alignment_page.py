"""The page of alignments: what it says, and that nothing from outside gets into it unescaped."""

import re

import numpy as np
import pytest
import xarray as xr

from attnscope.lineage.align import Aligned, ShownPair
from attnscope.lineage.links import AlignmentScore, WordAlignment
from attnscope.results.reports import report_of, write_page
from attnscope.support.errors import AttnscopeError

HOSTILE = "</script><img src=x onerror=alert(1)>"
LINK = frozenset({(0, 0)})


def made(pairs=3, words=4, **changes):
    weights = np.random.default_rng(0).dirichlet(np.ones(words), words)
    pair = WordAlignment([HOSTILE, *["猫"] * (words - 1)], ["&amp;"] * words, weights)
    parts = {
        "model": "planted <b>model</b>",
        "layer": 0,
        "head": 1,
        "chosen_on_gold": True,
        "links": [LINK] * 1234,
        "score": AlignmentScore(0.256, 0.75, 0.7, 3000),
        "heads": xr.Dataset({"error_rate": (("layer", "head"), [[0.9, 0.256]])}),
        "outside": 6,
        "pairs": [ShownPair(i + 1, pair, LINK, LINK, LINK, i / 10) for i in range(pairs)],
        "signature": '{"by": "<i>hand</i>"}',
    }
    return Aligned(**{**parts, **changes})


def page(path, **changes):
    return write_page(report_of("align", made(**changes)), path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return page(tmp_path_factory.mktemp("report") / "new" / "report.html")


def test_the_page_says_how_wrong_whose_and_over_what(text):
    flat = " ".join(re.sub("<[^>]+>", "", text).split())
    assert "1234 sentence pairs: error rate 25.6%, precision 75.0%, recall 70.0%." in flat
    assert "1234 sentence pairs, links of layer 0, head 1." in flat
    assert "The best of many heads." in flat
    assert "6 gold links beyond the end" in text
    assert "Line 2, error rate 10.0%" in text
    assert re.findall(r'id="pair-(\d)" open', text) == ["2"]  # neither the luckiest nor the worst
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,', text)) == 4


def test_one_head_is_not_the_best_of_many(tmp_path):
    text = page(tmp_path / "r.html", heads=xr.Dataset({"error_rate": (("layer", "head"), [[0.256]])}), head=0)
    assert "very head" not in text
    assert "best of many" not in text


def test_nothing_to_show_is_rejected(tmp_path):
    with pytest.raises(AttnscopeError, match="nothing that a page could show"):
        page(tmp_path / "r.html", pairs=0, score=None, heads=None)
