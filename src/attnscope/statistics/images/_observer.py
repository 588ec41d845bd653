"""One batch of images through a watched vision encoder: every statistic of every head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from attnscope.statistics._catalogue import EQUAL, PATCH_STATISTICS, STATISTICS
from attnscope.statistics._leaving import LeavingLayers
from attnscope.statistics._pass import Marks, measure_call
from attnscope.statistics.images._patches import equal_call, measure_patches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Site
    from attnscope.statistics.images._grid import Grid

HAVE_EQUAL = ("patch_profile", "same_row", "same_column", "class_token", "registers", "patch_distance")


@dataclass(eq=False)
class PatchObserver:
    """Measures each attention call of images side by side.

    Attributes
    ----------
    names, band
        Which statistics, and the largest offset in patches.
    grid
        Grid of these images; None where patches are not known.
    images
        How many there are.
    measured
        By site index, ``(image, head, ...)``.
    elsewhere
        Sites whose queries or keys are not the tokens of `grid`, such as windows and pooled layers.
    """

    names: Sequence[str]
    band: int
    grid: Grid | None
    images: int
    elsewhere: list[int] = field(default_factory=list)
    measured: LeavingLayers = field(default_factory=LeavingLayers)
    _equal: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        batch, heads = call.query.shape[:2]
        every = torch.ones(batch, call.query.shape[2], dtype=torch.bool, device=call.query.device)
        keys = torch.ones(batch, call.key.shape[2], dtype=torch.bool, device=call.query.device)
        of_rows = [name for name in self.names if name in STATISTICS]
        output, numbers = measure_call(call, of_rows or ["entropy"], 0, 0, Marks(every, keys, ~keys))
        numbers = {name: values for name, values in numbers.items() if name.removeprefix(EQUAL) in of_rows}
        if batch != self.images:  # windows of each image, one after the other
            numbers = {
                name: values.unflatten(0, (self.images, -1)).mean(1) for name, values in numbers.items()
            }
        wanted = [name for name in self.names if name in PATCH_STATISTICS]
        if self._is_on_grid(call):
            numbers |= self._of_patches(call, wanted)
        else:
            self.elsewhere.append(site.index)
            numbers |= self._missing(wanted, heads)
        self.measured[site.index] = numbers
        return output

    def _is_on_grid(self, call: AttentionCall) -> bool:
        tokens = None if self.grid is None else self.grid.tokens
        return call.query.shape[0] == self.images and tokens == call.query.shape[2] == call.key.shape[2]

    def _of_patches(self, call: AttentionCall, wanted: Sequence[str]) -> dict[str, Tensor]:
        if not wanted or self.grid is None:
            return {}
        measured = measure_patches(call, self.grid, self.band)
        plain = call.mask is None and call.bias is None
        equal = self._equal.get(call.query.shape[2]) if plain else None
        if equal is None:
            equal = measure_patches(equal_call(call), self.grid, self.band)
        if plain:
            self._equal[call.query.shape[2]] = equal
        return {name: measured[name] for name in wanted} | {
            f"{EQUAL}{name}": equal[name].expand(self.images, *equal[name].shape[1:])
            for name in wanted
            if name in HAVE_EQUAL
        }

    def _missing(self, wanted: Sequence[str], heads: int) -> dict[str, Tensor]:
        """NaN for what a layer without rows and columns does not have."""
        width = 2 * self.band + 1
        missing: dict[str, Tensor] = {}
        for name in wanted:
            beyond = (width, width) if name == "patch_profile" else ()
            missing[name] = torch.full((self.images, heads, *beyond), torch.nan, dtype=torch.float64)
            if name in HAVE_EQUAL:
                missing[f"{EQUAL}{name}"] = missing[name][:, :1]
        return missing
