"""The command as a user types it: its table, its formats, its page, and what it says to bad input."""

import csv
import html
import io
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnscope.bundled import MODEL
from attnscope.store.arrays import unpacked
from tests.cli.command import attnscope


def explain(*arguments, cwd):
    found = attnscope("explain", *arguments, cwd=cwd)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_default_does_everything_and_again_answers_from_what_it_has(tmp_path):
    place = tmp_path
    said = explain("--limit", "4", cwd=place)
    (run,) = (place / "attnscope-runs").iterdir()
    page = (run / "report.html").read_text(encoding="utf-8")
    lede = html.unescape(re.sub(r"<.*?>", "", page[page.index("<h1") : page.index("<main")]))
    sentence = "queries and keys alone predict the offset of all 4 heads (0.75 by chance, p < 0.001)."
    assert sentence in " ".join(said.split())
    assert sentence in " ".join(lede.split())
    assert "already finished" not in said
    assert "A weight is a mixing coefficient, not an explanation. Legend: add --legend or open the report." in " ".join(
        said.split()
    )
    assert run.name.startswith("explain-small-mlm-")
    assert {"run.json", "verdict.npz", "report.html", "figures"} <= {path.name for path in run.iterdir()}
    assert {path.suffix for path in (run / "figures").iterdir()} == {".svg"}
    assert "Why the heads of" in page
    assert "rotation effect" in page  # not defined for this model, and told so
    stamp = (run / "verdict.npz").stat().st_mtime_ns
    answer = json.loads(explain("--limit", "4", "--json", "--no-report", cwd=place))
    heads = answer["tables"]["heads"]
    assert len(heads) == 12
    assert heads[0]["agree"]
    assert any(note.startswith("Skipped:") and "rotation effect" in note for note in answer["notes"])
    assert answer["signature"]["settings"]["windows"] == 4
    assert (run / "verdict.npz").stat().st_mtime_ns == stamp


def test_options_reach_the_analyses_and_the_page(tmp_path, monkeypatch):
    asked = []

    def page(path, _, report, **__):
        asked.append((report.heads, "interventions" in report.result.children))
        path.write_text("")
        return path

    monkeypatch.setattr("attnscope.results.page.parts.write_page", page)
    monkeypatch.setattr("attnscope.results.figures.explain.explain_figures", lambda *_: [])
    settings = ("--window", "32", "--limit", "2", "--frequencies", "3:10", "--band", "4")
    shown = explain(
        *settings, "--interventions", "--layer", "2", "--head", "1", "--out", "run", "--figures", "none", cwd=tmp_path
    )
    assert "report:  run/report.html" in shown
    signature = json.loads((tmp_path / "run" / "run.json").read_text())
    assert signature["settings"] | {"window": 32, "band": 4, "frequencies": [3, 10]} == (signature["settings"])
    changed = unpacked((tmp_path / "run" / "interventions.npz").read_bytes())
    forms = [
        explain(*settings, "--interventions", "--out", "run", "--no-report", form, cwd=tmp_path)
        for form in ("--json", "--csv")
    ]
    answer, rows = json.loads(forms[0]), list(csv.DictReader(io.StringIO(forms[1])))
    verdict = unpacked((tmp_path / "run" / "verdict.npz").read_bytes())
    changes = answer["tables"]["interventions"]
    preferring = {(row["layer"], row["head"]) for row in changes}
    assert len(preferring) == int(verdict.prefers.sum()) < verdict.prefers.size == len(rows)
    assert answer["finding"]["text"].split(".")[0] in " ".join(shown.split())
    at = {"layer": 0, "head": 1}
    one = next(row for row in changes if row | at | {"change": "words-zero"} == row)
    assert one["weight_after"] == float(changed.sel(change="words-zero", **at).mass_after)
    assert one["weight_change_low"] is one["weight_change_high"] is None  # of two windows there is no interval
    assert asked == [([(2, 1)], True)]


class TestBadInput:
    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            (("--layer", "3"), "there is no layer 3 (layer, head): layers go from 0 to 2, heads from 0 to 3"),
            (("--layer", "1", "--head", "-1"), "there is no head 1.-1 (layer, head): layers go from 0 to 2"),
            (("--band", "16"), "band (--band) is 16; in windows of 16 tokens the largest offset is 15"),
            (("--frequencies", "20:30"), "windows of 16 tokens have 1 to 8 cycles"),
            (("--frequencies=-1:5",), "as in 3:60"),
            (("--frequencies=3:",), "as in 3:60"),
            (("--frequencies=60:3",), "as in 3:60"),
            (("--limit", "1"), "expected 2 windows or more, to separate position from text"),
            (("--window", "5"), "windows of 5 tokens are too short for waves; expected 6 or more"),
        ],
    )
    def test_what_does_not_exist(self, refused, asked, says):
        refused("explain", "--window", "16", "--limit", "2", *asked, says=says)

    def test_weights_that_are_not_numbers(self, refused, tmp_path):
        model = shutil.copytree(MODEL, tmp_path / "model")
        tensors = load_file(model / "model.safetensors")
        tensors["encoder.layers.0.self_attention.q_proj.weight"][0, 0] = torch.nan
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        refused(
            "explain", model, "--limit", "2", says="contain NaN or infinity in encoder.layers.0.self_attention.q_proj"
        )
