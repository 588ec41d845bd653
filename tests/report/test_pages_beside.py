"""A page shows what the other pages in its folder found for the same model and texts."""

import json
from dataclasses import replace

import pytest

from attnscope.results.page.heads import DATA, beside, numbers_tab, of_report, tabs_of_others
from attnscope.results.page.parts import write_page
from attnscope.results.reports import report_of
from attnscope.store.folder import OwnedFolder
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

    (text, effect), shown = tabs()
    assert (text.name, effect.name, effect.command, [*shown]) == ("text", "effect", "intervene", ["text"])
    assert shown["text"]["page"] == "../a%20scan/report.html"
    assert shown["text"]["finding"] == report_of("scan", scan).finding.headline
    own = {one["name"]: one for one in shown["text"]["quantities"]}
    assert own["Entropy of the weights"]["values"][6] == pytest.approx(
        float(made.result.entropy[:, 1, 2].mean()), rel=1e-4
    )
    _, shown = tabs({"layers": [0, 1], "heads": [0, 1, 2, 3]})
    assert shown["text"]["page"]
    assert not shown["text"]["quantities"]
    assert not tabs(corpus="another")[1]
    assert not tabs(model="another")[1]


def data_of(page):
    return json.loads(page.read_text(encoding="utf-8").partition(DATA)[2].partition("</script>")[0])


def test_the_page_of_a_later_run_is_shown_on_the_pages_that_were_there(tmp_path):
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    runs = {}
    for name, changed in {"scan": {}, "other": {"corpus": "another"}}.items():
        result = with_signature(made.result, **changed)
        with OwnedFolder(tmp_path / name, "scan") as folder:
            folder.write({"report.html": lambda page, result=result: scan_page(result, made.sample, page)})
        runs[name] = result
    before = data_of(tmp_path / "scan" / "report.html")
    report = replace(report_of("scan", runs["scan"]), command="explain")
    page = tmp_path / "explain" / "report.html"
    (tab, heads), run = (numbers_tab("explain"), of_report(report)), page.parent
    write_page(page, "report", report, heads=heads, tabs=[tab], scripts=["profile.js"], run=run, sections=[], tables=[])
    after = data_of(tmp_path / "scan" / "report.html")
    assert after.pop("beside") == {"why": beside(page, data_of(page), before)}
    assert after == {name: value for name, value in before.items() if name != "beside"}
    assert OwnedFolder(tmp_path / "scan", "scan").look().damaged() == []
    assert data_of(tmp_path / "other" / "report.html")["beside"] == {}
