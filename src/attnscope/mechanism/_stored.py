"""An explanation as its run folder holds it, without the model."""

from __future__ import annotations

import json
from typing import Any

import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.store import RunFolder


def load_explanation(run: RunFolder) -> xr.DataTree:
    """The tree that `explain` returned.

    Other models' tables (``also/0``, ...) are left out: the folder does not keep which of them were asked for.

    Parameters
    ----------
    run
        A finished run of ``explain``, opened.

    Raises
    ------
    AttnscopeError
        If an analysis is damaged or gone.
    """
    finished: dict[str, Any] = run.state["analyses"]
    analyses = {name: run.load(name) for name in finished["names"]}
    lost = [name for name, dataset in analyses.items() if dataset is None]
    if lost:
        raise AttnscopeError(
            f"{run.path} has no {lost[0]}: give the same command again, which makes anew what is not there"
        )
    tree = xr.DataTree.from_dict(analyses)
    attributes = {"signature": run.signature.to_json(), "model": run.signature.name}
    tree.attrs = (
        attributes
        | run.state.get("attributes", {})
        | {
            "skipped": json.dumps(dict(finished["skipped"])),
            "run": str(run.path),
        }
    )
    return tree
