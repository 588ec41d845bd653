"""Every role of every head of one model, over the windows of all probes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from attnscope.attention import output_of
from attnscope.capture import Site, device_of, forward, layer_coordinates, verify, watching
from attnscope.detection._catalogue import ROLES
from attnscope.detection._seen import equal_call
from attnscope.statistics import EQUAL, Reading
from attnscope.store import padded_heads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.attention import AttentionCall
    from attnscope.detection._probes import Probe


def sites_of(model: PreTrainedModel, probe: Probe) -> list[Site]:
    """Check that what is captured is what the model does, and list its attention calls.

    Raises
    ------
    AttnscopeError
        If it is not.
    """
    sites, _ = verify(model, _inputs(model, probe, [0]), text=probe.windows[0].source, weights_suffice=True)
    return sites


@torch.no_grad()
def measured(
    model: PreTrainedModel,
    sites: Sequence[Site],
    probes: Sequence[Probe],
    names: Sequence[str],
    tell: Callable[[int], None],
    *,
    with_equal: bool,
) -> xr.Dataset:
    """Score each window: ``(text | repeated | needle, layer, head)`` for each role, NaN where it is not asked.

    Parameters
    ----------
    model
        In eval mode, verified.
    sites
        Its attention calls.
    probes
        What it reads.
    names
        Roles.
    tell
        Told of windows done.
    with_equal
        Whether to score equal weights too: ``equal_...``, without the dimension of heads.
    """
    variables: dict[str, Any] = {}
    for probe in probes:
        observer = _Observer(
            probe, [name for name in names if ROLES[name].probe == probe.kind], with_equal=with_equal
        )
        for numbers in probe.batches():
            observer.numbers = numbers
            with watching(model, observer, weights_suffice=True):
                forward(model, _inputs(model, probe, numbers), observer.name_of, with_head=False)
            tell(len(numbers))
        for name, layers in observer.scores(sites).items():
            dims = (probe.kind, "layer", *(() if name.startswith(EQUAL) else ("head",)))
            variables[name] = (dims, layers)
    made = xr.Dataset(variables, layer_coordinates(sites))
    return made.assign_coords(head=np.arange(made.sizes["head"]))


@dataclass(eq=False)
class _Observer:
    """Scores each attention call as it happens."""

    probe: Probe
    names: Sequence[str]
    with_equal: bool
    numbers: Sequence[int] = ()
    kept: dict[str, dict[int, list[tuple[Sequence[int], np.ndarray]]]] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        self.heads[site.index] = call.query.shape[1]
        names = [name for name in self.names if site.kind in ROLES[name].layers]
        tokens = len(self.probe.windows[self.numbers[0]])
        if not names or call.query.shape[2] != tokens or call.key.shape[2] != tokens:
            return output_of(call)  # the layer has other places than tokens
        seen = self.probe.look(self.numbers, call)
        self._keep(site, names, seen, "")
        if self.with_equal:
            self._keep(site, names, self.probe.look(self.numbers, equal_call(call)), EQUAL)
        return seen.output

    def name_of(self, text: int) -> str:
        """What to call a text of the batch."""
        return self.probe.windows[self.numbers[text]].source

    def _keep(self, site: Site, names: Sequence[str], seen: Any, start: str) -> None:
        for name in names:
            score = ROLES[name].score(seen).cpu().numpy()
            layers = self.kept.setdefault(start + name, {})
            layers.setdefault(site.index, []).append((self.numbers, score[:, 0] if start else score))

    def scores(self, sites: Sequence[Site]) -> dict[str, np.ndarray]:
        """``(window, layer, head)``, and of equal weights ``(window, layer)``."""
        stacked: dict[str, np.ndarray] = {}
        starts = ("", EQUAL) if self.with_equal else ("",)
        for name in (start + role for role in self.names for start in starts):
            of_layers = [self._of_layer(name, site) for site in sites]
            together = np.stack(of_layers) if name.startswith(EQUAL) else padded_heads(of_layers, axis=1)
            stacked[name] = np.moveaxis(together, 0, 1)
        return stacked

    def _of_layer(self, name: str, site: Site) -> np.ndarray:
        windows = len(self.probe.windows)
        shape = (windows,) if name.startswith(EQUAL) else (windows, self.heads[site.index])
        whole = np.full(shape, np.nan)
        for numbers, score in self.kept.get(name, {}).get(site.index, []):
            whole[list(numbers)] = score
        return whole


def _inputs(model: PreTrainedModel, probe: Probe, numbers: Sequence[int]) -> dict[str, Tensor]:
    windows = [probe.windows[number] for number in numbers]
    return Reading.of(windows, 0, device_of(model)).inputs(model)
