"""`attnscope compare` trains, translates, prints tables and writes a page; mistakes are said on one or two lines."""

import csv
import io
import json

import pytest
import yaml

from attnscope.report.signature import Signature
from attnscope_lineage import comparison as held_out
from tests.cli.command import attnscope
from tests.packages.lineage.compare.small_systems import SMALL

QUICK = ["--beams", "1", "--resamples", "20", "--threads", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the settings of two systems, and both compared."""
    folder = tmp_path_factory.mktemp("compare")
    for attention in ("none", "additive"):
        (folder / f"{attention}.yaml").write_text(yaml.safe_dump(SMALL | {"attention": attention}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "HELD_OUT", 30)
        yield folder


@pytest.fixture(scope="module")
def compared(place):
    found = attnscope("compare", "none.yaml", "additive.yaml", "--out", "out", *QUICK, "--legend", cwd=place)
    assert found.returncode == 0, found.stderr
    return found


def test_the_tables_fit_a_terminal_and_name_the_files(compared, place):
    assert max(map(len, compared.stdout.split("AER:")[0].splitlines())) <= 80
    for part in (
        "additive",
        "BLEU",
        "AER",
        "Controls: diagonal",
        "By source length",
        "results: out",
        "out/report.html",
        "p: paired bootstrap over sentences",
    ):
        assert part in " ".join(compared.stdout.split())
    assert "train additive" in compared.stderr
    assert {path.name for path in (place / "out" / "figures").glob("*.svg")} == {
        "bleu.svg", "length.svg", "learning.svg", "gradients.svg", "alignment.svg",
    }  # fmt: skip


def test_folders_that_were_trained_give_the_same_numbers_as_json_and_csv(compared, place):
    folders = ["out/systems/none", "out/systems/additive", "--out", "again", "--no-report", *QUICK]
    found = json.loads(attnscope("compare", *folders, "--by-length", "2,4", "--json", cwd=place).stdout)
    systems, lengths, curves = (found["tables"][name] for name in ("systems", "lengths", "learning_curves"))
    assert [row["system"] for row in systems] == ["none", "additive"]
    first = [row for row in lengths if row["system"] == "none"]
    assert sum(row["sentences"] for row in first) == 30
    assert [row["length"] for row in first] == ["1-2", "3-4", "5+"]
    assert [row["updates"] for row in curves if row["system"] == "none"] == [3, 6]
    assert systems[0]["alignment_error_rate"] is None
    assert not (place / "again" / "report.html").exists()
    rows = list(csv.DictReader(io.StringIO(attnscope("compare", *folders, "--csv", cwd=place).stdout)))
    assert [float(row["bleu"]) for row in rows] == pytest.approx([row["bleu"] for row in systems], rel=1e-5)
    signature = Signature.from_json((place / "again" / "run.json").read_text(encoding="utf-8"))
    assert {row["signature"] for row in rows} == {signature.short}
    assert int(float(rows[0]["parameters"])) == systems[0]["parameters"]


def test_mistakes_are_reported(tmp_path, refused):
    (tmp_path / "empty").mkdir()
    (tmp_path / "fine.yaml").write_text("updates: 5\n")
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "one.txt").write_text("a\n")
    refused("compare", "gone.yaml", says="gone.yaml: no such file or folder")
    refused("compare", "empty", says="empty contains no finished model")
    refused("compare", "two.txt", says="two.txt contains a str; expected settings")
    refused("compare", "fine.yaml", "--json", "--csv", says="choose one")
    both = ["--text", "two.txt", "--target", "one.txt"]
    refused("compare", "fine.yaml", *both, says="two.txt has 2 lines and one.txt 1")
    refused("compare", "fine.yaml", "--by-length", "ten", says="--by-length is 'ten'; expected whole numbers")
    refused("compare", "fine.yaml", "--line", "0", says="line (--line) is 0")
    refused("compare", "fine.yaml", "--out", "two.txt", says="two.txt")
