"""Tables and methods for a paper: what LaTeX reads, and what a paragraph has to name."""

import re

import pytest

import attnscope
from attnscope.report.render import as_latex, latex_text
from attnscope.report.schema import HEAD, Finding, Quantity, Report, Table, effect_quantity
from attnscope.results.export import export
from attnscope.results.methods import methods
from tests.cli.command import attnscope as command

ROW = {"layer": 1, "head": 2, "token": " a_b%", "loss_mean": -0.25, "loss_low": -0.5, "loss_high": -0.125}
LOSS = effect_quantity("loss", meaning="change of the loss")


@pytest.fixture(scope="module")
def matters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matters") / "run"
    attnscope.intervene(limit=8, window=32, ablations=["zero"], steps=0, why=False, out=folder)
    return folder


def test_a_table_of_latex_escapes_marks_and_aligns():
    table = Table(
        "heads", "Heads & tokens", (*HEAD, Quantity("token", unit="token"), LOSS), [ROW | {"loss_shown": True}],
        corrected="for all heads",
    )  # fmt: skip
    made = as_latex(Report("", "1 head", Finding([], ""), [table], None, command="intervene", model="my_model"))
    assert r"\begin{tabular}{rlr}" in made
    assert r"1.2 & \textvisiblespace{}a\_b\% & $-$0.250* ($-$0.500 to $-$0.125) \\" in made
    assert r"Heads \& tokens: my\_model, 1 head." in made
    assert "corrected for all heads. head: layer.head, from 0. " not in made  # no meaning is made up
    assert made.count("{") == made.count("}")


def test_only_a_minus_is_a_minus():
    assert latex_text("small-mlm-2, -3 to -1, 2-3 \\ ~") == (
        r"small-mlm-2, $-$3 to $-$1, 2-3 \textbackslash{} \textasciitilde{}"
    )


def test_methods_name_quantity_null_correction_number_seed_versions_and_sources(matters):
    described = methods(matters)
    text = " ".join(described.sentences)
    for part in (
        "12 heads ablated over 8 windows",
        "zero: change of the loss when the head's output is zero",
        "under the null each of these units is as likely to have the other sign",
        "Significance is corrected for all heads and ablations.",
        "seed 0",
        "torch 2.",
        "Signature: intervene|model:small-mlm|",
    ):
        assert part in text
    cited = re.findall(r"^@\w+\{(\w+),", described.bibtex, re.MULTILINE)
    assert cited == ["hesterberg2015", "winkler2014", "hall1992", "attnscope"]
    assert re.findall(r"\\citealp\{(\w+)\}", described.latex) == cited[:-1]


def test_the_export_has_tables_methods_and_references(matters, tmp_path):
    made = export(matters, "latex", out=tmp_path / "paper")
    assert sorted(file.name for file in made.iterdir()) == ["methods.tex", "references.bib", "tables.tex"]
    shown = command("runs", "show", "run", "--methods", cwd=matters.parent).stdout
    assert (made / "references.bib").read_text(encoding="utf-8") in shown
    table = command("intervene", "--limit", "8", "--window", "32", "--ablations", "zero", "--steps", "0", "--no-why",
                    "--no-report", "--out", "run", "--latex", cwd=matters.parent)  # fmt: skip
    assert table.stdout == (made / "tables.tex").read_text(encoding="utf-8") + "\n"
    assert not table.stderr


def test_a_report_without_rows_says_its_finding():
    table = Table("changes", "Changes", HEAD, [])
    finding = Finding([], "", headline="No head changed_")
    report = Report("", "12 heads", finding, [table], None, command="diff", model="my_model")
    assert as_latex(report).splitlines()[1:] == [r"% No head changed\_"]
