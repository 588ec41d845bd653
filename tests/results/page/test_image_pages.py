"""The pages of a scan of images, and of texts with images, in a browser."""

import pytest
import torch

import attnscope
from attnscope.store.arrays import unpacked
from tests.image_models import SIDE, looking_vit
from tests.image_text_models import blue_at, save_looking_llava
from tests.results.page.planted_result import scan_page

# --- the page of a scan of images, in a browser ---


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    run = tmp_path_factory.mktemp("page") / "run"
    images = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    result = attnscope.scan(looking_vit(((0, -1), (-1, 0))), images, out=run, show=[])
    sample = unpacked((run / "sample.npz").read_bytes())
    sample["source"].values[1] = "</script><b>two"
    return scan_page(result, sample, run.parent / "report.html")


def shaded(page):
    """Names of the patches that the chosen one looks at."""
    return page.eval_on_selector_all(
        ".patches .token", "all => all.filter(t => t.style.getPropertyValue('--w') > 0.5).map(t => t.textContent)"
    )


def test_a_patch_shows_what_it_looks_at_over_the_image(visit, path):
    page = visit(path, fragment="#0.0")
    assert page.locator(".patches .token").count() == 16
    assert "data:image/jpeg" in page.get_attribute(".patches img", "src")
    page.hover('.patches .token:text-is("r2c2")')
    assert shaded(page) == ["r2c1"]
    assert page.text_content("#partners tbody tr:first-child td:nth-child(3)") == "1 left"
    page.click('.patches .token:text-is("r2c2")')
    page.keyboard.press("ArrowUp")
    assert shaded(page) == ["r1c1"]


def test_the_profile_is_a_map_of_neighbours(visit, path):
    page = visit(path, fragment="#0.1")
    assert page.text_content("#tokens-title").startswith("Image ")
    page.click("#tab-profile")
    assert "1 up" in page.get_attribute("#patches svg", "aria-label")
    assert page.locator("#patches rect title").count() == 49


def test_names_of_images_are_text_and_another_can_be_chosen(visit, path):
    page = visit(path, fragment="#0.0")
    before = page.get_attribute(".patches img", "src")
    page.select_option("#window-choice", label="2 of 2: </script><b>two")
    page.wait_for_selector("#panel-text[data-window='1']")
    assert page.get_attribute(".patches img", "src") != before
    assert page.evaluate("location.hash").endswith("/w2")
    page.keyboard.press("[")
    page.wait_for_selector("#panel-text[data-window='0']")
    assert page.get_attribute(".patches img", "src") == before


# --- the page of a scan of texts with images, in a browser ---


@pytest.fixture(scope="module")
def pictured_path(tmp_path_factory):
    place = tmp_path_factory.mktemp("page")
    texts = [
        {"text": "<image> Where is it?", "images": [blue_at(2, 1)]},
        {"text": "First <image>, then <image>.", "images": [blue_at(0, 0), blue_at(3, 2)]},
    ]
    result = attnscope.scan(save_looking_llava(place / "llava"), texts, out=place / "run", show=[])
    sample = unpacked((place / "run" / "sample.npz").read_bytes())
    return scan_page(result, sample, place / "report.html")


def test_a_token_of_text_shows_what_it_looks_at_over_the_image(visit, pictured_path):
    page = visit(pictured_path, fragment="#0.0")
    assert page.locator(".patches .token").count() == 16
    assert "data:image/jpeg" in page.get_attribute(".patches img", "src")
    assert shaded(page) == ["image 1 r2c1"]  # from the end of the text, which is chosen first
    page.hover('.tokens > .token:text-is("is")')
    assert shaded(page) == ["image 1 r2c1"]
    said = page.text_content(".view")
    assert said.startswith("image 1, 4 × 4 tokens: 1 of the token's weight; most: 1, r2c1")
    place = page.eval_on_selector('.patches .token:text-is("image 1 r2c1")', "t => t.style.gridArea")
    assert place.startswith("3 / 2")


def test_several_images_stand_where_they_are_in_the_text(visit, pictured_path):
    page = visit(pictured_path, fragment="#0.0")
    page.select_option("#window-choice", index=1)
    page.wait_for_selector("#panel-text[data-window='1']")
    assert page.locator(".inset").count() == 2
    assert page.text_content("#texts").index("irst") < page.text_content("#texts").index("image 1 r0c0")
    page.click('.tokens > .token:text-is("the")')
    assert shaded(page) == ["image 1 r0c0"]  # it does not see the second
    page.click('.tokens > .token:text-is(".")')
    assert shaded(page) == ["image 1 r0c0", "image 2 r3c2"]
    assert [text.split(" of the")[0][-3:] for text in page.locator(".view").all_text_contents()] == ["0.5", "0.5"]
