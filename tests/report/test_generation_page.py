"""The page of generated texts in a browser: a token and a head are clicked."""

import pytest
import xarray as xr

import attnscope
from attnscope.comparison.generated import span_uses
from attnscope.results.reports import report_of, write_page
from tests.statistics.generation.writers import writer


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model, tokenizer = writer()
    texts = ["<script>alert(1)</script> twice a day.", "A boat is out."]
    results = attnscope.generate(model, texts, tokenizer=tokenizer, new_tokens=8, spans={"a & b": "twice...day"})
    return results, write_page(report_of("generate", results), tmp_path_factory.mktemp("page") / "report.html")


def test_a_click_on_a_token_shows_what_a_head_looks_at(visit, written):
    results, path = written
    page = visit(path)
    assert page.locator("#multiples button").count() == 8
    assert page.locator("#tokens button").count() == 8
    page.locator("#tokens button").nth(5).click()
    page.locator("#multiples button").nth(6).click()
    assert page.inner_text("#head-name") == "1.2"
    cells = page.locator("#at-token tr").all_inner_texts()
    expected = results.span_weight.isel(sequence=0, step=5, layer=1, head=2)
    for row, span in zip(cells, results.span.values, strict=True):
        name, weight, *_ = row.strip().split("\t")
        assert name.strip() == span
        assert float(weight) == pytest.approx(float(expected.sel(span=span)), abs=0.011)
    top = int(results.top_key.isel(sequence=0, step=5, layer=1, head=2))
    assert f"token {top + 1}, with" in page.inner_text("#readout")
    page.select_option("#text-choice", "1")
    assert page.locator("#at-token tr").count() == 2  # the second text has no such span


def test_what_is_not_known_is_reported(visit, written, tmp_path):
    """A layer that looks at the source alone, with nothing above equal weights there, and too few texts."""
    results = written[0].isel(sequence=[0]).copy(deep=True)
    results["layer_kind"] = "layer", ["causal", "cross"]
    results["span"] = ["source" if span == "a & b" else span for span in results.span.values]
    for name in ("span_weight", "equal_span_weight", "position_span_weight"):
        source, of_cross = results.span == "source", results.layer == 1
        filled = float("nan") if name == "position_span_weight" else 1.0
        results[name] = xr.where(source & of_cross, filled, results[name].where(source == of_cross))
    found = span_uses(results)
    assert [use["head"] for use in found if use["span"] == "source"] == [None]
    page = visit(write_page(report_of("generate", results), tmp_path / "report.html"))
    assert page.locator("#multiples .none").count() == 4
    assert page.inner_text("#no-keys") == "–: no key of “own output”. The heads of layer 1 attend to the source only."
    assert "All keys belong to the span: source." in page.inner_text("#notes")
    assert page.locator("#spans tr", has_text="source").locator("td").all_inner_texts()[2:] == [""] * 5
