"""The page of a comparison in a browser: its map has significant changes alone, and bars of a head begin with them."""

import numpy as np
import pytest

import attnscope
from attnscope.bundled import MODEL, TEXT
from attnscope.results.reports import report_of, write_page

_SAMPLE = "".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.iterdir()))
HEADS = 4  # of a layer


@pytest.fixture(scope="module")
def found():
    """A scan, and the same with a lower entropy of head 1.1 in every window and a wild largest weight."""
    before = attnscope.scan(MODEL, [_SAMPLE[at : at + 150] for at in range(0, 3000, 150)], window=64, limit=20)
    wild = 50 * np.random.default_rng(0).normal(size=before.max_weight.shape)
    lower = before.entropy.copy()
    lower.loc[{"layer": 1, "head": 1}] -= 0.5
    after = before.assign(entropy=lower, max_weight=before.max_weight + wild)
    return attnscope.diff(before, after, statistics=["max_weight", "entropy"])


def test_the_map_and_the_first_bar_show_the_significant_change(found, visit, tmp_path):
    assert found.changed.sum() == found.changed.sel(statistic="entropy", layer=1, head=1) == 1
    size = found["size"].sel(layer=1, head=1)
    assert abs(size.sel(statistic="max_weight")) > abs(size.sel(statistic="entropy"))
    page = visit(write_page(report_of("diff", found), tmp_path / "report.html"))
    assert page.inner_text("#colour option:checked") == "largest significant change"
    cells = page.locator("#grid [data-head] b").all_inner_texts()
    assert {text for at, text in enumerate(cells) if at != HEADS + 1} == {"–"}
    assert cells[HEADS + 1].startswith("−")
    assert page.inner_text("#key") == "significant decrease (1)\nnot significant (11)"
    names = page.locator("#own .chart text[text-anchor=end]")
    assert names.all_text_contents() == ["Entropy of a row", "Largest weight of a row"]
    assert "standard deviations between heads" in page.locator("#own .chart text").all_text_contents()
    assert "12 heads were tested at once" in page.inner_text("#own .hint")
