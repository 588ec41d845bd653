"""The page of alignments: what it says, and that nothing from outside gets into it unescaped."""

import re

import numpy as np
import pytest
import xarray as xr

from attnscope.lineage.align import MOST_WORDS, Aligned, ShownPair
from attnscope.lineage.links import AlignmentScore, WordAlignment
from attnscope.results.page import alignment as _alignment_page
from attnscope.results.page.alignment import write_alignment_report
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


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = write_alignment_report(made(), tmp_path_factory.mktemp("report") / "new" / "report.html")
    return path.read_text(encoding="utf-8")


def test_the_page_says_how_wrong_whose_and_over_what(text):
    flat = " ".join(re.sub("<[^>]+>", "", text).split())
    assert "Alignment error rate 25.6% (precision 75.0%, recall 70.0%) over 1,234 sentence pairs." in flat
    assert "layer 0, head 1, the head with the lowest error rate on these very sentences." in flat
    assert "6 of people's links point past the end" in text
    assert "Line 2, error rate 10.0%" in text
    assert re.findall(r'id="pair-(\d)" open', text) == ["2"]  # neither the luckiest nor the worst
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,', text)) == 4


def test_everything_from_outside_is_escaped_and_nothing_is_loaded(text):
    assert "<img src=x" not in text
    assert "<b>model" not in text
    assert "<i>hand" not in text
    assert "&amp;amp;" in text
    assert "script-src" not in text  # so default-src 'none' forbids scripts
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)


def test_one_head_is_not_the_best_of_many(tmp_path):
    heads = xr.Dataset({"error_rate": (("layer", "head"), [[0.256]])})
    page = write_alignment_report(made(heads=heads, head=0), tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Every head" not in page
    assert "best of many" not in page
    assert "head with the lowest" not in page


def test_the_page_is_bounded(tmp_path, monkeypatch):
    """By its pairs and their words: no pair is larger than one of the most words."""
    small, large = (
        write_alignment_report(made(pairs=pairs, words=MOST_WORDS), tmp_path / f"{pairs}.html").stat().st_size
        for pairs in (1, 2)
    )
    assert small + (_alignment_page._MOST_PAIRS - 1) * (large - small) < 30e6
    monkeypatch.setattr(_alignment_page, "_MOST_PAIRS", 3)
    many = write_alignment_report(made(pairs=5), tmp_path / "many.html")
    assert many.read_text(encoding="utf-8").count('<details class="sentences"') == 3


def test_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(AttnscopeError, match="no error rate and no sentence pair"):
        write_alignment_report(made(pairs=0, score=None), tmp_path / "r.html")
