"""Results on several models in one table: means are those of the verb's table, heads those of each model."""

import json

import numpy as np
import pytest
import torch

import attnscope
from attnscope import AttnscopeError
from attnscope.capture.borrow import quiet
from attnscope.capture.load import load_model
from attnscope.model_names import models_of
from attnscope.results.reports import figures_of, report_of
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


def test_models_are_compared_by_what_colours_the_map():
    """Not by the first column that is tested: the change with shuffled weights is left of the effects."""
    result = attnscope.intervene(limit=8, window=32, ablations=["mean"], steps=0)
    colour = report_of("intervene", result).colour
    report = several({"one": result, "other": result})
    assert report.result.attrs["quantity"] == colour
    first = next(one.name for one in report_of("intervene", result).tables[0].quantities if one.significant)
    assert first != colour


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


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Three checkpoints of the bundled model, whose weights grow."""
    folder = tmp_path_factory.mktemp("training")
    loaded = load_model("bundled")
    for step in (10, 200, 3000):
        with torch.no_grad():
            for weight in loaded.model.parameters():
                weight.mul_(1 + step / 10_000)
        with quiet():
            loaded.model.save_pretrained(folder / f"checkpoint-{step}")
        loaded.tokenizer.save_pretrained(folder / f"checkpoint-{step}")
    return folder


HOW = {"limit": 8, "window": 32, "ablations": ["mean"], "steps": 0, "why": False}


def test_a_folder_of_checkpoints_is_one_table_of_resumable_runs(checkpoints, tmp_path):
    """A series that was stopped in its second model leaves the first; repeated, it has the numbers of single calls."""
    out, at = tmp_path / "runs", []

    def stop(progress):
        at.append(progress)
        if progress.details["model"] == "checkpoint-200 (2 of 3)":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attnscope.intervene(checkpoints, out=out, progress=stop, **HOW)
    assert at[-1].share >= 1 / 3
    first = (out / "checkpoint-10" / "manifest.json").stat().st_mtime_ns
    results = attnscope.intervene(checkpoints, out=out, **HOW)
    assert (out / "checkpoint-10" / "manifest.json").stat().st_mtime_ns == first
    assert [*results] == ["checkpoint-10", "checkpoint-200", "checkpoint-3000"]
    alone = attnscope.intervene(checkpoints / "checkpoint-200", **HOW)
    assert results["checkpoint-200"]["effects"].loss_change.equals(alone["effects"].loss_change)
    report = results.report()
    assert [row["step"] for row in report.rows] == [10, 200, 3000]
    drawn = figures_of(report)["steps"].axes[0].lines[-1]  # the mean over heads
    assert np.allclose(drawn.get_xydata(), [[row["step"], row["mean_mean"]] for row in report.rows])
    assert several([out]).rows == report.rows  # the folder of the runs
    assert "checkpoint-10: " in repr(results)


def test_a_model_that_fails_is_named_and_the_others_stay(checkpoints, tmp_path):
    names = f"{checkpoints}/checkpoint-10,nowhere,{checkpoints}/checkpoint-200"
    done = command("scan", names, "--limit", "2", "--window", "32", "--out", "runs", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere failed: the model nowhere is not a folder here" in done.stderr
    assert [row["model"] for row in json.loads(done.stdout)["tables"]["models"]] == ["checkpoint-10", "checkpoint-200"]
    assert {path.name for path in (tmp_path / "runs").iterdir()} >= {"checkpoint-10", "checkpoint-200", "report.html"}


def test_models_that_differ_are_joined_as_far_as_they_compare(tmp_path):
    results = attnscope.scan({"one": "bundled", "other": "bundled:pronoun"}, ["The tide is out."] * 4, by_line=True)
    report = results.report("entropy")
    assert [row["model"] for row in report.rows] == ["one", "other"]
    assert "other" not in report.tables[1].rows[0]
    assert report.notes == [
        "The table of heads leaves out other (2 x 1): it has models of 3 layers x 4 heads.",
        "Tokenizers of other and one differ: a number for each token is of other tokens.",
        "Settings of the models differ: batch_size, window.",
    ]
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(AttnscopeError, match=r"holds other files \(notes.txt\); expected runs"):
        attnscope.scan(["bundled", "bundled:pronoun"], out=tmp_path)
    with pytest.raises(AttnscopeError, match=r"^there is no head 9\.9|bundled: there is no head 9\.9"):
        attnscope.intervene(["bundled", "bundled:tasks"], heads="9.9", limit=2)


def test_names_of_models(checkpoints, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoints)
    assert [*models_of("a,b")] == ["a", "b"]
    assert [*models_of("checkpoint-*")] == [*models_of(".")] == ["checkpoint-10", "checkpoint-200", "checkpoint-3000"]
    assert [*models_of(["x/1/model", "x/2/model"])] == ["1/model", "2/model"]
    loaded = ["bundled", torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    assert [*models_of(loaded)] == ["bundled", "Linear 1", "Linear 2"]
    with pytest.raises(AttnscopeError, match="model is a list with None"):
        models_of([None, "gpt2"])
    for one in (None, "gpt2", "The tide, and the boats", tmp_path, checkpoints / "checkpoint-10"):
        assert models_of(one) is None
    with pytest.raises(AttnscopeError, match="no folder of that name has a model"):
        models_of("nothing-*")
