"""The page of patching: what it says of planted numbers, and that texts cannot do more than be read."""

from attnscope.report import write_patch_report
from tests.report.planted_patching import planted_patching


def test_the_page_names_the_place_that_carries_the_difference(tmp_path):
    page = write_patch_report(planted_patching(), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Most changes with block 0 at 2: 8" in page
    assert "1 of 8 places are told from 0" in page
    assert "She &lt;b&gt;is&lt;/b&gt; sad" in page
    assert 'id="recovered-by-position"' in page
    assert 'id="estimates"' not in page
