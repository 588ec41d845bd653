"""One spelling of heads, understood everywhere."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from attnscope.head_names import head_of, heads_of, heads_or_sets, sets_of
from attnscope.support.errors import AttnscopeError

BOTH = [(4, 2), (5, 1)]


@pytest.mark.parametrize(
    "value",
    [
        "4.2,5.1",
        "4.2, 5.1",
        "L4H2,L5H1",
        "a4.h2,a5.h1",
        BOTH,
        tuple(BOTH),
        [[4, 2], [5, 1]],
        {(5, 1), (4, 2)},
        {"4.2", "5.1"},
        ["4.2", (5, 1), "4.2"],
        np.array(BOTH),
        [(np.int64(4), np.int64(2)), (5, 1)],
        pd.Series([True, False, True], pd.MultiIndex.from_tuples([(4, 2), (4, 3), (5, 1)])),
        pd.Series([0.5, 0.9, np.nan], pd.MultiIndex.from_tuples([(5, 1), (4, 2), (4, 3)])),
        pd.Series([2.0, 1.0], ["4.2", "5.1"]),
        pd.Series(["4.2", "5.1"]),
        pd.Series([1.0, 2.0], pd.MultiIndex.from_tuples([(1, 5), (2, 4)], names=["head", "layer"])),
        pd.DataFrame({"score": [0.3, 0.2], "head": [2, 1], "layer": [4, 5]}),
    ],
)
def test_every_form_is_the_same_heads(value):
    assert heads_of("heads", value) == BOTH


@pytest.mark.parametrize(
    "value", [pd.Series([1, 2]), pd.Series([4.2, 5.1]), pd.DataFrame({"layer": [4]}), pd.DataFrame([[4, 2]])]
)
def test_a_table_without_layers_and_heads_is_rejected(value):
    with pytest.raises(AttnscopeError, match=r"heads is a (Series over|data frame).*; expected"):
        heads_of("heads", value)


def test_one_head_is_a_list_of_one():
    assert heads_of("heads", (4, 2)) == heads_of("heads", "4.2") == heads_of("heads", [4, 2]) == [(4, 2)]
    assert head_of("head", "4.2") == (4, 2)
    assert heads_of("heads", "none") == heads_of("heads", []) == []


def test_an_array_of_booleans_chooses_and_numbers_rank():
    scores = xr.DataArray([[0.1, np.nan], [0.7, 0.4]], {"layer": [0, 1]}, ("layer", "head"))
    assert heads_of("heads", scores > 0.3) == [(1, 0), (1, 1)]
    assert heads_of("heads", scores) == [(1, 0), (1, 1), (0, 0)]
    assert heads_of("heads", scores.to_series().nlargest(1)) == [(1, 0)]
    with pytest.raises(AttnscopeError, match="dimensions role, layer, head; expected layer, head"):
        heads_of("heads", xr.concat([scores, scores], "role"))


def test_sets_are_joined_by_plus_or_are_lists():
    assert heads_or_sets("heads", "4.2+5.1,3.0") == [[(4, 2), (5, 1)], (3, 0)]
    assert heads_or_sets("heads", [BOTH, (3, 0)]) == [[(4, 2), (5, 1)], (3, 0)]
    assert sets_of("together", ["4.2+5.1", {(3, 0)}]) == [BOTH, [(3, 0)]]
    assert sets_of("together", [BOTH]) == [BOTH]
    with pytest.raises(AttnscopeError, match=r"heads has a set of heads \(4.2 and others\)"):
        heads_of("heads", "4.2+5.1")


def test_files_name_heads(tmp_path):
    for name, text in {
        "names.txt": "L4H2\nL5H1\n",
        "heads.yaml": 'attn_head_set: "4-2,5-1"\n',
        "list.json": json.dumps(BOTH),
        "names.json": '["4.2", "5.1"]',
        "report.json": json.dumps({"finding": {"heads": BOTH}}),
        "generation_config.json": json.dumps({"alignment_heads": BOTH}),
    }.items():
        path = tmp_path / name
        path.write_text(text)
        assert heads_of("heads", path) == heads_of("--heads", str(path)) == BOTH
    (tmp_path / "empty.txt").write_text("none here")
    with pytest.raises(AttnscopeError, match="names no heads"):
        heads_of("heads", tmp_path / "empty.txt")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(AttnscopeError, match="lists no heads"):
        heads_of("heads", tmp_path / "other.json")
    with pytest.raises(AttnscopeError, match="cannot read heads"):
        heads_of("heads", tmp_path / "absent.txt")


@pytest.mark.parametrize("value", [3, "4-x", "4.2;5.1", {"4.2": 1}, [(True, False)], [(1, 2, 3)], object()])
def test_anything_else_is_rejected(value):
    with pytest.raises(AttnscopeError, match="heads"):
        heads_of("heads", value)
