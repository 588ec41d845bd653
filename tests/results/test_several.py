"""Results on several models in one table: means are those of the verb's table, heads those of each model."""

import json

import numpy as np
import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.results.reports import report_of
from attnscope.results.several import several
from tests.cli.command import attnscope as command


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    for kind in ("float32", "bfloat16"):
        how = {"limit": 8, "window": 32, "ablations": ["mean"], "steps": 0, "why": False}
        attnscope.intervene(dtype=kind, out=folder / kind, **how)
    attnscope.scan(limit=2, window=32, out=folder / "scan")
    return folder


def test_models_by_quantities_and_heads_by_models(place):
    results = {kind: attnscope.open_run(place / kind) for kind in ("float32", "bfloat16")}
    report = several(results)
    assert [row["model"] for row in report.rows] == [*results]
    for name, result in results.items():
        own = report_of("intervene", result).rows
        by_name = next(row for row in report.rows if row["model"] == name)
        assert by_name["mean_mean"] == pytest.approx(np.mean([row["mean_mean"] for row in own]))
        assert by_name["significant"] == sum(bool(row["mean_shown"]) for row in own)
        of_heads = {(row["layer"], row["head"]): row for row in report.tables[1].rows}
        for row in own:
            found = of_heads[row["layer"], row["head"]]
            assert (found[name], found[f"{name}_low"]) == (row["mean_mean"], row["mean_low"])
    apart = [abs(row["float32"] - row["bfloat16"]) for row in report.tables[1].rows]
    assert apart == sorted(apart, reverse=True)
    assert report.finding.sentences[0].startswith("float32: ")


def test_roles_are_compared_role_by_role():
    made = {kind: attnscope.roles(limit=2, window=32, controls="none", dtype=kind) for kind in ("float32", "bfloat16")}
    rows = several(made, quantity="score").tables[1].rows
    found = next(row for row in rows if (row["role"], row["layer"], row["head"]) == ("previous_token", 0, 3))
    for kind, result in made.items():
        assert found[kind] == pytest.approx(float(result.score.sel(role="previous_token")[0, 3]))


def test_the_command_prints_and_draws_runs(place):
    done = command("runs", "table", "float32", "bfloat16", "--json", "--page", "page.html", cwd=place)
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)["tables"]
    assert [row["model"] for row in tables["models"]] == ["float32", "bfloat16"]  # the folders: both are of one model
    assert len(tables["heads"]) == 12
    page = (place / "page.html").read_text(encoding="utf-8")
    assert "mean by model" in page
    assert "bfloat16" in page


def test_what_is_no_table_is_explained(place):
    with pytest.raises(AttnscopeError, match=r"found float32 \(intervene\), scan \(scan\); expected results of one"):
        several({name: attnscope.open_run(place / name) for name in ("float32", "scan")})
    with pytest.raises(AttnscopeError, match=r"found quantity \(--quantity\) 'none'; choose from "):
        several([place / "float32", place / "bfloat16"], quantity="none")
