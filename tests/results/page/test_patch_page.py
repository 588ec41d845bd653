"""The page of patching: what it says of planted numbers, and that texts cannot do more than be read."""

import numpy as np
import pytest
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


@pytest.mark.browser
def test_the_page_opens_on_a_pair_and_how_far_the_head_takes_the_run(visit, tmp_path):
    tree = planted_patching()
    pairs = tree["pairs"].to_dataset().drop_vars(["clean_token", "corrupted_token"])
    pairs = pairs.rename(block="layer", position="head").assign_coords(head=np.arange(4)).assign_attrs(what="heads")
    pairs = pairs.assign_coords(layer_kind=("layer", ["causal"] * 2))
    tree["pairs"], tree["patched"] = xr.DataTree(pairs), xr.DataTree(patched_of(pairs))
    page = visit(write_page(report_of("patch", tree), tmp_path / "report.html"))
    assert page.text_content("#head-title") == "Layer 0, head 2"
    marked = page.eval_on_selector_all("#own mark", "all => all.map(one => one.textContent)")
    assert marked == ["She", "<b>", "</b>", "He"]
    assert page.text_content("#own p >> nth=0").endswith("She <b>is</b> sad, 0 → she")
    patched = float(pairs.difference.sel(layer=0, head=2).mean())
    numbers = page.eval_on_selector_all("#own svg text", "all => all.map(one => one.textContent)")[1::2]
    assert numbers == ["−2.00 logits", f"{patched:+.2f} logits".replace("-", "−"), "+2.00 logits"]
    wide = page.eval_on_selector_all("#own svg rect[opacity]", "all => all.map(one => one.width.baseVal.value)")
    assert wide[0] == wide[2]  # from 0 to −2 on the left, from 0 to 2 on the right
    assert wide[1] / wide[2] == pytest.approx(abs(patched) / 2, abs=1e-3)
    assert f"{(patched + 2) / 4:.1%} of the difference" in page.text_content("#own figcaption")
    page.select_option("#own select", "7")
    assert page.text_content("#own p >> nth=1").endswith("He is sad, 7 → he")
    page.click('[data-head="1"]')
    assert "with head 0.1 patched" in page.text_content("#own svg")
