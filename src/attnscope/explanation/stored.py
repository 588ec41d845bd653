"""Explanations in run folders."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.capture.load import Model, load_model
from attnscope.explanation.arrays.components import principal_components
from attnscope.explanation.arrays.spectrum import amplitude_spectrum
from attnscope.explanation.tables import position_table
from attnscope.store.runs import RunFolder
from attnscope.support.arguments import validated


@validated
def load_explanation(run: RunFolder) -> xr.DataTree:
    """The tree that `explain` returned, from the folder of a finished run."""
    finished: dict[str, Any] = run.state["analyses"]
    analyses = {str(name): run.part(name) for name in finished["names"]}
    for number, other in enumerate(run.state.get("also", [])):
        table = run.part(other["file"])
        analyses[f"also/{number}"] = table.assign_attrs(model=other["model"], identity=other["identity"])
    tree = xr.DataTree.from_dict(analyses)
    skipped = json.dumps(dict(finished["skipped"]))
    more = json.dumps(finished["requested"])
    tree.attrs = run.state["attributes"] | {"skipped": skipped, "more": more, "run": str(run.path)}
    return tree


@dataclass(frozen=True)
class OtherTable:
    """The position table of another model, for comparison."""

    name: str
    identity: dict[str, str]
    rows: Float[np.ndarray, "position column"]

    @classmethod
    def of(cls, source: Model, *, trust_remote_code: bool) -> OtherTable:
        """Load the model and keep its table."""
        device = "cpu" if isinstance(source, str | Path) else None
        loaded = load_model(source, need_tokenizer=False, device=device, trust_remote_code=trust_remote_code)
        return cls(loaded.name, loaded.identity, position_table(loaded.model).rows)

    @property
    def file(self) -> str:
        """Its file in the run folder, named after its weights, as other models may be added later."""
        return f"also-{hashlib.sha256(self._identity.encode()).hexdigest()[:12]}"

    @property
    def _identity(self) -> str:
        return json.dumps(self.identity, sort_keys=True)

    def named(self) -> dict[str, str]:
        """Its entry in the run's state."""
        return {"file": self.file, "model": self.name, "identity": self._identity}

    def analysed(self) -> xr.Dataset:
        """Spectrum and principal components of the table alone."""
        spectrum = amplitude_spectrum(self.rows).drop_dims("column")
        analysis = spectrum.merge(principal_components(self.rows), combine_attrs="override")
        return analysis.assign_attrs(model=self.name, identity=self._identity)
