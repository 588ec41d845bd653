"""The page of a scan of texts with images, in a browser."""

import pytest

import attnscope
from attnscope.results.page.scan import write_report
from attnscope.store.arrays import unpacked
from tests.pictured import blue_at, save_looking_llava


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place = tmp_path_factory.mktemp("page")
    texts = [
        {"text": "<image> Where is it?", "images": [blue_at(2, 1)]},
        {"text": "First <image>, then <image>.", "images": [blue_at(0, 0), blue_at(3, 2)]},
    ]
    result = attnscope.scan(save_looking_llava(place / "llava"), texts, out=place / "run", show=[])
    sample = unpacked((place / "run" / "sample.npz").read_bytes())
    return write_report(result, sample, place / "report.html")


def shaded(page):
    return page.eval_on_selector_all(
        ".patches .token", "all => all.filter(t => t.style.getPropertyValue('--w') > 0.5).map(t => t.textContent)"
    )


def test_a_token_of_text_shows_what_it_looks_at_over_the_image(visit, path):
    page = visit(path, fragment="#0.0")
    assert page.locator(".patches .token").count() == 16
    assert "data:image/jpeg" in page.get_attribute(".patches img", "src")
    assert shaded(page) == ["image 1 r2c1"]  # from the end of the text, which is chosen first
    page.hover('.tokens > .token:text-is("␣is")')
    assert shaded(page) == ["image 1 r2c1"]
    said = page.text_content(".view")
    assert said.startswith("image 1, 4 × 4 tokens: 1 of the token's weight; most, 1, on r2c1")
    place = page.eval_on_selector('.patches .token:text-is("image 1 r2c1")', "t => t.style.gridArea")
    assert place.startswith("3 / 2")


def test_several_images_stand_where_they_are_in_the_text(visit, path):
    page = visit(path, fragment="#0.0")
    page.select_option("#window-choice", index=1)
    page.wait_for_selector("#window[data-window='1']")
    assert page.locator(".inset").count() == 2
    assert page.text_content("#texts").index("irst") < page.text_content("#texts").index("image 1 r0c0")
    page.click('.tokens > .token:text-is("␣the")')
    assert shaded(page) == ["image 1 r0c0"]  # it does not see the second
    page.click('.tokens > .token:text-is(".")')
    assert shaded(page) == ["image 1 r0c0", "image 2 r3c2"]
    assert [text.split(" of the")[0][-3:] for text in page.locator(".view").all_text_contents()] == ["0.5", "0.5"]
