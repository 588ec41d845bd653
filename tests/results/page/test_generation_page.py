"""The page of generated texts in a browser: a token and a head are clicked."""

import pytest

import attnscope
from attnscope.results.reports import report_of, write_page
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
    assert f"token {top + 1}, with" in page.inner_text("#at")
    page.select_option("#text-choice", "1")
    assert page.locator("#at-token tr").count() == 2  # the second text has no such span
