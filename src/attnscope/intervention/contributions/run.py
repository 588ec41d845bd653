"""One text after the other: every kind of weight of every layer, and why some are not defined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import borrowed
from attnscope.capture.watch import Site
from attnscope.explanation.tokens import FOR_MATCHING
from attnscope.intervention.contributions.blocks import Block, Relevance, Rollout, cannot_follow, find_blocks
from attnscope.intervention.contributions.heads import (
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
from attnscope.intervention.contributions.kinds import KINDS, Kind, assembled, chosen_kinds
from attnscope.intervention.contributions.layers import BlockNorms, Mixing
from attnscope.intervention.contributions.record import Record, record
from attnscope.intervention.edits import embedding_leaves
from attnscope.intervention.given import InputOptions, InterventionInput, check_matrices, input_of, inputs_of
from attnscope.intervention.session import Sides, lacks_predictions, log_probabilities, sides_of, weights_of
from attnscope.read.windows import window_name
from attnscope.support.arguments import Count, validated
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.intervention.given import InterventionInput
    from attnscope.read.encoded import Sources


class ModelRun:
    """One model, read text by text."""

    def __init__(
        self, model: PreTrainedModel, blocks: Sequence[Block], kinds: Sequence[Kind], band: int, *, asked: bool
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
            raise AttnscopeError(f"{kind} is not defined for {type(self.model).__name__}: {reason}. Leave it out")
        self.reasons[kind, reason] = []
        self.kinds.remove(kind)

    @property
    def skipped(self) -> str:
        """What was left out, in which layers, and why."""
        numbered = {reason: f" (layers {', '.join(map(str, layers))})" for reason, layers in self.reasons.items()}
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
        follows = not (reason := cannot_follow(sides, records) if {"rollout", "gradient"} & set(self.kinds) else "")
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
    """Derivative of the sum of the log probabilities of the most likely outcomes by each head's output."""
    if not records:
        return []
    best = log_probabilities(logits).amax(-1).sum()
    outputs = [each.output for each in records]
    return list(torch.autograd.grad(best, outputs, allow_unused=True, materialize_grads=True))


class OneText:
    """The first window of what is given, and the places of it whose predictions are asked about."""

    def __init__(
        self,
        given: InterventionInput,
        places: Sequence[int] | None,
        outcomes: Sequence[int] | None,
        *,
        differentiable: bool,
    ) -> None:
        self.model, self.inputs = given.model, inputs_of(given.model, given.windows[0])
        self.name, self.sides = window_name(given.windows[0], 0), sides_of(self.inputs)
        self.places = self._numbered(places)
        self.rows = [self.sides.predicting.start + query for query in self.places]
        self.headless = lacks_predictions(self.model, self.inputs)
        blocks = find_blocks(self.model, {name: ids[:, :FOR_MATCHING] for name, ids in self.inputs.items()})
        with embedding_leaves(self.model, self.inputs) as self.leaves:
            self.records, output = record(
                self.model,
                self.inputs,
                blocks,
                self.name,
                differentiable=differentiable and not self.headless,
                with_head=not self.headless,
            )
        self.unfollowed = cannot_follow(self.sides, self.records)
        check_matrices((record.call for record in self.records), self.name, in_a_graph=False)
        with torch.no_grad():
            self.weights = [weights_of(record.call)[0] for record in self.records]
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.predicted, self.outcomes = torch.zeros(0, 0, dtype=torch.float32), list[int]()
        if not self.headless:
            self._predict(output, outcomes)

    @property
    def kinds(self) -> list[str]:
        """Of each attention call."""
        return [record.site.kind for record in self.records]

    def _predict(self, output: Tensor, outcomes: Sequence[int] | None) -> None:
        of_text = output.ndim == 2  # noqa: PLR2004 one prediction of the whole text
        if of_text and len(self.places) != 1:
            raise AttnscopeError(
                f"{type(self.model).__name__} gives one prediction a text, and {len(self.places)} places were asked "
                "for: give the one place that its head reads, such as places=[0]"
            )
        self.positions = torch.tensor([0] if of_text else self.places)
        self.predicted = log_probabilities(output, self.positions)[0]
        best = self.predicted.argmax(-1).tolist()
        self.outcomes = best if outcomes is None else list(outcomes)
        known = self.predicted.shape[-1]
        if len(self.outcomes) != len(best) or not all(0 <= outcome < known for outcome in self.outcomes):
            raise AttnscopeError(
                f"found outcomes {self.outcomes[:5]} for {len(best)} places; expected one for each, from 0 to "
                f"{known - 1}"
            )

    def _numbered(self, places: Sequence[int] | None) -> list[int]:
        known = self.sides.predicting.stop - self.sides.predicting.start
        chosen = list(range(known)) if places is None else list(places)
        for place in chosen:
            if not 0 <= place < known:
                raise AttnscopeError(f"there is no place {place}: places are counted from 0 to {known - 1}")
        if not chosen:
            raise AttnscopeError("no place was named: give at least one in places, or leave it out for all")
        return chosen


@validated
def contribution_profiles(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    kinds: Sequence[Kind | str] | None = None,
    band: Count = 10,
    progress: Tell | None = None,
    **reading: Unpack[InputOptions],
) -> xr.Dataset:
    r"""Measure where heads and layers take from, by more than their weights."""
    chosen, asked = chosen_kinds(kinds, KINDS), kinds is not None
    given = input_of(model, texts, **reading)
    tell = progress or no_progress
    with borrowed(given.model):
        first = inputs_of(given.model, given.windows[0])
        blocks = find_blocks(given.model, {name: ids[:, :FOR_MATCHING] for name, ids in first.items()})
        run = ModelRun(given.model, blocks, chosen, band, asked=asked)
        run.refuse(lacks_predictions(given.model, first) if "gradient" in chosen else "", "gradient")
        profiles: list[xr.Dataset] = []
        for number, own_window in enumerate(given.windows):
            profiles.append(run.text(inputs_of(given.model, own_window), window_name(own_window, number)))
            tell(Progress("what weights miss", (number + 1) / len(given.windows)))
    whole = xr.concat(profiles, "window", data_vars="all", coords="minimal", compat="override", join="override")
    return whole.assign_coords(
        window=np.arange(len(profiles)), source=("window", np.array(given.documents, dtype=object))
    ).assign_attrs(model=given.name, skipped=run.skipped)
