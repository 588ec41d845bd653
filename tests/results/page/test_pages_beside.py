"""A page shows what the other pages in its folder found for the same model and texts."""

import json
import os
import re
from dataclasses import replace

import pytest

from attnscope import set_language
from attnscope.results.page.heads import DATA, beside, numbers_tab, of_report, tabs_of_others
from attnscope.results.page.parts import write_page
from attnscope.results.reports import report_of
from attnscope.store.folder import OwnedFolder
from attnscope.store.runs import RunFolder
from tests.results.page.planted_result import planted, scan_page


def with_signature(result, **changed):
    signature = {"command": "scan", "model": "planted", "corpus": {"sha256": "c0ffee"}} | changed
    return result.assign_attrs(signature=json.dumps(signature))


def finished(folder, result, sample):
    """The run of a scan with its page."""
    with RunFolder(folder, json.loads(result.attrs["signature"])) as run:
        run.write({"report.html": lambda page: scan_page(result, sample, page)})
        run.finish()
    return folder / "report.html"


def test_the_scan_beside_an_explanation_fills_its_tab_for_the_same_model_texts_and_heads(tmp_path):
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    scan = with_signature(made.result)
    finished(tmp_path / "a scan", scan, made.sample)
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
    assert not tabs(corpus={"sha256": "another"})[1]
    assert not tabs(model="another")[1]


def data_of(page):
    return json.loads(page.read_text(encoding="utf-8").partition(DATA)[2].partition("</script>")[0])


def test_a_later_page_joins_what_is_there_as_far_as_it_verifies_and_changes_nothing(tmp_path):
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    scan = with_signature(made.result)
    page = finished(tmp_path / "elsewhere" / "scan", scan, made.sample)
    finished(tmp_path / "runs" / "other texts", with_signature(made.result, corpus={"sha256": "another"}), made.sample)
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere" / "scan")
    for name in ("report.html", "manifest.json"):
        (tmp_path / "runs" / name).mkdir()
        os.mkfifo(tmp_path / "runs" / name / name)
    report = replace(report_of("scan", scan), command="explain")
    later = tmp_path / "runs" / "explain" / "report.html"

    def joined():
        """What the page of an explanation shows of other runs; these are as they were."""
        before = [(file, file.read_bytes()) for file in sorted(tmp_path.rglob("*")) if file.is_file() and file != later]
        tab, heads = numbers_tab("explain"), of_report(report)
        write_page(
            later,
            "report",
            report,
            heads=heads,
            tabs=[tab],
            scripts=["profile.js"],
            run=later.parent,
            sections=[],
            tables=[],
        )
        assert all(file.read_bytes() == content for file, content in before)
        return data_of(later)["beside"]

    assert joined() == {"text": beside(tmp_path / "runs" / "linked" / "report.html", data_of(page), data_of(later))}
    page.write_text(page.read_text().replace("</body>", '<script>alert("tampered")</script></body>'))
    assert joined() == {}
    assert OwnedFolder(page.parent, "scan").look().damaged() == ["report.html"]


def test_a_page_shows_no_words_of_a_page_in_another_language(tmp_path):
    made = planted(layers=3, heads=4, texts=12, tokens=48, rank=12)
    scan = with_signature(made.result)
    set_language("ja")
    try:
        finished(tmp_path / "scan", scan, made.sample)
    finally:
        set_language("en")
    data = data_of(tmp_path / "scan" / "report.html")
    assert re.search("[ぁ-ん]", json.dumps(data["quantities"], ensure_ascii=False))
    report = replace(report_of("scan", scan), command="explain")
    _, shown = tabs_of_others(report, {"layers": [0, 1, 2], "heads": [0, 1, 2, 3]}, {"why"}, tmp_path / "explanation")
    assert not re.search("[ぁ-ん]", json.dumps(shown, ensure_ascii=False))
    assert shown["text"]["finding"]
