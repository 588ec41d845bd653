"""What stands in for a head's output: nothing, its mean over the corpus, or what it gives on another text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.watch import Site
    from attnscope.intervention.passes.questions import Questions
    from attnscope.kernels.call import AttentionCall

Ablation = Literal["zero", "mean", "resample"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)

#: ``(text, head, query, value_width)`` of each attention call
Outputs = Sequence[Tensor]


class HeadMeans:
    """Mean output of each head over all real positions of all texts."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._counts: list[int] = []

    def add(self, outputs: Outputs, valid: Sequence[Tensor]) -> None:
        """Add a batch: what each call gave, and which of its queries are real, ``(text, query)``."""
        for number, (output, real) in enumerate(zip(outputs, valid, strict=True)):
            summed = torch.where(real[:, None, :, None], output, 0).sum((0, 2), dtype=torch.float64)
            if number == len(self._sums):
                self._sums.append(torch.zeros_like(summed))
                self._counts.append(0)
            self._sums[number] += summed
            self._counts[number] += int(real.sum())

    def of(self, call: int) -> Float[Tensor, "head value_width"]:
        """The mean of each head of a call."""
        return (self._sums[call] / self._counts[call]).float()


def real_queries(questions: Questions, sites: Sequence[Site]) -> list[Tensor]:
    """Which queries of each call are real tokens, ``(text, query)``."""
    return [questions.reading.sides(site.kind)[0].valid for site in sites]


def replacement(
    ablation: Ablation, output: Tensor, mean: Tensor | None, valid: Tensor
) -> Float[Tensor, "window head query value_width"]:
    """What stands in for every head of a call."""
    if ablation == "zero":
        return torch.zeros_like(output)
    if ablation == "mean":
        if mean is None:
            raise AttnscopeError("a mean ablation needs the means of the heads: give them")
        return mean.to(output)[None, :, None].expand_as(output)
    index = donor_positions(valid)
    return output.roll(1, 0).gather(2, index[:, None, :, None].expand_as(output))


def donor_positions(valid: Tensor) -> Tensor:
    """Position of the text before that each position of a text is given, ``(text, query)``."""
    if len(valid) < 2:  # noqa: PLR2004
        raise AttnscopeError(
            "found one text; expected 2 or more, as a resampled head is given what it says of another text: give more "
            "text, or leave out the ablation 'resample'"
        )
    lengths = valid.sum(1).roll(1)
    return torch.arange(valid.shape[1], device=valid.device) % lengths[:, None]


def replacing(heads: Sequence[int], stands_in: Sequence[Tensor]) -> Callable[[AttentionCall, Tensor], Tensor]:
    """An edit: variant i has head i of `heads` replaced by that head of ``stands_in[i]``."""

    def edit(_: AttentionCall, output: Tensor) -> Tensor:
        output = output.clone()
        for variant, (head, other) in enumerate(zip(heads, stands_in, strict=True)):
            output[variant, :, head] = other[:, head]
        return output

    return edit


def replacing_sets(chosen: Tensor, stands_in: Tensor) -> Callable[[AttentionCall, Tensor], Tensor]:
    """An edit: in each variant, all heads of a set are replaced at once."""
    chosen = chosen[:, None] if chosen.ndim == 2 else chosen  # noqa: PLR2004

    def edit(_: AttentionCall, output: Tensor) -> Tensor:
        return torch.where(chosen[..., None, None].to(output.device), stands_in, output)

    return edit
