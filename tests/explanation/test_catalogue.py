"""To add an analysis takes one file."""

from dataclasses import replace

import pytest

from attnscope import AttnscopeError, explain
from attnscope.explanation import analyses, catalogue, report
from attnscope.explanation import explain as _explain
from attnscope.report.schema import Quantity

FILE = """
import xarray as xr

from attnscope.explanation.study import analysis


@analysis("toy", "Heads of each layer", "Attention")
def toy(study, *, times=1):
    return xr.Dataset({"heads": ("layer", [times * layer.heads for layer in study.evidence.layers])})
"""


def test_an_analysis_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(FILE)
    monkeypatch.setattr(analyses, "__path__", [*analyses.__path__, str(tmp_path)])
    known = {one.name: one for one in catalogue._records()}
    monkeypatch.setattr(_explain, "ANALYSES", [known["toy"]])
    assert explain(limit=2)["toy"].heads.values.tolist() == [4, 4, 4]
    assert known["toy"](limit=2, times=2).heads.values.tolist() == [8, 8, 8]


def test_two_columns_of_one_name_are_an_error(monkeypatch):
    """Else one would be shown under the heading of the other."""
    tree = explain(limit=2)
    first, second, *others = catalogue.ANALYSES
    named = [replace(one, columns=lambda _: {"agree": Quantity("agree")}) for one in (first, second)]
    monkeypatch.setattr(report, "known_analyses", lambda: {one.name: one for one in (*named, *others)})
    with pytest.raises(AttnscopeError, match=f"'agree' of two analyses, {first.name} and {second.name}"):
        report.rank_explanations(tree)
