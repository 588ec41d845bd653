"""A run folder is a local folder with a name."""

from pathlib import Path

import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.lineage.train import train
from attnscope.results.describe import describe
from attnscope.results.export import export
from attnscope.results.merge import merge
from tests.cli.command import attnscope as command

VERBS = {
    "scan": lambda out: attnscope.scan(texts=["The tide."], out=out),
    "generate": lambda out: attnscope.generate("bundled", ["The tide."], out=out),
    "roles": lambda out: attnscope.roles(texts=["The tide."], out=out),
    "explain": lambda out: attnscope.explain("bundled", ["The tide."], out=out),
    "intervene": lambda out: attnscope.intervene("bundled", ["The tide."], out=out),
    "patch": lambda out: attnscope.patch("bundled", pairs=[("The tide.", "The mud.")], out=out),
    "diff": lambda out: attnscope.diff("bundled", "bundled", ["The tide."], out=out),
    "align": lambda out: attnscope.align("bundled", ["a"], ["b"], out=out),
    "compare": lambda out: attnscope.compare(["none.yaml"], out=out),
    "train": lambda out: train(out=out),
    "open_run": attnscope.open_run,
    "runs": attnscope.runs,
    "merge": merge,
    "describe": describe,
    "export": lambda out: export(out, "csv"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["s3://bucket/run", "file:///tmp/run", Path("s3://bucket/run"), ""])
def test_another_place_is_rejected(verb, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttnscopeError, match=r"is a URL|is ''; expected the name of a folder"):
        VERBS[verb](place)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("place", ["s3://bucket/run", ""])
@pytest.mark.parametrize(
    "words",
    [
        ["scan", "--out"],
        ["train", "--out"],
        ["compare", "--out"],
        ["runs", "list"],
        ["runs", "show"],
        ["runs", "merge"],
        ["runs", "export", "run", "--to", "csv", "--out"],
    ],
    ids=" ".join,
)
def test_a_command_says_so_in_one_line(words, place, tmp_path):
    told = command(*words, place, cwd=tmp_path)
    assert told.returncode == 2
    assert len(told.stderr.strip().splitlines()) == 1, told.stderr
    assert not [*tmp_path.iterdir()]
