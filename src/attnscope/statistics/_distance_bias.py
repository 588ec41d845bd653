"""Models that add to their scores by distance alone, as ALiBi and T5 do: that by itself can make heads local."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, output_of
from attnscope.capture import Site, named_scheme, watching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

_ENOUGH = 64  # tokens
_OF_TOKENS = 2  # dimensions: text, token
_ROUNDING, _ALIKE = 1e-6, 1e-2  # of a bias in 32 or in 16 bits
_SAID = (
    "The model adds to scores by distance (as ALiBi and T5 do), which by itself can make heads local: that a head is "
    "named so does not say that it learned it."
)


@torch.no_grad()
def bias_note(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """What a reader of local heads has to know of a model that adds a bias by distance to the scores.

    A model that gives its weights alone, and no scores, tells of it by its name only. The first tokens are enough to
    see it.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> bias_note(load_model("bundled", device="cpu").model, {"input_ids": torch.tensor([[1, 9, 8, 2]])})
    {}
    """
    if "ALiBi" in (named_scheme(model) or ""):
        return {"bias": _SAID}
    biased: list[Site] = []

    def look(site: Site, call: AttentionCall) -> Tensor:
        if site.kind != "cross" and call.bias is not None and _is_of_distance(call.bias):
            biased.append(site)
        return output_of(call)

    short = inputs if any(part.dim() != _OF_TOKENS for part in inputs.values()) else _first(inputs)
    with watching(model, look, weights_suffice=True):
        model(**short)
    return {"bias": _SAID} if biased else {}


def _first(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: part[:, :_ENOUGH] for name, part in inputs.items()}


def _is_of_distance(bias: Tensor) -> bool:
    """Whether it tells keys apart, in every row alike at each distance; what is constant along a row tells nothing."""
    bias = bias[..., :_ENOUGH, :_ENOUGH]  # of a long window the whole matrix is not to be written out
    allowed = bias > torch.finfo(bias.dtype).min / 2
    known = allowed[..., 1:] & allowed[..., :-1]
    steps = bias.masked_fill(~allowed, 0.0).diff(dim=-1).masked_fill(~known, 0.0)
    both = known[..., 1:, 1:] & known[..., :-1, :-1]
    moved = (steps[..., 1:, 1:] - steps[..., :-1, :-1]).masked_fill(~both, 0.0)
    size = float(steps.abs().amax())
    return size > _ROUNDING and float(moved.abs().amax()) <= _ALIKE * size
