"""The page of generated texts in a browser: a token and a head are clicked."""

import pytest

import attnscope
from attnscope.results.reports import report_of, write_page
from tests.image_text_models import blue_at, save_looking_llava
from tests.measure.generation.causal_models import writer


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model, tokenizer = writer()
    texts = ["<script>alert(1)</script> twice a day.", "A boat is out."]
    results = attnscope.generate(model, texts, tokenizer=tokenizer, new_tokens=8, spans={"a & b": "twice...day"})
    return results, write_page(report_of("generate", results), tmp_path_factory.mktemp("page") / "report.html")


def test_a_click_on_a_token_shows_what_a_head_looks_at(visit, written):
    results, path = written
    page = visit(path)
    assert page.locator("#grid button b").count() == 8  # how far each shifts
    page.select_option("#colour", "labels")
    assert page.locator("#grid button svg").count() == 8  # a curve each
    assert page.locator("#tokens .new").count() == 8
    page.locator("#tokens .new").nth(5).click()
    page.locator("#grid button").nth(6).click()
    assert page.inner_text("#head-title") == "Layer 1, head 2"
    cells = page.locator("#at-token tr").all_inner_texts()
    expected = results.span_weight.isel(sequence=0, step=5, layer=1, head=2)
    for row, span in zip(cells, results.span.values, strict=True):
        name, weight, *_ = row.strip().split("\t")
        assert name.strip() == span
        assert float(weight) == pytest.approx(float(expected.sel(span=span)), abs=0.011)
    top = int(results.top_key.isel(sequence=0, step=5, layer=1, head=2))
    assert f"position {top}, with" in page.inner_text("#at")
    page.select_option("#text-choice", "1")
    assert page.locator("#at-token tr").count() == 2  # the second text has no such span


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictured")
    texts = [{"text": "<image> Where is it?", "images": [blue_at(*patch)]} for patch in ((2, 1), (0, 3))]
    results = attnscope.generate(save_looking_llava(place / "llava"), texts, new_tokens=3)
    return results, write_page(report_of("generate", results), place / "report.html")


def darkest(page):
    """The patch of each drawing that has the most colour."""
    return page.eval_on_selector_all(
        "#pictures canvas",
        """all => all.map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const alphas = [...data].filter((_, i) => i % 4 === 3), most = alphas.indexOf(Math.max(...alphas));
          return [Math.floor(most / canvas.width), most % canvas.width];
        })""",
    )


def test_each_new_token_has_a_drawing_of_its_weights_over_the_image(visit, pictured):
    results, path = pictured
    page = visit(path)
    page.locator("#grid button").nth(0).click()
    assert page.locator("#tokens .given", has_text="[image]").count() == 1
    assert darkest(page) == [[2, 1]] * 4  # the selected token's, and one for each new token
    share = float(results.span_weight.isel(sequence=0, step=1, layer=0, head=0).sel(span="image"))
    page.locator("#pictures .drawings button").nth(1).click()
    assert page.locator("#tokens .current").get_attribute("data-token") == str(int(results.prompt_length[0]) + 1)
    assert f"{100 * share:.0f}% of the weight" in page.inner_text("#pictures figcaption")
    page.get_by_label("Weights over the image:").select_option("layers")
    mean = results.patch_weight.isel(sequence=0, layer=0, step=1).mean("head")
    assert darkest(page)[0] == [int(i) for i in divmod(int(mean.values.argmax()), 4)]
    page.select_option("#text-choice", "1")
    page.get_by_label("Weights over the image:").select_option("heads")
    assert darkest(page) == [[0, 3]] * 4


def test_texts_without_images_have_no_drawings(visit, written):
    assert visit(written[1]).locator("#pictures").is_hidden()
