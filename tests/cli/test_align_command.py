"""`attnscope align` prints links, or judges them and writes a page."""

import json
import sys

import pytest

import attnscope
from attnscope.cli import main
from attnscope.lineage.links import pharaoh
from attnscope.results.account import headline_of
from tests.cli.command import attnscope as attnscope_command
from tests.translation.small_translators import small_model, small_tokenizer

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


def run(monkeypatch, capfd, folder, *arguments):
    files = [str(folder / "source.txt"), "--target", str(folder / "target.txt")]
    monkeypatch.setattr(sys, "argv", ["attnscope", "align", str(folder / "system"), *files, *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capfd.readouterr()
    assert stopped.value.code == 0, err
    return out


def test_links_are_printed_line_by_line(system, monkeypatch, capfd):
    out = run(monkeypatch, capfd, system, "--layer", "1", "--head", "0")
    aligned = attnscope.align(system / "system", SOURCES, TARGETS, layer=1, head=0)
    assert out == "".join(pharaoh(links) + "\n" for links in aligned.links)


def test_gold_gives_a_table_of_all_heads(system, monkeypatch, capfd):
    out = run(monkeypatch, capfd, system, "--gold", str(system / "gold.txt"))
    assert "head 1" in out
    assert "error rate" in out
    assert "1 gold link points past the end of its sentence" in out
    assert "chosen on these very sentences" in out


def test_a_rate_that_is_of_nothing_is_a_dash(system, monkeypatch, capfd):
    """People called no link sure: nothing can be recalled."""
    (system / "gold.txt").write_text("1p1\n1p3\n1p1\n")
    out = run(monkeypatch, capfd, system, "--gold", str(system / "gold.txt"), "--out", str(system / "run"))
    assert "recall –, " in out
    assert "nan" not in out
    assert headline_of("align", attnscope.open_run(system / "run"))[0].endswith("recall –.")
    assert "recall –)" in (system / "run" / "report.html").read_text(encoding="utf-8")


def test_json_and_a_folder_with_page_figures_and_links(system, monkeypatch, capfd):
    out = run(monkeypatch, capfd, system, "--gold", str(system / "gold.txt"), "--out", str(system / "run"), "--json")
    found = json.loads(out)
    links = [row["links"] for row in found["tables"]["links"]]
    rates = [row["error_rate"] for row in found["tables"]["heads"]]
    assert found["tables"]["scores"][0]["error_rate"] == min(rates)
    assert (system / "run" / "links.txt").read_text().splitlines() == links
    opened = attnscope.open_run(system / "run")
    assert [pharaoh(links) for links in opened.links] == links
    assert json.loads(opened.signature) == found["signature"]
    assert opened.heads["error_rate"].values.ravel().tolist() == rates
    page = (system / "run" / "report.html").read_text()
    assert page.count('<details class="sentences"') == 3
    assert {path.name for path in (system / "run" / "figures").glob("*.svg")} == {
        "heads.svg", "pair-1.svg", "pair-2.svg", "pair-3.svg",
    }  # fmt: skip


def test_a_run_without_gold_leaves_nothing_of_an_earlier_one(system, monkeypatch, capfd):
    out = system / "run"
    run(monkeypatch, capfd, system, "--gold", str(system / "gold.txt"), "--out", str(out))
    (out / "figures" / "mine.svg").write_text("")
    run(monkeypatch, capfd, system, "--out", str(out), "--shown", "1")
    assert {path.name for path in (out / "figures").glob("*.svg")} == {"pair-1.svg", "mine.svg"}
    assert "error rate" not in (out / "report.html").read_text()
    run(monkeypatch, capfd, system, "--out", str(out), "--shown", "0")
    assert not (out / "report.html").exists()


def test_tasks_wait_for_each_other_and_the_last_one_draws(system, monkeypatch, capfd):
    given = "--out", str(system / "run"), "--batch-size", "1", "--task"
    assert run(monkeypatch, capfd, system, *given, "2/2") == ""
    assert not (system / "run").exists()
    assert "report: " in run(monkeypatch, capfd, system, *given, "1/2")
    assert (system / "run" / "report.html").is_file()


def test_a_folder_with_other_files_is_refused(system, refused):
    texts = [system / "source.txt", "--target", system / "target.txt"]
    for name in ("report.html", "links.txt", "figures/heads.svg"):
        (system / name).parent.mkdir(exist_ok=True)
        (system / name).write_text("mine")
        refused("align", system / "system", *texts, "--out", system, says="holds other files")
        assert (system / name).read_text() == "mine"


def test_standard_error_says_why_there_is_no_page_and_else_nothing(system):
    texts = [system / "source.txt", "--target", system / "target.txt", "--out", "run"]

    def said(*more):
        found = attnscope_command("align", system / "system", *texts, *more, cwd=system)
        assert found.returncode == 0, found.stderr
        return found.stderr

    assert said() == ""
    assert said("--shown", "0") == "no report.html: --shown is 0\n"
    assert said("--shown", "0", "--gold", system / "gold.txt") == ""
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        (system / f"{name}.txt").write_text("\n".join(["a " * 41, *lines, "", ""]))
    assert said() == "2 sentence pairs passed over for pictures: a side has no word, or more than 40\n"
    assert "Passed over: 2 of which a side has no word" in (system / "run" / "report.html").read_text()
    assert attnscope.open_run(system / "run").passed_over == 2
    for name in ("source", "target"):
        (system / f"{name}.txt").write_text("a " * 41 + "\n")
    assert said() == "no report.html: no pair has between 1 and 40 words on both sides\n"
    (system / "gold.txt").write_text("1-1\n")
    assert said("--gold", system / "gold.txt").startswith("no sentence pairs in report.html: no pair has")


def test_mistakes_are_said(system, refused):
    both = [system / "source.txt", "--target", system / "target.txt"]
    refused("align", system / "system", *both, "--shown", "3", says="--shown draws sentence pairs into --out")
    refused("align", "bundled", *both, says="is not an encoder-decoder")
    refused("align", system / "system", *both, "--layer", "7", says="there is no layer 7")
    refused("align", system / "system", *both, "--gold", system / "source.txt", says="'der' is not a link")
