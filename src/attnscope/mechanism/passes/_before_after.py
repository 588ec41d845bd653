"""Profiles, traces and outputs of every head before a change and after it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.capture import layer_coordinates
from attnscope.mechanism.evidence import interval, mean_profile, profile_and_output, score_traces
from attnscope.mechanism.passes._checks import check_target

if TYPE_CHECKING:
    from attnscope.capture import Site


@dataclass(eq=False)
class BeforeAfter:
    """Profiles, traces and outputs of every head, before and after."""

    band: int
    layer: int | None
    order: np.ndarray | None = None
    sites: dict[int, Site] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)  # of the batch, before
    parts: dict[tuple[str, str], dict[int, list[np.ndarray]]] = field(default_factory=dict)

    def before(self, site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, self.band)
        if self._wanted(site):
            self.sites[site.index] = site
            self.outputs[site.index] = output
            self._keep("", "profile", site, profile)
            self._keep("", "trace", site, score_traces(call, self.band))
        return output

    def after(self, name: str) -> Callable[[Site, AttentionCall], Tensor]:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            profile, output = profile_and_output(call, self.band)
            if self._wanted(site):
                self._keep(name, "profile", site, profile)
                self._keep(name, "trace", site, score_traces(call, self.band))
                self._keep(name, "output", site, _relative(output, self.outputs[site.index]))
                if self.order is not None:
                    self._keep(name, "by_id", site, mean_profile(_reordered(call, self.order), self.band))
            return output

        return observe

    def _wanted(self, site: Site) -> bool:
        return site.kind != "cross" if self.layer is None else site.index == self.layer

    def _keep(self, name: str, what: str, site: Site, values: Tensor) -> None:
        self.parts.setdefault((name, what), {}).setdefault(site.index, []).append(
            values.double().cpu().numpy()
        )

    def _stacked(self, name: str, what: str) -> np.ndarray:
        """``(text, layer, head, ...)``, NaN where there is no such number."""
        order = sorted(self.sites)
        layers = self.parts.get((name, what), {})
        like = self.parts["", "profile"]
        texts, heads = sum(map(len, like[order[0]])), max(values[0].shape[1] for values in like.values())
        rest = () if what == "output" else (2 * self.band + 1,)
        stacked = np.full((texts, len(order), heads, *rest), np.nan)
        for row, index in enumerate(order):
            if index in layers:
                layer = np.concatenate(layers[index])
                stacked[:, row, : layer.shape[1]] = layer
        return stacked

    def dataset(
        self,
        names: Sequence[str],
        target: np.ndarray | None,
        units: Sequence[Hashable],
        draws: int,
        seed: int,
    ) -> xr.Dataset:
        before = self._stacked("", "profile")
        at: np.ndarray = (
            np.nan_to_num(before.mean(0), nan=-1.0).argmax(-1) - self.band if target is None else target
        )
        check_target(at, before.shape[1:3], self.band)
        after, by_id, trace, output = (
            np.stack([self._stacked(name, what) for name in names], 1)
            for what in ("profile", "by_id", "trace", "output")
        )
        index = (at + self.band)[..., None]
        mass = np.take_along_axis(before, index[None], -1)[..., 0]
        mass_after = np.take_along_axis(after, index[None, None], -1)[..., 0]
        variables: dict[str, Any] = {
            "target": (("layer", "head"), at, {"long_name": "offset", "units": "tokens"})
        }
        heads = ("layer", "head")
        for name, values, dims in (
            ("profile_before", before, (*heads, "offset")),
            ("profile_after", after, ("change", *heads, "offset")),
            ("profile_by_id", by_id, ("change", *heads, "offset")),
            ("trace_before", self._stacked("", "trace"), (*heads, "offset")),
            ("trace_after", trace, ("change", *heads, "offset")),
            ("mass_before", mass, heads),
            ("mass_after", mass_after, ("change", *heads)),
            ("mass_change", mass_after - mass[:, None], ("change", *heads)),
            ("output_change", output, ("change", *heads)),
        ):
            ends = interval(values, units, draws=draws, seed=seed)
            for end, part in zip(("", "_low", "_high"), ends, strict=True):
                variables[name + end] = (dims, part)
        sites = [self.sites[index] for index in sorted(self.sites)]
        return xr.Dataset(
            variables,
            coords={
                "change": list(names),
                **layer_coordinates(sites),
                "head": np.arange(before.shape[2]),
                "offset": np.arange(-self.band, self.band + 1),
            },
        )


def _relative(after: Tensor, before: Tensor) -> Tensor:
    """Norm of the change of each head's output, ``(batch, head)``, as a share of the norm before."""
    change, norm = ((states.double().flatten(2)).norm(dim=-1) for states in (after - before, before))
    return torch.where(change > 0, change / norm, 0.0)


def _reordered(call: AttentionCall, position_ids: np.ndarray) -> AttentionCall:
    """The same call with its tokens in the order of their position ids."""
    order = torch.from_numpy(np.argsort(position_ids)).to(call.query.device)

    def pairs(matrix: Tensor | None) -> Tensor | None:
        return None if matrix is None else matrix[:, :, order][:, :, :, order]

    mask = call.mask
    if call.causal:
        heads = 1 if mask is None else mask.shape[1]
        texts = range(1 if mask is None else mask.shape[0])
        mask = torch.stack(
            [torch.stack([call.allowed(text, head) for head in range(heads)]) for text in texts]
        )
    return replace(
        call,
        query=call.query[:, :, order],
        key=call.key[:, :, order],
        value=call.value[:, :, order],
        causal=False,
        mask=pairs(mask),
        bias=pairs(call.bias),
    )
