"""How a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnscope.capture.placement import Placement
from attnscope.support.errors import AttnscopeError


@dataclass(frozen=True)
class Loading:
    """Options of `attnscope.capture.load.load_model`."""

    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    placement: Placement | None = None
    dry_run: bool = False  # whether shapes suffice: no weights are read

    @classmethod
    def of(cls, reading: Mapping[str, Any]) -> Loading:
        """By the options of a verb."""
        placement, device_map, most = None, reading.get("device_map"), reading.get("max_memory")
        if most is not None and device_map is None:
            raise AttnscopeError("max_memory (--max-memory) needs device_map (--device-map): give both")
        if device_map is not None:
            placement = Placement(device_map, most)
        options = {name: reading[name] for name in ("revision", "device", "dtype", "trust_remote_code")}
        return cls(**options, placement=placement, dry_run=reading.get("dry_run", False))


AS_SAVED = Loading()
