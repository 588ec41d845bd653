"""A run read part by part is the run opened at once."""

import numpy as np
import pytest
import xarray as xr

from attnscope import AttnscopeError, open_run
from attnscope.lineage.align import Aligned
from attnscope.results.export import export
from attnscope.results.open import chosen, nodes_of, run_at, tree_of_alignment
from attnscope.store.runs import RunFolder
from tests.results.planted import SIGNATURE, explained_run, piece


def test_windows_of_pools_are_a_node_whose_pieces_are_the_part_that_opens(tmp_path):
    with RunFolder(tmp_path / "run", {"command": "scan", **SIGNATURE}) as run:
        for first in (0, 2):
            numbers = np.arange(3) + 2 * first
            windows = xr.Dataset({"window_length": ("pooled_window", [8, 7, 6])}, {"pooled_window": numbers})
            run.append(piece(first, 2), first, windows=windows)
        run.finish(attributes={})
    _, node = nodes_of(run_at(tmp_path / "run"))
    assert (node.name, node.along) == ("windows", "pooled_window")
    whole = xr.concat(list(node.pieces()), "pooled_window")
    xr.testing.assert_identical(whole, open_run(tmp_path / "run", part="windows"))
    made = export(tmp_path / "run", "csv", out=tmp_path / "tables", variables=["window_length"])
    assert (
        made / "windows" / "pooled_window.csv"
    ).read_text() == "pooled_window,window_length\n0,8\n1,7\n2,6\n4,8\n5,7\n6,6\n"


def test_a_tree_has_a_node_for_each_dataset(tmp_path):
    nodes = nodes_of(run_at(explained_run(tmp_path / "run")))
    assert [node.name for node in nodes] == ["verdict", "also/0"]
    assert [node.name for node in chosen(nodes, ["agree"])] == ["verdict"]
    assert [list(next(node.pieces()).data_vars) for node in chosen(nodes, ["form"])] == [["form"], ["form"]]
    with pytest.raises(AttnscopeError, match=r"no variable 'entropy': choose from agree, chance, form, share, swapped"):
        chosen(nodes, ["form", "entropy"])


def test_links_of_an_alignment_are_rows():
    links = [frozenset({(1, 0), (0, 2)}), frozenset[tuple[int, int]](), frozenset({(4, 4)})]
    tree = tree_of_alignment(Aligned("m", None, None, False, links, None, None, 0, [], "{}"))
    rows = tree["links"].to_dataset()
    found = np.stack([rows.line, rows.source_word, rows.target_word], -1).tolist()
    assert found == [[1, 0, 2], [1, 1, 0], [3, 4, 4]]
