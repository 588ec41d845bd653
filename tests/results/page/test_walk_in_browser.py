"""The page of a walk in a browser: one step a screen, by buttons, arrow keys and the address."""

import pytest

from attnscope_lineage.head_walk import walk_toy
from attnscope_lineage.page.walk import write

SHOWN = "[...document.querySelectorAll('.step')].filter(part => !part.hidden).map(part => part.id).join()"


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1440])
def test_arrow_keys_go_from_step_to_step(visit, tmp_path, width):
    page = visit(write(walk_toy(), tmp_path / "walk.html"), width=width)
    assert page.evaluate(SHOWN) == "step-1"
    assert page.locator("#previous").is_disabled()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(SHOWN) == "step-2"
    page.locator("#next").click()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(SHOWN) == "step-2"
    assert page.url.endswith("#step-2")
    page.evaluate("location.hash = '#step-7'")
    page.wait_for_function(f"{SHOWN} === 'step-7'")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
