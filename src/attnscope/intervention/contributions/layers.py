"""Profiles of a whole layer: what each token gives to the block's output, and how much the block mixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.intervention.contributions.heads import Profile, shares
from attnscope.intervention.contributions.record import value_outputs

if TYPE_CHECKING:
    from attnscope.intervention.contributions.record import Record

#: What a mixing ratio takes into account (Kobayashi et al. 2021, table 2).
MIXING = ("weights", "norms", "half residual", "norms and residual", "block")


class BlockNorms:
    r"""Sizes of what each token gives to the block's output, residual and normalisation included."""

    def __init__(self, record: Record, band: int) -> None:
        self.one, self.profile = record, Profile(record.call, band)
        given = value_outputs(record)
        norm = record.block.norm
        self.given = given if norm is None else norm.of(given)  # (head, key, width)
        self.products = torch.einsum("hkw,gkw->khg", self.given, self.given)
        self.residual = residual_part(record)
        self.same_tokens = record.site.kind != "cross"

    def rows(self, rows: slice, tile: Tensor) -> Float[Tensor, "row key"]:
        """Norms of some rows; the residual is within the diagonal, but in cross-attention in no column."""
        assert self.one.scale is not None  # noqa: S101 the block is known
        by_key = tile.to(self.products.dtype).permute(2, 0, 1)  # (key, head, row)
        squared = ((self.products @ by_key) * by_key).sum(1).T
        norms = squared.clamp_min(0).sqrt() * self.one.scale[rows]
        if self.same_tokens:
            index = torch.arange(rows.start, rows.stop, device=tile.device)
            own = torch.einsum("hi,hiw->iw", own_weights(rows, tile).to(self.given.dtype), self.given[:, rows])
            norms[index - rows.start, index] = (own * self.one.scale[rows] + self.residual[rows]).norm(dim=-1)
        return norms

    def add(self, rows: slice, tile: Tensor) -> None:
        norms = self.rows(rows, tile)
        if not self.same_tokens:  # the residual has its share, at no offset
            norms = torch.cat([norms, self.residual[rows].norm(dim=-1, keepdim=True)], -1)
        part = shares(norms)
        self.profile.add(rows, part if self.same_tokens else part[:, :-1])

    def found(self) -> dict[str, np.ndarray]:
        """``profile_block_norms``, ``(offset,)``."""
        return {"profile_block_norms": self.profile.mean()}


class Mixing:
    """How much of what comes out is other tokens', by what is taken into account (`MIXING`)."""

    def __init__(self, record: Record) -> None:
        self.one = record
        self.given = value_outputs(record) if record.block.output is not None else None
        self.same_tokens = record.site.kind != "cross"
        self.ratios: dict[str, list[Tensor]] = {name: [] for name in MIXING}

    def add(self, rows: slice, tile: Tensor) -> None:
        if self.same_tokens:
            own = own_weights(rows, tile)
            other = (tile.sum(-1) - own).mean(0)
            self.ratios["weights"].append(other)
            self.ratios["half residual"].append(other / 2)
        if self.given is None:
            return
        assert self.one.block.output is not None  # noqa: S101 what was given is made with it
        weighed = self.one.output.detach()[0, :, rows].to(self.given.dtype)
        mix = torch.einsum("hqr,hrw->qw", weighed, self.one.block.output)
        keep = torch.zeros_like(mix)
        if self.same_tokens:
            keep = torch.einsum("hi,hiw->iw", own_weights(rows, tile).to(mix.dtype), self.given[:, rows])
            mix = mix - keep
            self.ratios["norms"].append(_ratio(mix, keep))
        if self.one.residual is None or self.one.reason:
            return
        self.ratios["norms and residual"].append(_ratio(mix, keep + self.one.residual[rows]))
        norm, scale = self.one.block.norm, self.one.scale
        assert scale is not None  # noqa: S101 the block is known
        if norm is not None:
            mix, keep = norm.of(mix) * scale[rows], norm.of(keep) * scale[rows]
        self.ratios["block"].append(_ratio(mix, keep + residual_part(self.one)[rows]))

    def found(self) -> dict[str, np.ndarray]:
        """``mixing_ratio``, along `MIXING`: means over rows, NaN where it is not defined."""
        means = [float(torch.cat(parts).nanmean()) if parts else np.nan for parts in self.ratios.values()]
        return {"mixing_ratio": np.array(means)}


def residual_part(record: Record) -> Float[Tensor, "query width"]:
    """What the residual connection gives to the block's output."""
    assert record.residual is not None  # noqa: S101 asked only where the block is known
    assert record.scale is not None  # noqa: S101
    if record.block.norm is None or record.block.form == "normalised attention":
        return record.residual
    return record.block.norm.of(record.residual) * record.scale


def own_weights(rows: slice, tile: Float[Tensor, "head row key"]) -> Float[Tensor, "head row"]:
    """The weight of each row on its own token."""
    return tile.diagonal(rows.start, -2, -1)


def _ratio(mix: Tensor, keep: Tensor) -> Tensor:
    sizes = mix.norm(dim=-1), keep.norm(dim=-1)
    return sizes[0] / (sizes[0] + sizes[1])
