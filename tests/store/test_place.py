"""A run folder is a local folder with a name."""

from pathlib import Path

import pytest

import attnscope
from attnscope import AttnscopeError
from attnscope.results.describe import describe
from attnscope.results.export import export
from tests.store.test_hostile import VERBS as FOLDERS

VERBS = FOLDERS | {
    "diff": lambda out: attnscope.diff("one", "one", out=out),
    "compare": lambda out: attnscope.compare(["none.yaml"], out=out),
    "open_run": attnscope.open_run,
    "runs": attnscope.runs,
    "describe": describe,
    "export": lambda out: export(out, "csv"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", [Path("s3://bucket/run"), ""])
def test_another_place_is_rejected(verb, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttnscopeError, match=r"is a URL|is ''; expected the name of a folder|not an encoder-decoder"):
        VERBS[verb](place)
    assert not [*tmp_path.iterdir()]
