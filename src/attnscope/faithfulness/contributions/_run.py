"""One text after the other: every kind of weight of every layer, and why some are not defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture import Site
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._predictions import log_probabilities
from attnscope.faithfulness._sides import Sides, sides_of
from attnscope.faithfulness.contributions._blocks import Block
from attnscope.faithfulness.contributions._heads import (
    EffectiveProfile,
    Gradient,
    Mean,
    Norms,
    Profile,
    Reader,
    Weights,
    read_weights,
    shares,
)
from attnscope.faithfulness.contributions._kinds import Kind, assembled
from attnscope.faithfulness.contributions._layers import BlockNorms, Mixing
from attnscope.faithfulness.contributions._record import Record, record
from attnscope.faithfulness.contributions._through import Relevance, Rollout, cannot_follow

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelRun:
    """One model, read text by text.

    Parameters
    ----------
    model, blocks
        See `find_blocks`.
    kinds, band
        What is wanted.
    asked
        Whether each of them was asked for by name, so that none is left out in silence.

    Examples
    --------
    >>> from attnscope.faithfulness.contributions._blocks import find_blocks
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> model, text = BertModel(config).eval(), {"input_ids": torch.tensor([[5, 6, 7]])}
    >>> run = ModelRun(model, find_blocks(model, text), ["norms"], 1, asked=True)
    >>> run.text(text, "the text").profile_norms.shape
    (1, 1, 2, 3)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blocks: Sequence[Block],
        kinds: Sequence[Kind],
        band: int,
        *,
        asked: bool,
    ) -> None:
        self.model, self.blocks, self.band, self.asked = model, blocks, band, asked
        self.kinds = list(kinds)
        self.reasons: dict[tuple[Kind, str], list[int]] = {}
        for block in blocks:
            if block.output is None:
                self._tell("norms", block.reason, block.site)
            if block.reason:
                self._tell("block_norms", block.reason, block.site)

    def refuse(self, reason: str, kind: Kind) -> None:
        """Leave out a kind for a reason, if there is one, or raise it where the kind was asked for."""
        if not reason:
            return
        if self.asked:
            raise AttnscopeError(
                f"{kind} is not defined for {type(self.model).__name__}: {reason}. Leave it out"
            )
        self.reasons[kind, reason] = []
        self.kinds.remove(kind)

    @property
    def skipped(self) -> str:
        """What was left out, in which layers, and why."""
        numbered = {
            reason: f" (layers {', '.join(map(str, layers))})" for reason, layers in self.reasons.items()
        }
        return "; ".join(
            f"{kind}{numbered[kind, reason] if layers else ''}: {reason}"
            for (kind, reason), layers in self.reasons.items()
        )

    def text(self, inputs: dict[str, Tensor], name: str) -> xr.Dataset:
        """All that is asked of one text."""
        with_gradient = "gradient" in self.kinds
        records, logits = record(
            self.model, inputs, self.blocks, name, differentiable=with_gradient, with_head=with_gradient
        )
        by_output = gradients(records, logits) if with_gradient else []
        with torch.no_grad():
            return self._measured(records, [tensor.detach() for tensor in by_output], sides_of(inputs))

    def _measured(self, records: Sequence[Record], by_output: Sequence[Tensor], sides: Sides) -> xr.Dataset:
        rolled, relevance = Rollout(sides), Relevance(sides)
        follows = not (
            reason := cannot_follow(sides, records) if {"rollout", "gradient"} & set(self.kinds) else ""
        )
        if reason:
            self._tell("rollout", reason)
        layers: list[dict[str, np.ndarray]] = []
        for number, each in enumerate(records):
            if each.reason and not each.block.reason:
                self._tell("block_norms", each.reason, each.site)
            mean = Mean()
            gradient = Gradient(each, by_output[number][0], self.band) if by_output else None
            readers: list[Reader] = self._readers(each)
            readers += [mean] if "rollout" in self.kinds and follows else []
            readers += [] if gradient is None else [gradient]
            read = read_weights(each.call, readers)
            if "rollout" in self.kinds and follows:
                read["profile_rollout"] = self._along(each, rolled.step(each.site.kind, mean.matrix()))
            if gradient is not None and follows:
                grown = relevance.step(each.site.kind, gradient.matrix())
                read["profile_relevance"] = self._along(each, shares(grown))
            layers.append(read)
        return assembled(records, layers, self.band)

    def _readers(self, each: Record) -> list[Reader]:
        possible: dict[Kind, Callable[[], Reader]] = {
            "weights": lambda: Weights(each.call, self.band),
            "effective": lambda: EffectiveProfile(each.call, self.band),
        }
        if each.block.output is not None:
            possible["norms"] = lambda: Norms(each, self.band)
        if not each.reason:
            possible["block_norms"] = lambda: BlockNorms(each, self.band)
        readers = [possible[kind]() for kind in self.kinds if kind in possible]
        return [*readers, Mixing(each)] if {"norms", "block_norms"} & set(self.kinds) else readers

    def _along(self, each: Record, matrix: Tensor) -> np.ndarray:
        profile = Profile(each.call, self.band)
        profile.add(slice(0, len(matrix)), matrix)
        return profile.mean()

    def _tell(self, kind: Kind, reason: str, site: Site | None = None) -> None:
        """Leave out a kind in one layer, or raise the reason where the kind was asked for."""
        if kind not in self.kinds:
            return
        if self.asked:
            where = "" if site is None else f", layer {site.index} ({site.name})"
            raise AttnscopeError(
                f"{kind} is not defined for {type(self.model).__name__}{where}: {reason}. Leave it out"
            )
        layers = self.reasons.setdefault((kind, reason), [])
        if site is not None and site.index not in layers:
            layers.append(site.index)


def gradients(records: Sequence[Record], logits: Tensor) -> list[Tensor]:
    """Derivative of the sum of the log probabilities of the most likely outcomes by each head's output.

    Examples
    --------
    >>> gradients([], torch.zeros(1, 2, 3))
    []
    """
    if not records:
        return []
    best = log_probabilities(logits).amax(-1).sum()
    outputs = [each.output for each in records]
    return list(torch.autograd.grad(best, outputs, allow_unused=True, materialize_grads=True))
