"""Whether a linear layer reads what heads give: only then a head's own part can be taken out of what it adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.attention import output_of
from attnscope.capture import watching

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.attention import AttentionCall
    from attnscope.capture import Site


@torch.no_grad()
def unread_sites(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Site]:
    """Attention calls whose output no linear layer reads, whole or as columns beside others.

    A recurrent decoder's layer reads its state and the context side by side; the head's part is then what the columns
    of the context give.

    Parameters
    ----------
    model
        In eval mode.
    inputs
        Arguments of a forward pass; a dozen tokens are enough.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> unread_sites(BertModel(config).eval(), {"input_ids": torch.tensor([[5, 6, 7]])})
    []
    """
    waiting: list[tuple[Site, Tensor]] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        waiting.append((site, output.transpose(1, 2).flatten(2)))
        return output

    def look(_: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            waiting[:] = [(site, output) for site, output in waiting if not _holds(given[0], output)]

    linears = [module for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))]
    hooks = [module.register_forward_pre_hook(look) for module in linears]
    try:
        with watching(model, observe):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [site for site, _ in waiting]


def _holds(given: Tensor, output: Tensor) -> bool:
    """Whether some columns of what a layer reads are what the heads gave, ``(text, query, width)``."""
    width = output.shape[2]
    columns = given.shape[-1]
    if columns < width or given.numel() // columns != output.shape[0] * output.shape[1]:
        return False
    rows = given.reshape(*output.shape[:2], columns)
    limit = 1e-4 * float(output.abs().max())
    return any(
        float((rows[..., start : start + width] - output).abs().max()) <= limit
        for start in range(columns - width + 1)
        if abs(float(rows[0, 0, start] - output[0, 0, 0])) <= limit
    )
