"""Why a head attends where it does: its scores, split by the components behind its queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from attnscope.explanation.circuits import gains_of
from attnscope.explanation.inputs import model_inputs, token_ids
from attnscope.explanation.stream import residual_stream
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.stream_parts import SEVERAL, StreamParts
from attnscope.statistics.effects import by_document
from attnscope.statistics.units import units_of
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.kernels.call import AttentionCall
    from attnscope.read.windows import Batch

SIDES = ("query", "key")
#: Keys whose scores are compared with the mean key of the row. All but the first are known without the scores.
RELATIONS = (
    "strongest key", "first or special token", "token itself", "previous token", "next token",
    "token after the same token", "same token",
)  # fmt: skip
_FEW = 128  # sources; with more, all heads of a layer are one source of a pair
_PAIRS = 20  # reported


class ScoreParts:
    """The parts of the scores of one head, window by window."""

    @torch.no_grad()
    def __init__(self, session: PredictionSession, head: tuple[int, int]) -> None:
        """Find all writers to the stream before the head, and the norms on the way."""
        self.session, (self.number, self.head), model = session, head, session.model
        sides = [side for window in session.windows for side in (window, window.target or window)]
        start = token_ids([max(sides, key=len).ids])
        stream = residual_stream(model, model_inputs(model, start))
        name, layers = session.loaded.name, {layer.matrices.site.index: layer for layer in stream.layers}
        if self.number not in layers or not 0 <= self.head < stream.calls[self.number].query.shape[1]:
            raise AttnscopeError(f"{name} has no head {self.number}.{self.head}: choose another (--head)")
        self.made, self.points = layers[self.number].matrices, (layers[self.number].query, layers[self.number].key)
        self.parts = StreamParts(model, stream, self.points)
        odd = any(point.norm is not None and point.fold is None for point in self.points)
        unknown = "its norm is no LayerNorm or RMSNorm" * odd or self.made.reason * (self.made.form == "unknown")
        if reason := unknown or stream.unknown(self.parts.before):
            raise AttnscopeError(f"the scores of layer {self.number} of {name} have no known parts: {reason}")
        self.sources, self.names = self.parts.sources, self.parts.names
        grouped = [f"heads of {layer}" if kind == "head" else "" for kind, layer, _ in self.sources]
        few = len(self.names) <= _FEW
        self.groups = [few * name or group or name for name, group in zip(self.names, grouped, strict=True)]

    @torch.no_grad()
    def of_batch(self, part: slice) -> xr.Dataset:
        """Sums over the queries of some windows."""
        windows, model, made, name = self.session.windows[part], self.session.model, self.made, self.session.loaded.name
        batch = self.session.batch(part).batch
        self.parts.run(batch.inputs(model), self.session.name(part.start), with_head=False)
        heads, (W_Q, b_Q, W_K, b_K) = (self.head, self.head // made.group), made.of_head(self.head)
        call = self.parts.calls[self.number][0]
        captured = call.query[:, heads[0]].double(), call.key[:, heads[1]].double()
        split = list[Tensor]()
        for side, matrix, bias in ((0, W_Q, b_Q), (1, W_K, b_K)):
            actual, norm = captured[side], made.norms.get(SIDES[side])
            both = torch.from_numpy(matrix).to(actual), torch.from_numpy(bias).to(actual).expand_as(actual)
            parts, _ = self.parts.split(self.points[side], *both, self.number, (len(actual), actual.shape[1]))
            if norm is not None:
                gain = gains_of(model.get_submodule(norm), len(cast("Any", (made.query, made.key)[side])), len(bias))
                parts = parts * torch.from_numpy(gain[heads[side] % len(gain)]).to(parts)
            parts = parts if made.rotation is None else made.rotation(parts)
            if made.form == "normalised":  # its own denominators
                whole = parts.sum(0)
                parts = parts * ((actual * whole).sum(-1) / (whole * whole).sum(-1).clamp(min=1e-300))[..., None]
            split.append(parts)
        (query, key), sides = (made.scale * split[0], split[1]), batch.sides(made.site.kind)
        apart = query.sum(0) @ key.sum(0).mT - call.scale * captured[0] @ captured[1].mT
        apart = (apart.abs() * sides[0].valid[:, :, None] * sides[1].valid[:, None]).amax((1, 2))
        size = query.norm(dim=-1).sum(0).amax(1) * key.norm(dim=-1).sum(0).amax(1)
        if bool((apart > max(self.parts.rounding, SEVERAL * made.rounding) * size).any()):
            raise AttnscopeError(
                f"the parts of {name} do not add up to its scores (by {float(apart.max()):.1e}). Try dtype float32 "
                "(--dtype float32)"
            )
        rows = [self._of_text(call, sides, query[:, text], key[:, text], text) for text in range(len(windows))]
        dims = {"part": ("side", "source"), "pair": ("query_source", "key_source")}
        variables: dict[str, Any] = {
            name: (("window", "relation", *dims.get(name, ())), np.stack([row[name] for row in rows]))
            for name in rows[0]
        }
        columns, groups = zip(*self.sources, ("score", -1, -1), strict=True), [*dict.fromkeys(self.groups)]
        coordinates: dict[str, Any] = {
            "window": np.arange(part.start, part.stop), "relation": [*RELATIONS], "side": [*SIDES],
            "source": [*self.names, "position bias"], "query_source": groups, "key_source": groups,
            **{name: ("source", [*values]) for name, values in zip(("kind", "layer", "head"), columns, strict=True)},
            "document": ("window", np.array(self.session.documents[part], dtype=object)),
        }  # fmt: skip
        return xr.Dataset(variables | {"difference": ("window", apart.cpu().numpy())}, coordinates)

    def _of_text(
        self, call: AttentionCall, sides: tuple[Batch, Batch], query: Tensor, key: Tensor, text: int
    ) -> dict[str, np.ndarray]:
        """Sums over the queries of one text."""
        seen = call.allowed(text, self.head) & sides[1].valid[text]
        at = (sides[0].valid[text] & (seen.sum(1) > 1)).nonzero()[:, 0]
        seen, query = seen[at], query[:, at]
        even, bias = seen / seen.sum(1, keepdim=True).double(), torch.zeros(seen.shape).to(query)
        if call.bias is not None:
            own = call.bias[min(text, len(call.bias) - 1), min(self.head, call.bias.shape[1] - 1)][at]
            bias = torch.where(seen, own.double(), 0)
        scores = query.sum(0) @ key.sum(0).T + bias
        top = nn.functional.one_hot(scores.masked_fill(~seen, -torch.inf).argmax(1), seen.shape[1]).bool()
        keys = torch.cat([top[None], self._keys(sides, text, at)]) & seen
        there = keys.any(-1) & (seen & ~keys).any(-1)
        apart = (keys / keys.sum(-1, keepdim=True).clamp(min=1) - even) * there[..., None]
        of_sides = (
            torch.einsum("snr,knr->ks", query, apart @ key.sum(0)),
            torch.einsum("sjr,kjr->ks", key, apart.mT @ query.sum(0)),
        )
        of_bias = (apart * bias).sum((1, 2))[:, None, None].expand(-1, 2, 1)
        member = torch.tensor([[own == group for own in self.groups] for group in dict.fromkeys(self.groups)])
        left, right = (torch.einsum("gs,snr->gnr", member.to(side), side) for side in (query, key))
        found = {
            "rows": there.sum(1),
            "chosen": ((keys & top).any(-1) & there).sum(1),
            "chance": (keys * even * there[..., None]).sum((1, 2)),
            "excess": (apart * scores).sum((1, 2)),
            "part": torch.cat([torch.stack(of_sides, 1), of_bias], 2),
            "pair": torch.stack([torch.einsum("gnr,hnr->gh", left, own @ right) for own in apart]).float(),
        }
        return {name: values.cpu().numpy() for name, values in found.items()}

    def _keys(self, sides: tuple[Batch, Batch], text: int, at: Tensor) -> Tensor:
        """Keys of each query with each name but the first."""
        own, other = sides[0].input_ids[text][at][:, None], sides[1].input_ids[text]
        key, query = torch.arange(len(other), device=at.device), at[:, None]
        sinks = ((key == 0) | sides[1].special[text]).expand(len(at), -1)
        follows = (other.roll(1) == own) & (key != query) & (key != query + 1)
        found = [key == query, key == query - 1, key == query + 1, follows, (other == own) & (key != query)]
        return torch.stack([sinks, *(one & ~sinks & (self.made.site.kind != "cross") for one in found)])


def shares_of(measured: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Share of the excess of the score that each source has on each side, and each pair, with intervals."""
    units, called = units_of(measured.document.values.tolist())
    part, excess = measured.part.values, measured.excess.values
    if not excess.any():
        raise AttnscopeError("the head gives all keys of a row one score, so there is nothing to split")
    found = {name: np.full(part.shape[1:], np.nan) for name in ("share", "share_low", "share_high")}
    found |= {name: np.zeros(part.shape[1:], bool) for name in ("shown", "tested")}
    sums = measured.pair.sum("window").values
    largest = np.argsort(-abs(sums).reshape(len(sums), -1), 1, kind="stable")[:, :_PAIRS]
    pairs = np.full((3, *largest.shape), np.nan)
    for at in np.flatnonzero(excess.sum(0) > 0):
        over: Any = {"over": excess[:, at], "seed": seed}
        for name, values in zip(found, by_document(part[:, at], units, **over), strict=True):
            found[name][at] = values
        own = measured.pair.values[:, at].reshape(len(part), -1)[:, largest[at]]
        pairs[:, at] = by_document(own.astype(float), units, **over)[:3]
    found["shown"][0] = found["tested"][0] = False  # the scores choose these keys
    places = np.stack(np.unravel_index(largest, sums.shape[1:]))
    ends = [measured[name].values[one] for name, one in zip(("query_source", "key_source"), places, strict=True)]
    variables: dict[str, Any] = {name: (("relation", "side", "source"), values) for name, values in found.items()}
    names = ("pair_share", "pair_low", "pair_high", "query_source", "key_source")
    variables |= {name: (("relation", "pair"), values) for name, values in zip(names, (*pairs, *ends), strict=True)}
    variables |= {name: measured[name].sum("window") for name in ("rows", "chosen", "chance", "excess")}
    coordinates = {name: measured[name] for name in ("relation", "side", "source", "kind", "layer", "head")}
    attributes = {"intervals_over": called, "windows": len(part), "difference": float(measured.difference.max())}
    return xr.Dataset(variables, coordinates, attributes)
