"""Loss of the answers to needles without each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.capture.placement import device_of
from attnscope.intervention.effects import by_layer, effect_variables
from attnscope.intervention.predictions import check_read, variants_at_once
from attnscope.intervention.stack import Edit, replacing, same_without_what_is_skipped, stacked_passes
from attnscope.measure.documents import units_of

if TYPE_CHECKING:
    from attnscope.capture.borrow import LoadedModel
    from attnscope.detection.probes import Answer

ANSWERS = ("answer", "prompt")


@torch.no_grad()
def answer_effects(loaded: LoadedModel, answers: Sequence[Answer], *, seed: int) -> dict[str, Any]:
    """Change of the loss of an answer's tokens of the needle, and as many of the prompt, if a head has its mean."""
    model, device, changes, skips = loaded.model, device_of(loaded.model), list[np.ndarray](), True
    for answer in answers:
        prompt, hidden = len(answer.ids) - len(answer.tokens), {answer.ids[position] for position in answer.needle}
        steps = [step for step, token in enumerate(answer.tokens) if token in hidden] or [*range(len(answer.tokens))]
        others = np.linspace(0, prompt - 1, len(steps) + 2)[1:-1].astype(int).tolist()  # of the prompt, evenly
        inputs = {"input_ids": torch.tensor([answer.ids], device=device)}
        positions = torch.tensor([[*(prompt + step for step in steps), *others]], device=device)
        labels = [*(answer.tokens[step] for step in steps), *(answer.ids[position + 1] for position in others)]
        if not changes:
            check_read(loaded, inputs)
            skips = same_without_what_is_skipped(model, inputs, positions)
        with stacked_passes(model, skips=skips) as passes:
            before = passes.plain(inputs, positions)

            def losses(logits: Tensor, labels: Sequence[int] = labels) -> Tensor:
                predicted = logits[:, 0].float().log_softmax(-1)
                return -predicted[:, range(len(labels)), labels].unflatten(1, (2, -1)).mean(-1)

            own, most, layers = losses(before[None]), variants_at_once(before, len(answer.ids), passes.outputs), []
            for call, output in enumerate(passes.outputs):

                def edits(heads: Sequence[int], call: int = call, output: Tensor = output) -> dict[int, Edit]:
                    return {call: replacing(heads, [output.mean(2, keepdim=True).expand_as(output)] * len(heads))}

                layers.append((passes.sweep(range(output.shape[1]), most, edits, losses) - own).T[None].double().cpu())
        changes.append(by_layer([layer.numpy() for layer in layers])[0])
    units, dims = units_of([answer.hidden for answer in answers])[0], ("ablation", "layer", "head")
    return effect_variables(np.stack(changes), units, dims, "Change of the loss without the head", seed=seed)
