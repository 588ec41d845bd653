"""Why a head attends where it does: its scores, split by the components behind its queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from attnscope.explanation.inputs import model_inputs, token_ids
from attnscope.explanation.stream import residual_stream
from attnscope.intervention.predictions import PredictionSession
from attnscope.statistics.effects import by_document
from attnscope.statistics.units import units_of
from attnscope.support.errors import AttnscopeError
from attnscope_circuits.stream_parts import SEVERAL, StreamParts
from attnscope_circuits.weights import gains_of

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
        longest = token_ids([max(sides, key=len).ids])
        stream = residual_stream(model, model_inputs(model, longest))
        name, layers = session.loaded.name, {layer.matrices.site.index: layer for layer in stream.layers}
        if self.number not in layers or not 0 <= self.head < stream.calls[self.number].query.shape[1]:
            raise AttnscopeError(f"{name} has no head {self.number}.{self.head}: choose another (--head)")
        layer = layers[self.number]
        self.matrices, self.points = layer.matrices, (layer.query, layer.key)
        self.parts = StreamParts(model, stream, self.points)
        if any(point.norm is not None and point.fold is None for point in self.points):
            reason = "its norm is no LayerNorm or RMSNorm"
        elif self.matrices.form == "unknown" and self.matrices.reason:
            reason = self.matrices.reason
        else:
            reason = stream.unknown(self.parts.before)
        if reason:
            raise AttnscopeError(f"the scores of layer {self.number} of {name} have no known parts: {reason}")
        self.sources, self.names = self.parts.sources, self.parts.names
        self.groups = self.names
        if len(self.names) > _FEW:
            named = zip(self.names, self.sources, strict=True)
            self.groups = [f"heads of {layer}" if kind == "head" else name for name, (kind, layer, _) in named]

    @torch.no_grad()
    def of_batch(self, part: slice) -> xr.Dataset:
        """Sums over the queries of some windows."""
        batch = self.session.batch(part).batch
        self.parts.run(batch.inputs(self.session.model), self.session.name(part.start), with_head=False)
        call = self.parts.calls[self.number][0]
        sides = batch.sides(self.matrices.site.kind, call.query.device)
        query, key = self._split(call)
        difference = self._difference(call, sides, query, key)
        count = len(self.session.windows[part])
        rows = [self._of_text(call, sides, query[:, text], key[:, text], text) for text in range(count)]
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
        return xr.Dataset(variables | {"difference": ("window", difference.cpu().numpy())}, coordinates)

    def _split(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Queries, scale included, and keys of the head by source, ``(source, text, position, r)``."""
        matrices = self.matrices
        W_Q, b_Q, W_K, b_K = matrices.of_head(self.head)
        query = call.query[:, self.head].double()
        key = call.key[:, self.head // matrices.group].double()
        return matrices.scale * self._split_side(0, query, W_Q, b_Q), self._split_side(1, key, W_K, b_K)

    def _split_side(self, side: int, captured: Tensor, W: np.ndarray, b: np.ndarray) -> Tensor:
        """Queries or keys of the head by source, by their matrix, with the norm and rotation that follow it."""
        matrices = self.matrices
        matrix, bias = torch.from_numpy(W).to(captured), torch.from_numpy(b).to(captured).expand_as(captured)
        parts, _ = self.parts.split(self.points[side], matrix, bias, self.number, (len(captured), captured.shape[1]))
        norm = matrices.norms.get(SIDES[side])
        if norm is not None:
            heads = len(cast("Any", (matrices.query, matrices.key)[side]))
            head = self.head if side == 0 else self.head // matrices.group
            gain = gains_of(self.session.model.get_submodule(norm), heads, len(b))
            parts = parts * torch.from_numpy(gain[head % len(gain)]).to(parts)
        if matrices.rotation is not None:
            parts = matrices.rotation(parts)
        if matrices.form == "normalised":
            # the denominator of each row, as the factor from the sum of all parts to the row that was captured
            whole = parts.sum(0)
            parts = parts * ((captured * whole).sum(-1) / (whole * whole).sum(-1).clamp(min=1e-300))[..., None]
        return parts

    def _difference(self, call: AttentionCall, sides: tuple[Batch, Batch], query: Tensor, key: Tensor) -> Tensor:
        """Largest difference of each text between its scores and the sum of the parts; an error beyond rounding."""
        captured_query = call.query[:, self.head].double()
        captured_key = call.key[:, self.head // self.matrices.group].double()
        scores = call.scale * captured_query @ captured_key.mT
        differences = (query.sum(0) @ key.sum(0).mT - scores).abs()
        differences = (differences * sides[0].valid[:, :, None] * sides[1].valid[:, None]).amax((1, 2))
        # sizes of all parts: rounding grows with what cancels out in their sum
        size = query.norm(dim=-1).sum(0).amax(1) * key.norm(dim=-1).sum(0).amax(1)
        limit = max(self.parts.rounding, SEVERAL * self.matrices.rounding) * size
        if bool((differences > limit).any()):
            raise AttnscopeError(
                f"the parts of {self.session.loaded.name} do not add up to its scores (by "
                f"{float(differences.max()):.1e}). Try dtype float32 (--dtype float32)"
            )
        return differences

    def _of_text(
        self, call: AttentionCall, sides: tuple[Batch, Batch], query: Tensor, key: Tensor, text: int
    ) -> dict[str, np.ndarray]:
        """Sums over the queries of one text."""
        allowed = call.allowed(text, self.head) & sides[1].valid[text]
        at = (sides[0].valid[text] & (allowed.sum(1) > 1)).nonzero()[:, 0]  # a choice of two keys or more
        allowed, query = allowed[at], query[:, at]
        uniform = allowed / allowed.sum(1, keepdim=True).double()
        bias = torch.zeros(allowed.shape).to(query)
        if call.bias is not None:
            of_head = call.bias[min(text, len(call.bias) - 1), min(self.head, call.bias.shape[1] - 1)][at]
            bias = torch.where(allowed, of_head.double(), 0)
        scores = query.sum(0) @ key.sum(0).T + bias
        top = nn.functional.one_hot(scores.masked_fill(~allowed, -torch.inf).argmax(1), allowed.shape[1]).bool()
        keys = torch.cat([top[None], self._keys(sides, text, at)]) & allowed  # ``(relation, query, key)``
        has_keys = keys.any(-1) & (allowed & ~keys).any(-1)
        # mean over the keys of a relation minus mean over all keys of the row, as weights of the scores
        contrast = (keys / keys.sum(-1, keepdim=True).clamp(min=1) - uniform) * has_keys[..., None]
        of_sides = (
            torch.einsum("snr,knr->ks", query, contrast @ key.sum(0)),
            torch.einsum("sjr,kjr->ks", key, contrast.mT @ query.sum(0)),
        )
        of_bias = (contrast * bias).sum((1, 2))[:, None, None].expand(-1, 2, 1)
        member = torch.tensor([[name == group for name in self.groups] for group in dict.fromkeys(self.groups)])
        left, right = (torch.einsum("gs,snr->gnr", member.to(side), side) for side in (query, key))
        pairs = [torch.einsum("gnr,hnr->gh", left, of_relation @ right) for of_relation in contrast]
        sums = {
            "rows": has_keys.sum(1),
            "chosen": ((keys & top).any(-1) & has_keys).sum(1),
            "chance": (keys * uniform * has_keys[..., None]).sum((1, 2)),
            "excess": (contrast * scores).sum((1, 2)),
            "part": torch.cat([torch.stack(of_sides, 1), of_bias], 2),
            "pair": torch.stack(pairs).float(),
        }
        return {name: values.cpu().numpy() for name, values in sums.items()}

    def _keys(self, sides: tuple[Batch, Batch], text: int, at: Tensor) -> Tensor:
        """Keys of each query with each name but the first."""
        token, other = sides[0].input_ids[text][at][:, None], sides[1].input_ids[text]
        key, query = torch.arange(len(other), device=at.device), at[:, None]
        first_or_special = ((key == 0) | sides[1].special[text]).expand(len(at), -1)
        if self.matrices.site.kind == "cross":  # no key is a neighbour of its query
            return torch.stack([first_or_special, *[torch.zeros_like(first_or_special)] * 5])
        follows = (other.roll(1) == token) & (key != query) & (key != query + 1)
        same = (other == token) & (key != query)
        relations = [key == query, key == query - 1, key == query + 1, follows, same]
        return torch.stack([first_or_special, *(relation & ~first_or_special for relation in relations)])


def shares_of(measured: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Share of the excess of the score that each source has on each side, and each pair, with intervals."""
    units, called = units_of(measured.document.values.tolist())
    part, excess = measured.part.values, measured.excess.values
    if not excess.any():
        raise AttnscopeError("the head gives all keys of a row one score, so there is nothing to split")
    shares = {name: np.full(part.shape[1:], np.nan) for name in ("share", "share_low", "share_high")}
    shares |= {name: np.zeros(part.shape[1:], bool) for name in ("shown", "tested")}
    sums = measured.pair.sum("window").values
    largest = np.argsort(-abs(sums).reshape(len(sums), -1), 1, kind="stable")[:, :_PAIRS]
    pairs = np.full((3, *largest.shape), np.nan)
    for at in np.flatnonzero(excess.sum(0) > 0):
        over: Any = {"over": excess[:, at], "seed": seed}
        for name, values in zip(shares, by_document(part[:, at], units, **over), strict=True):
            shares[name][at] = values
        of_pairs = measured.pair.values[:, at].reshape(len(part), -1)[:, largest[at]]
        pairs[:, at] = by_document(of_pairs.astype(float), units, **over)[:3]
    shares["shown"][0] = shares["tested"][0] = False  # the scores choose these keys
    places = np.stack(np.unravel_index(largest, sums.shape[1:]))
    ends = [measured[name].values[one] for name, one in zip(("query_source", "key_source"), places, strict=True)]
    variables: dict[str, Any] = {name: (("relation", "side", "source"), values) for name, values in shares.items()}
    names = ("pair_share", "pair_low", "pair_high", "query_source", "key_source")
    variables |= {name: (("relation", "pair"), values) for name, values in zip(names, (*pairs, *ends), strict=True)}
    variables |= {name: measured[name].sum("window") for name in ("rows", "chosen", "chance", "excess")}
    coordinates = {name: measured[name] for name in ("relation", "side", "source", "kind", "layer", "head")}
    attributes = {"intervals_over": called, "windows": len(part), "difference": float(measured.difference.max())}
    return xr.Dataset(variables, coordinates, attributes)
