"""`attnscope align` prints links, or judges them and writes a page."""

import json

import pytest

import attnscope
import attnscope_lineage
from attnscope_lineage.alignment import links_of
from tests.cli.command import attnscope as command
from tests.packages.lineage.translation.small_translators import small_model, small_tokenizer

SOURCES = ["der hund", "a b c", "das haus ist alt"]
TARGETS = ["the dog", "b c a", "the house is old"]


@pytest.fixture
def system(tmp_path):
    folder = tmp_path / "system"
    small_model("bart").save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    (tmp_path / "source.txt").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "target.txt").write_text("\n".join(TARGETS) + "\n")
    (tmp_path / "gold.txt").write_text("1-1 2-2\n1-3 2p1\n1-1 9-1\n")
    return tmp_path


def run(folder, *arguments):
    found = command("align", "system", "source.txt", "--target", "target.txt", *arguments, cwd=folder)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_links_are_printed_line_by_line(system):
    out = run(system, "--layer", "1", "--head", "0")
    aligned = attnscope_lineage.align(system / "system", SOURCES, TARGETS, layer=1, head=0)
    assert out == "".join(line + "\n" for line in links_of(aligned))


def test_json_and_a_folder_with_page_figures_and_links(system):
    out = run(system, "--gold", "gold.txt", "--out", "run", "--json")
    found = json.loads(out)
    links = [row["links"] for row in found["tables"]["links"]]
    rates = [row["error_rate"] for row in found["tables"]["heads"]]
    assert found["tables"]["scores"][0]["error_rate"] == min(rates)
    assert (system / "run" / "links.txt").read_text().splitlines() == links
    opened = attnscope.open_run(system / "run")
    assert links_of(opened) == links
    assert json.loads(opened.attrs["signature"]) == found["signature"]
    assert sorted(opened["heads"]["error_rate"].values.ravel().tolist()) == rates
    page = (system / "run" / "report.html").read_text()
    assert page.count('<details class="sentences"') == 3
    assert {path.name for path in (system / "run" / "figures").glob("*.svg")} == {
        "heads.svg", "pair-1.svg", "pair-2.svg", "pair-3.svg",
    }  # fmt: skip


def test_a_run_of_other_settings_is_not_replaced(system, refused):
    shown = run(system, "--gold", "gold.txt", "--out", "run")
    for words in ("head 0", "error rate", "1 gold link beyond the end of the sentence", "The best of many heads."):
        assert words in shown
    run(system, "--gold", "gold.txt", "--out", "run")
    texts = [system / "source.txt", "--target", system / "target.txt"]
    refused("align", system / "system", *texts, "--out", system / "run", says="holds another run")
    run(system, "--out", "other", "--shown", "1")
    assert {path.name for path in (system / "other" / "figures").glob("*.svg")} == {"pair-1.svg"}
    assert "error rate" not in (system / "other" / "report.html").read_text()


def test_standard_error_says_why_there_is_no_page_and_else_nothing(system):
    def said(out, *more):
        words = ("system", "source.txt", "--target", "target.txt", "--out", out, *more)
        found = command("align", *words, cwd=system)
        assert found.returncode == 0, found.stderr
        return found.stderr

    assert said("1") == ""
    assert said("2", "--shown", "0") == "no report.html: --shown is 0\n"
    assert said("3", "--shown", "0", "--gold", system / "gold.txt") == ""
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        (system / f"{name}.txt").write_text("\n".join(["a " * 41, *lines, "", ""]))
    assert said("4") == ""
    assert "2 sentence pairs without a figure: no word, or more" in (system / "4" / "report.html").read_text()
    for name in ("source", "target"):
        (system / f"{name}.txt").write_text("a " * 41 + "\n")
    assert said("5") == "no report.html: no pair has between 1 and 40 words on both sides\n"
    (system / "gold.txt").write_text("1-1\n")
    assert said("6", "--gold", system / "gold.txt") == ""
    assert "1 sentence pair without a figure" in (system / "6" / "report.html").read_text()


def test_mistakes_are_reported(system, refused):
    both = [system / "source.txt", "--target", system / "target.txt"]
    refused("align", system / "system", *both, "--shown", "3", says="--shown draws sentence pairs into --out")
    refused("align", system / "system", *both, "--gold", system / "source.txt", says="'der' is not a link")


def test_a_rate_that_is_of_nothing_is_a_dash(system):
    """People called no link sure: nothing can be recalled."""
    (system / "gold.txt").write_text("1p1\n1p3\n1p1\n")
    out = run(system, "--gold", "gold.txt", "--out", "run")
    assert "recall –." in out
    assert "nan" not in out
    assert "recall –." in (system / "run" / "report.html").read_text(encoding="utf-8")
