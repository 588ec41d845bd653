"""How a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnscope.capture.placement import Placement


@dataclass(frozen=True)
class Loading:
    """Options of `attnscope.capture.load.load_model`."""

    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    placement: Placement | None = None

    @classmethod
    def of(cls, reading: Mapping[str, Any]) -> Loading:
        """By the options of a verb."""
        placement = None
        if reading.get("device_map") is not None:
            placement = Placement(reading["device_map"], reading["max_memory"])
        return cls(reading["revision"], reading["device"], reading["dtype"], reading["trust_remote_code"], placement)


AS_SAVED = Loading()
