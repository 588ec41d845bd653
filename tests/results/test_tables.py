"""Tidy tables hold every entry of the arrays once, beside its labels."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from attnscope.results.export import rows_of, tables_of
from tests.results.planted import piece


@pytest.mark.parametrize("at_once", [1, 7, 45, 1 << 20])
def test_a_table_is_the_array_however_it_is_cut(at_once):
    given = piece(3, 4)
    dims, names = ("window", "layer", "head", "offset"), ["band_sum"]
    parts = list(rows_of(given, dims, names, at_once=at_once))
    table = pd.concat(parts)
    assert all(len(part) <= max(at_once, 2 * 3 * 5) for part in parts)
    assert len(table) == given.band_sum.size
    back = table.set_index(list(dims)).band_sum.to_xarray()
    np.testing.assert_array_equal(back.values, given.band_sum.values)
    for dim in dims[1:]:
        np.testing.assert_array_equal(back[dim], given[dim] if dim in given.coords else range(3))
    by_name = table.astype({"layer_name": object})[["layer", "layer_name"]].drop_duplicates()
    assert by_name.to_numpy().tolist() == [[0, "encoder.0"], [3, "encoder.3"]]


def test_tables_are_named_by_the_dimensions_that_variables_share():
    given = xr.Dataset(
        {"a": (("x", "y"), np.ones((2, 3))), "b": (("y", "x"), np.ones((3, 2))), "c": ("x", [1, 2]), "d": 4.0}
    )
    assert tables_of(given) == {("x", "y"): ["a", "b"], ("x",): ["c"], (): ["d"]}


def test_other_orders_of_dimensions_are_turned():
    turned = xr.Dataset({"a": (("x", "y"), [[1, 2, 3], [4, 5, 6]]), "b": (("y", "x"), [[1, 4], [2, 5], [3, 6]])})
    (table,) = rows_of(turned, ("x", "y"), ["a", "b"])
    assert table.a.tolist() == table.b.tolist() == [1, 2, 3, 4, 5, 6]


def test_dimensions_without_labels_are_numbered_on_from_part_to_part():
    given = xr.Dataset({"a": ("x", [5.0, 6.0, 7.0])})
    assert pd.concat(rows_of(given, ("x",), ["a"], at_once=2)).x.tolist() == [0, 1, 2]


def test_coordinates_over_several_dimensions_stand_at_their_places():
    given = xr.Dataset(
        {"a": (("x", "y"), [[1, 2], [3, 4]])}, {"kind": (("y", "x"), np.array([["p", None], ["q", "p"]], dtype=object))}
    )
    (table,) = rows_of(given, ("x", "y"), ["a"])
    assert [None if pd.isna(one) else one for one in table.kind] == ["p", "q", None, "p"]


def test_an_empty_array_is_a_table_without_rows():
    (table,) = rows_of(xr.Dataset({"a": ("x", np.zeros(0))}), ("x",), ["a"])
    assert list(table.columns) == ["x", "a"]
    assert table.empty
