"""Whether what a pass of variants leaves out is indeed what does not differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from attnscope.capture.verify import TOLERANCE
from attnscope.intervention.passes.replacements import replacing
from attnscope.intervention.passes.stack import stacked_passes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FEW_TOKENS, _FEW_CALLS = 12, 4  # a long text costs passes: three calls tell


@torch.no_grad()
def same_without_what_is_skipped(
    model: PreTrainedModel, inputs: dict[str, Tensor], places: Int[Tensor, "text place"], *, states: bool = False
) -> bool:
    """Whether changed heads give the same logits when what should not differ is not computed."""
    logits: list[list[Tensor]] = []
    for skips in (True, False):
        with stacked_passes(model, skips=skips) as passes:
            passes.plain(inputs, places)
            edits = [
                {call: replacing([0, 1 % output.shape[1]], [torch.zeros_like(output)] * 2)}
                for call, output in enumerate(passes.outputs)
            ]
            if inputs["input_ids"].shape[1] > _FEW_TOKENS and len(edits) > _FEW_CALLS:
                edits = [edits[0], edits[len(edits) // 2], edits[-1]]
            outputs = [passes.run(edit, 2) for edit in edits]
            blocks = range(len(passes.states)) if states else range(0)
            outputs += [passes.run({}, 1, {block: torch.zeros_like}) for block in blocks]
            logits.append(outputs)
    limit = TOLERANCE[model.dtype]
    return all(
        float((own - other).abs().max()) <= limit * float(other.abs().max()) for own, other in zip(*logits, strict=True)
    )
