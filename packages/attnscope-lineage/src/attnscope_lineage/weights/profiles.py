"""Profiles of heads and layers beyond weights: norms, effective weights, block norms, rollout, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.borrow import borrowed
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.explanation.profiles import of_layers
from attnscope.explanation.study import Study
from attnscope.intervention.calls import inputs_of, weight_tiles
from attnscope.intervention.contributions import VARIABLES, Effective, Profile, norms_profile, shares
from attnscope.kernels import full
from attnscope.options import Count
from attnscope.read.windows import window_name
from attnscope.support.checks import chosen
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.weights import calls
from attnscope_lineage.weights.blocks import Block, Record, find_blocks, record, value_outputs

Kind = Literal["weights", "norms", "effective", "block_norms", "rollout", "gradient"]
KINDS: tuple[Kind, ...] = ("weights", "norms", "effective", "block_norms", "rollout", "gradient")

_VARIABLES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "profile_weights": (("head", "offset"), "Mean weight at each offset", "share"),
    **VARIABLES,
    "profile_gradient": (("head", "offset"), "Mean share of a row's gradient x attention at each offset", "share"),
    "profile_block_norms": (
        ("offset",),
        "Mean share of the norms of the tokens' contributions to the block, at each offset",
        "share",
    ),
    "mixing_ratio": (("of",), "Share of other tokens in the output", "share"),
    "profile_rollout": (("offset",), "Mean rollout up to this layer, at each offset", "share"),
    "profile_relevance": (("offset",), "Mean share of a row's relevance up to this layer, at each offset", "share"),
}


def contribution_profiles(study: Study, *, kinds: Sequence[Kind | str] | None = None, band: Count = 10) -> xr.Dataset:
    r"""Measure the contributions of tokens to heads and layers, beyond attention weights.

    Parameters
    ----------
    study
        A model and its texts, from `attnscope.explanation.study.study`.
    kinds
        ``weights``; ``norms`` of weighted values; ``effective`` weights, without their part that does not affect the
        output; ``block_norms``, with residual and normalisation; ``rollout`` and ``gradient``, through all layers. By
        default all that are defined for the model.
    band
        Largest offset of the profiles, in tokens.

    Returns
    -------
    xarray.Dataset
        Over ``window, layer`` and, where it applies, ``head``; NaN where a kind is not defined. ``profile_...`` over
        ``offset`` (tokens): mean weight or share of a row at each offset. With ``effective``: ``null_share`` and
        ``null_share_permuted``, the share of a row's squared weights that does not affect the output, and its mean
        over permutations; ``rank``, ``free_dimensions``, ``identifiable``. With norms: ``mixing_ratio`` ``(of)``, the
        share of other tokens in the output. The attribute ``skipped`` says which kinds are left out, and why.

    Raises
    ------
    AttnscopeError
        If a kind is unknown, or one requested by name is not defined for this model.

    References
    ----------
    Kobayashi et al. (2020), Attention is not only a weight (``norms``), and (2021), Incorporating residual and
    normalization layers (``block_norms``). Brunner et al. (2020), On identifiability in Transformers (``effective``).
    Abnar and Zuidema (2020) (``rollout``). Chefer et al. (2021) (``gradient``).
    """
    kinds_chosen = chosen("kind", kinds, KINDS)
    with borrowed(study.model):
        first = inputs_of(study.model, study.windows[0])
        blocks = find_blocks(study.model, first)
        run = _ModelRun(study.model, blocks, kinds_chosen, band, by_name=kinds is not None)
        reason = calls.lacks_predictions(study.model, first) if "gradient" in kinds_chosen else ""
        if reason:
            run.skip("gradient", reason)
            run.kinds.remove("gradient")
        profiles = [
            run.text(inputs_of(study.model, window), window_name(window, number))
            for number, window in enumerate(study.windows)
        ]
    whole = xr.concat(profiles, "window", data_vars="all", coords="minimal", compat="override", join="override")
    return whole.assign_coords(
        window=np.arange(len(profiles)), source=("window", np.array(study.documents, dtype=object))
    ).assign_attrs(model=study.name, skipped=run.skipped)


class _ModelRun:
    """One model, measured text by text."""

    def __init__(
        self, model: PreTrainedModel, blocks: Sequence[Block], kinds: Sequence[Kind], band: int, *, by_name: bool
    ) -> None:
        self.model, self.blocks, self.band, self.by_name = model, blocks, band, by_name
        self.kinds = list(kinds)
        self.reasons: dict[tuple[Kind, str], list[int]] = {}
        for block in blocks:
            if block.output is None:
                self.skip("norms", block.reason, block.site)
            if block.reason:
                self.skip("block_norms", block.reason, block.site)

    def skip(self, kind: Kind, reason: str, site: Site | None = None) -> None:
        """Leave out a kind, in one layer or all; raise an error if the kind was requested by name."""
        if kind not in self.kinds:
            return
        if self.by_name:
            where = "" if site is None else f", layer {site.index} ({site.name})"
            raise AttnscopeError(
                f"{kind} is not defined for {type(self.model).__name__}{where}: {reason}. Leave it out"
            )
        layers = self.reasons.setdefault((kind, reason), [])
        if site is not None and site.index not in layers:
            layers.append(site.index)

    @property
    def skipped(self) -> str:
        """Skipped kinds with their layers and reasons."""
        parts: list[str] = []
        for (kind, reason), layers in self.reasons.items():
            where = f" (layers {', '.join(map(str, layers))})" if layers else ""
            parts.append(f"{kind}{where}: {reason}")
        return "; ".join(parts)

    def text(self, inputs: dict[str, Tensor], name: str) -> xr.Dataset:
        """Every kind, in every layer of one text."""
        with_gradient = "gradient" in self.kinds
        records, logits = record(
            self.model, inputs, self.blocks, name, differentiable=with_gradient, with_head=with_gradient
        )
        by_output: list[Tensor] = []
        if with_gradient and records:  # of the log probabilities of the most likely outcomes
            best = calls.log_probabilities(logits).amax(-1).sum()
            outputs = [each.output for each in records]
            slopes = torch.autograd.grad(best, outputs, allow_unused=True, materialize_grads=True)
            by_output = [slope.detach() for slope in slopes]
        with torch.no_grad():
            return self._measured(records, by_output, calls.sides_of(inputs))

    def _measured(self, records: Sequence[Record], by_output: Sequence[Tensor], sides: calls.Sides) -> xr.Dataset:
        rolled, relevance = Rollout(sides), Rollout(sides)
        reason = cannot_follow(sides, records) if {"rollout", "gradient"} & set(self.kinds) else ""
        if reason:
            self.skip("rollout", reason)
        rolls = "rollout" in self.kinds and not reason
        layers: list[dict[str, np.ndarray]] = []
        for number, each in enumerate(records):
            if each.reason and not each.block.reason:
                self.skip("block_norms", each.reason, each.site)
            readers = self._readers(each)
            means, relevant = list[Tensor](), list[Tensor]()  # over heads, rows of a tile each
            if by_output:
                readers.append(self._gradient(each, by_output[number][0], relevant))
            for rows, tile in weight_tiles(each.call):
                if rolls:
                    means.append(tile.mean(0))
                for reader in readers:
                    reader.add(rows, tile)
            layer = {name: values for reader in readers for name, values in reader.result().items()}
            if rolls:
                # (A + I) / 2, mean over heads (Abnar and Zuidema 2020)
                layer |= self._along("rollout", each, rolled.step(each.site.kind, torch.cat(means) / 2, 0.5))
            if by_output and not reason:
                # R <- R + A R, without the identity from which R starts (Chefer et al. 2021, ICCV, equations 5 and 6)
                gained = relevance.step(each.site.kind, torch.cat(relevant), 1.0)
                identity = torch.eye(len(gained)).to(gained) if each.site.kind != "cross" else 0.0
                layer |= self._along("relevance", each, shares(gained - identity))
            layers.append(layer)
        heads = max(record.call.query.shape[1] for record in records)
        variables = of_layers(_VARIABLES, layers, heads)
        coords: dict[str, Any] = {
            **layer_coordinates(record.site for record in records),
            "offset": np.arange(-self.band, self.band + 1),
        }
        coords |= {"head": np.arange(heads)} if any("head" in dims for dims, *_ in variables.values()) else {}
        coords |= {"of": list(MIXING)} if "mixing_ratio" in variables else {}
        return xr.Dataset(variables, coords).expand_dims("window")

    def _readers(self, each: Record) -> list[Profile | Mixing]:
        """Accumulators over the weights of a layer, which come in tiles ``(head, row, key)``."""
        call, readers = each.call, list[Profile | Mixing]()
        for kind in self.kinds:
            if kind == "weights":
                readers.append(Profile(kind, call, self.band))
            elif kind == "effective":
                effective = Effective(call, self.band)
                readers.append(Profile(kind, call, self.band, effective.band, effective.means))
            elif kind == "norms" and each.block.output is not None:
                readers.append(norms_profile(call, value_outputs(each), self.band))
            elif kind == "block_norms" and not each.reason:
                readers.append(Profile(kind, call, self.band, BlockNorms(each).shares))
        return [*readers, Mixing(each)] if {"norms", "block_norms"} & set(self.kinds) else readers

    def _gradient(self, each: Record, by_output: Tensor, means: list[Tensor]) -> Profile:
        r""":math:`(\nabla A\odot A)^+`, as shares of each row; its mean over heads goes to `means`."""
        values = full.values_of(each.call)[0]
        slopes = by_output.to(values.dtype)

        def entries(rows: slice, tile: Tensor) -> Tensor:
            positive = (tile * (slopes[:, rows] @ values.transpose(-2, -1))).clamp_min(0.0)
            means.append(positive.mean(0))
            return shares(positive)

        return Profile("gradient", each.call, self.band, entries)

    def _along(self, name: str, each: Record, matrix: Tensor) -> dict[str, np.ndarray]:
        profile = Profile(name, each.call, self.band)
        profile.add(slice(0, len(matrix)), matrix)
        return profile.result()


#: Parts of the block that a mixing ratio includes (Kobayashi et al. 2021, table 2).
MIXING = ("weights", "norms", "half residual", "norms and residual", "block")


class BlockNorms:
    r"""Norms of each token's contribution to the block's output, with residual and normalisation."""

    def __init__(self, record: Record) -> None:
        vectors, norm = value_outputs(record), record.block.norm
        assert record.scale is not None  # noqa: S101 the block is known
        self.scale = record.scale
        self.vectors = vectors if norm is None else norm.of(vectors)  # (head, key, width)
        self.products = torch.einsum("hkw,gkw->khg", self.vectors, self.vectors)
        self.residual = residual_part(record)
        self.same_tokens = record.site.kind != "cross"

    def rows(self, rows: slice, tile: Tensor) -> Float[Tensor, "row key"]:
        """Norms of some rows; the diagonal includes the residual, except in cross-attention."""
        # the norm of a sum over heads of a f, whose square is a^T F a with the products F of the vectors f
        by_key = tile.to(self.products.dtype).permute(2, 0, 1)  # (key, head, row)
        norms = ((self.products @ by_key) * by_key).sum(1).T.clamp_min(0).sqrt() * self.scale[rows]
        if self.same_tokens:
            index = torch.arange(rows.start, rows.stop, device=tile.device)
            on_itself = own_weights(rows, tile).to(self.vectors.dtype)
            value = torch.einsum("hi,hiw->iw", on_itself, self.vectors[:, rows])
            norms[index - rows.start, index] = (value * self.scale[rows] + self.residual[rows]).norm(dim=-1)
        return norms

    def shares(self, rows: slice, tile: Tensor) -> Float[Tensor, "row key"]:
        """The same as shares of each row."""
        norms = self.rows(rows, tile)
        if self.same_tokens:
            return shares(norms)
        # in cross-attention the residual has a share but no offset
        return shares(torch.cat([norms, self.residual[rows].norm(dim=-1, keepdim=True)], -1))[:, :-1]


class Mixing:
    """Share of other tokens in the output, for each choice of parts in `MIXING`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.vectors = value_outputs(record) if record.block.output is not None else None
        self.same_tokens = record.site.kind != "cross"
        self.ratios: dict[str, list[Tensor]] = {name: [] for name in MIXING}

    def add(self, rows: slice, tile: Tensor) -> None:
        if self.same_tokens:
            other = (tile.sum(-1) - own_weights(rows, tile)).mean(0)
            self.ratios["weights"].append(other)
            self.ratios["half residual"].append(other / 2)
        if self.vectors is None:
            return
        assert self.record.block.output is not None  # noqa: S101 the vectors come from it
        weighed = self.record.output.detach()[0, :, rows].to(self.vectors.dtype)
        mix = torch.einsum("hqr,hrw->qw", weighed, self.record.block.output)
        keep = torch.zeros_like(mix)
        if self.same_tokens:
            keep = torch.einsum("hi,hiw->iw", own_weights(rows, tile).to(mix.dtype), self.vectors[:, rows])
            mix = mix - keep
            self.ratios["norms"].append(_ratio(mix, keep))
        if self.record.residual is None or self.record.reason:
            return
        self.ratios["norms and residual"].append(_ratio(mix, keep + self.record.residual[rows]))
        norm, scale = self.record.block.norm, self.record.scale
        assert scale is not None  # noqa: S101 the block is known
        if norm is not None:
            mix, keep = norm.of(mix) * scale[rows], norm.of(keep) * scale[rows]
        self.ratios["block"].append(_ratio(mix, keep + residual_part(self.record)[rows]))

    def result(self) -> dict[str, np.ndarray]:
        """``mixing_ratio``, along `MIXING`: means over rows, NaN if undefined."""
        means = [float(torch.cat(parts).nanmean()) if parts else np.nan for parts in self.ratios.values()]
        return {"mixing_ratio": np.array(means)}


def residual_part(record: Record) -> Float[Tensor, "query width"]:
    """Contribution of the residual connection to the block's output."""
    assert record.residual is not None  # noqa: S101 callers check that the block is known
    assert record.scale is not None  # noqa: S101
    if record.block.norm is None or record.block.form == "normalised attention":
        return record.residual
    return record.block.norm.of(record.residual) * record.scale


def own_weights(rows: slice, tile: Float[Tensor, "head row key"]) -> Float[Tensor, "head row"]:
    return tile.diagonal(rows.start, -2, -1)


def _ratio(mix: Tensor, keep: Tensor) -> Tensor:
    sizes = mix.norm(dim=-1), keep.norm(dim=-1)
    return sizes[0] / (sizes[0] + sizes[1])


def cannot_follow(sides: calls.Sides, records: Sequence[Record]) -> str:
    """Why the layers of a text cannot be multiplied; empty if they can."""
    for each in records:
        sizes = tuple(side.stop - side.start for side in sides.of(each.site.kind))
        shape = each.call.query.shape[2], each.call.key.shape[2]
        if shape != sizes:
            return (
                f"layer {each.site.index} ({each.site.name}) has {shape[0]} queries and {shape[1]} keys, not one for "
                "each token, so layers cannot be multiplied"
            )
    return ""


class Rollout:
    r"""The product of :math:`\rho I + A_l` over layers (Abnar and Zuidema 2020, equation 1)."""

    def __init__(self, sides: calls.Sides) -> None:
        self.sides = sides
        self.matrix = torch.eye(sides.tokens, dtype=torch.float32)  # over all tokens

    def step(
        self, kind: str, part: Float[Tensor, "query key"], residual: float | Float[Tensor, "query 1"]
    ) -> Float[Tensor, "query key"]:
        """Multiply by a layer; return what is between its queries and keys."""
        queries, keys = self.sides.of(kind)
        matrix = self.matrix.to(part)
        self.matrix = matrix.clone()
        self.matrix[queries] = residual * matrix[queries] + part @ matrix[keys]
        return self.matrix[queries, keys]
