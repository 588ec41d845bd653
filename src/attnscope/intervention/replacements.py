"""Ablations: what takes the place of the output of a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import getdoc
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.watch import Site
from attnscope.intervention.questions import Questions
from attnscope.report import registry
from attnscope.support.checked import checked
from attnscope.support.errors import AttnscopeError, explaining

Ablation = str  # its name


@dataclass(frozen=True)
class Replacement:
    """The replacement of a head's output by an ablation."""

    meaning: str  # of its effect
    # from the outputs of the heads of a call, ``(text, head, query, value_width)``, the batch, the call, and the mean
    # of each head over all texts, if that was measured, to outputs of the same shape
    of: Callable[[Tensor, Questions, Site, Tensor | None], Tensor]


def _zero(output: Tensor, *_: Any) -> Tensor:
    return torch.zeros_like(output)


def _mean(output: Tensor, questions: Questions, site: Site, mean: Tensor | None) -> Tensor:  # noqa: ARG001
    assert mean is not None  # noqa: S101 `PredictionSession.passes` measures it
    return mean.to(output)[None, :, None].expand_as(output)


def _resample(output: Tensor, questions: Questions, site: Site, mean: Tensor | None) -> Tensor:  # noqa: ARG001
    index = donor_positions(questions.batch.sides(site.kind, output.device)[0].valid, questions.rows)
    return output.roll(questions.rows, 0).gather(2, index[:, None, :, None].expand_as(output))


#: Ablations by name; a caller's own follow.
ABLATIONS: dict[Ablation, Replacement] = {
    "zero": Replacement("change of the loss when the head's output is zero", _zero),
    "mean": Replacement("change of the loss when the head's output is its mean", _mean),
    "resample": Replacement("change of the loss when the head's output is that on another text", _resample),
}


def register_ablation(function: Callable[[Tensor], Tensor], name: str) -> None:
    """Add an ablation of a caller's own to `ABLATIONS`, from a function of the output of one head on one text."""
    is_tried = False

    def of(output: Tensor, questions: Questions, site: Site, mean: Tensor | None) -> Tensor:  # noqa: ARG001
        nonlocal is_tried
        others = output.clone()
        for text, real in enumerate(questions.batch.sides(site.kind, output.device)[0].valid):
            for head in range(output.shape[1]):
                own = output[text, head, real][None]
                others[text, head, real] = _ablated(name, function, own, tries=not is_tried)[0].to(output)
                is_tried = True
        return others

    doc = " ".join((getdoc(function) or "").split())
    meaning = f"change of the loss under the ablation {name}" + (f": {doc}" if doc else "")
    registry.register("ablation", name, Replacement(meaning, of), ABLATIONS, function, words={"meaning": meaning})


@checked
def stored_ablation(name: str, *, meaning: str) -> tuple[dict[Ablation, Replacement], Replacement]:  # noqa: ARG001
    """An ablation of a caller's own as a run stores it, without its function; and its table."""
    return ABLATIONS, Replacement(meaning, _zero)


def _ablated(name: str, function: Callable[[Tensor], Tensor], output: Tensor, *, tries: bool) -> Tensor:
    """The result of a function of a head's output, ``(1, query, value_width)``, checked; called twice if it `tries`."""
    with explaining(f"the ablation {name} failed", "Correct its function"):
        other: Any = function(output.clone())
        again: Any = function(output.clone()) if tries else other
    if not isinstance(other, Tensor) or other.shape != output.shape:
        what = f"shape {tuple(other.shape)}" if isinstance(other, Tensor) else f"a {type(other).__name__}"
        raise AttnscopeError(f"the ablation {name} returns {what}; expected a tensor of shape {tuple(output.shape)}")
    if not bool(other.isfinite().all()):
        raise AttnscopeError(f"the ablation {name} returns NaN or an infinite number: expected finite ones")
    if tries and not torch.equal(other, again):
        raise AttnscopeError(f"the ablation {name} returns other numbers for the same output: remove random numbers")
    return other


def donor_positions(valid: Tensor, rows: int = 1) -> Tensor:
    """Position in the previous text of the batch that replaces each position, ``(text, query)``."""
    if len(valid) < 2 * rows:
        raise AttnscopeError(
            "found one text; the ablation 'resample' needs 2 or more. Add more text, or leave it out: --ablations "
            "zero,mean"
        )
    return torch.arange(valid.shape[1], device=valid.device) % valid.sum(1).roll(rows)[:, None]


def chosen_ablations(names: Sequence[str]) -> list[Ablation]:
    """The ablations of these names, in their order; an error for those that do not exist."""
    if not {*names} <= {*ABLATIONS}:
        registry.load_records()
    unknown = [name for name in names if name not in ABLATIONS]
    if unknown or not names:
        named = repr(unknown[0] if unknown else names)
        expected = ", ".join(map(repr, ABLATIONS))  # quoted: these are not translated
        raise AttnscopeError(
            f"found ablations (--ablations) {named}; expected one or more of {expected} (one of your own once its "
            "module is imported)"
        )
    added = registry.registered("ablation")
    return [name for name in (*(one for one in ABLATIONS if one not in added), *added) if name in names]
