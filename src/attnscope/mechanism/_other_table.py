"""The position table of another model, which `explain` shows beside the one that it explains."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.capture import load_model
from attnscope.mechanism.arrays import amplitude_spectrum, principal_components
from attnscope.mechanism.evidence import position_table

if TYPE_CHECKING:
    from attnscope.capture import Model


@dataclass(frozen=True)
class OtherTable:
    """The position table of a model that is only compared by it."""

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
        """Its file in the run folder, by what its weights are: a run may be asked again with others."""
        return f"also-{hashlib.sha256(self._identity.encode()).hexdigest()[:12]}"

    @property
    def _identity(self) -> str:
        return json.dumps(self.identity, sort_keys=True)

    def named(self) -> dict[str, str]:
        """What the run notes of it."""
        return {"file": self.file, "model": self.name, "identity": self._identity}

    def analysed(self) -> xr.Dataset:
        """Spectrum and principal components of the table alone."""
        spectrum = amplitude_spectrum(self.rows).drop_dims("column")
        analysis = spectrum.merge(principal_components(self.rows), combine_attrs="override")
        return analysis.assign_attrs(model=self.name, identity=self._identity)
