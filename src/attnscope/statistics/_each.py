"""Several numbers of a head, each as a statistic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.statistics._catalogue import SEVERAL, wording

if TYPE_CHECKING:
    import xarray as xr


def with_each(result: xr.Dataset) -> xr.Dataset:
    """The result with a statistic for each of several numbers of a head: ``block_recall_5``, ``weight_at_-64``.

    For tables and comparisons, which have one column or line for each statistic.

    Parameters
    ----------
    result
        A scan.

    Examples
    --------
    >>> import xarray as xr
    >>> recall = xr.DataArray([[[0.5, 0.75]]], dims=("layer", "head", "kept"), coords={"kept": [5, 10]})
    >>> list(with_each(xr.Dataset({"block_recall": recall})))
    ['block_recall', 'block_recall_5', 'block_recall_10']
    """
    apart: dict[str, xr.DataArray] = {}
    for dim in SEVERAL:
        for own in of_several(result, dim):
            for name in (own, f"equal_{own}"):
                for one in result[dim].values.tolist() if name in result else ():
                    each = f"{name}_{one}"
                    value = result[name].sel({dim: one}, drop=True).drop_attrs()
                    apart[each] = value.assign_attrs(wording(each).attributes)
    return result.assign(apart)


def of_several(result: xr.Dataset, dim: str) -> list[str]:
    """Names of the variables that are several numbers of a head, along that dimension.

    For what draws or lists them: such a variable has a curve for each head, where others have a number.

    Parameters
    ----------
    result
        A scan.
    dim
        One of `SEVERAL`.

    Examples
    --------
    >>> import xarray as xr
    >>> of_several(xr.Dataset({"block_recall": (("layer", "head", "kept"), [[[0.5, 0.75]]])}), "kept")
    ['block_recall']
    """
    return [
        str(name)
        for name, variable in result.data_vars.items()
        if {"layer", "head", dim} <= set(variable.dims) <= {"text", "layer", "head", dim}
    ]
