"""A summary in Python has each note and each sentence that the tables on a terminal have."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import scan as scan_tables
from attnscope.cli.output import CleanConsole
from attnscope.results.account import account_of
from tests.families import tiny

TEXTS = ["The tide comes in twice a day.", "It rained 12 days, and 3 nights.", "Boats lie on the mud."] * 4

#: How the columns of a table are read, and headings: where there is no table, they are of no use.
OF_TABLES = (
    "\n",  # headings
    "Equal: what",
    "* is significant",
    "and ",
    "offset",
    "weights",
    "position",
    "spectrum",
    "correlation",
    "scheme",
    "agree",
    "by chance",
    "share of",
    "chance",
    "An offset of about 0",
    "In --json",
)


@pytest.fixture
def printed(monkeypatch):
    """What a command prints of a result: its lines, and all of it without line breaks."""

    def lines_of(result):
        lines = []

        def note(_, *parts, **__):
            lines.extend(part for part in parts if isinstance(part, str))

        with monkeypatch.context() as patched, redirect_stdout(StringIO()):
            patched.setattr(CleanConsole, "print", note)
            scan_tables.print_tables(result)
        return lines

    return lines_of


@pytest.fixture(scope="module")
def held_apart(tmp_path_factory):
    """Texts by language, and texts that all have one."""
    folder = tmp_path_factory.mktemp("texts")
    for name, languages in (("both", ["en", "fr"]), ("one", ["en"])):
        lines = [
            json.dumps({"text": text, "language": languages[number % len(languages)]})
            for number, text in enumerate(TEXTS)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def scans(held_apart):
    ids = np.random.default_rng(0).integers(3, 60, (8, 60)).tolist()
    torch.manual_seed(0)
    return {
        "bloom": attnscope.scan(tiny("bloom"), ids, tokenizer="bundled", device="cpu"),
        "groups": attnscope.scan(texts=TEXTS, groups="kinds"),
        "entropy": attnscope.scan(texts=TEXTS, statistics="entropy"),
        "both": attnscope.scan(texts=held_apart / "both.jsonl", by="language"),
        "one": attnscope.scan(texts=held_apart / "one.jsonl", by="language"),
    }


@pytest.fixture(scope="module")
def others():
    return {
        "explain": attnscope.explain(limit=2, window=24),
        "roles": attnscope.roles(texts=[*TEXTS, "No."], only="previous_token", controls="none"),
    }


def sentences(lines):
    return [line.strip() for line in lines if line.strip() and not line.startswith(OF_TABLES)]


def test_a_summary_of_a_scan_has_what_the_terminal_says(printed, scans):
    for result in scans.values():
        summary, html = repr(result.attnscope), result.attnscope._repr_html_()
        lines = printed(result)
        groups = [line for line in lines if "Each is the largest of" in line]
        for sentence in sentences(line for line in lines if line not in groups):
            said = sentence.removeprefix(f"{result.attrs['model']}: ")
            assert said in summary
        assert lines[-2].strip() in summary  # the kinds of heads, or why there are none
        account = account_of("scan", result)
        everything = " ".join(lines)
        for sentence in (*account.notes, *account.care):
            assert sentence in everything
            assert sentence.split("'")[0] in html
        assert "A weight is a mixing coefficient" in summary


def test_a_bias_by_distance_is_told_where_heads_are_local(scans):
    for summary in (repr(scans["bloom"].attnscope), scans["bloom"].attnscope._repr_html_()):
        assert "which by itself can make heads local" in summary


def test_groups_and_what_is_held_apart_are_in_the_summary(printed, scans):
    groups, both, one = (scans[name] for name in ("groups", "both", "one"))
    said = next(line for line in printed(groups) if "Each is the largest of" in line)
    assert said.split(".")[0].split(" (")[0][1:] in repr(groups.attnscope)
    assert "Furthest above both is head " in repr(groups.attnscope)
    for result, expected in ((both, "language: en ("), (one, "language: all texts have the value en")):
        assert expected in repr(result.attnscope)
        heading = next(line for line in printed(result) if expected in line)
        assert heading.strip() in repr(result.attnscope)


def test_how_a_model_was_read_is_told_of_roles_and_explanations(others):
    assert "full windows of 24 tokens" in repr(others["explain"].attnscope)
    assert "left out" in repr(others["roles"].attnscope)
    tree = others["explain"].copy()
    tree.attrs["decoder"] = "Its decoder was read."
    assert "Its decoder was read." in repr(tree.attnscope)


def test_layers_that_are_counted_by_attention_are_told(scans):
    scan = scans["entropy"]
    named = scan.assign_coords(layer_name=("layer", [f"layers.{2 * number + 1}" for number in range(3)]))
    assert "Layers are counted by attention: 0 is layers.1" in repr(named.attnscope)
