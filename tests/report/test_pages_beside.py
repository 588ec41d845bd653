"""A page shows what the other pages in its folder found for the same model and texts."""

import json
from dataclasses import replace

import pytest

from attnscope.results.page.heads import tabs_of_others
from attnscope.results.reports import report_of
from tests.report.planted_result import planted, scan_page


def with_signature(result, **changed):
    signature = {"command": "scan", "model": "planted", "corpus": "c0ffee"} | changed
    return result.assign_attrs(signature=json.dumps(signature))


def test_the_scan_beside_an_explanation_fills_its_tab_for_the_same_model_texts_and_heads(tmp_path):
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    scan = with_signature(made.result)
    scan_page(scan, made.sample, tmp_path / "a scan" / "report.html")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "report.html").write_text('<script type="application/json" id="data">{"kind"</script>')
    heads = {"layers": [0, 1, 2], "heads": [0, 1, 2, 3]}

    def tabs(heads=heads, **changed):
        report = report_of("scan", with_signature(made.result, **changed))
        return tabs_of_others(replace(report, command="explain"), heads, {"why"}, tmp_path / "explanation")

    (text, effect), numbers = tabs()
    assert (text.name, text.page, effect.page, effect.command) == ("text", "../a%20scan/report.html", "", "intervene")
    assert text.finding == report_of("scan", scan).finding.headline
    own = {one["name"]: one for one in numbers["text"]["quantities"]}
    assert own["Entropy of the weights"]["values"][6] == pytest.approx(
        float(made.result.entropy[:, 1, 2].mean()), rel=1e-4
    )
    (text, _), numbers = tabs({"layers": [0, 1], "heads": [0, 1, 2, 3]})
    assert text.page
    assert not numbers
    assert not tabs(corpus="another")[0][0].page
    assert not tabs(model="another")[0][0].page
