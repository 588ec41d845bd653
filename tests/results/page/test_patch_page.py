"""The page of patching: what it says of planted numbers, and that texts cannot do more than be read."""

import xarray as xr

from attnscope.intervention.patch import patched_of
from attnscope.results.reports import report_of, write_page
from tests.results.page.planted_patching import planted_patching


def test_a_page_of_few_pairs_says_that_nothing_is_tested(tmp_path):
    """Grey cells and rings would say of every place that it was tested and not told from 0."""
    tree = planted_patching()
    few = tree["pairs"].to_dataset().isel(pair=slice(4))
    tree["pairs"], tree["patched"] = xr.DataTree(few), xr.DataTree(patched_of(few))
    page = write_page(report_of("patch", tree), tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'class="number open"' not in page
    assert "pale ones are not" not in page
    assert page.count("No tests or intervals: these need 6 or more pairs.") >= 2


def test_the_page_names_the_place_that_carries_the_difference(tmp_path):
    page = write_page(report_of("patch", planted_patching()), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "with block 0 at 2. It is significant" in page
    assert "1 of 8 positions have a significant effect" in page
    assert "She &lt;b&gt;is&lt;/b&gt; sad" in page
    assert 'id="recovered-by-position"' in page
    assert 'id="estimates"' not in page
