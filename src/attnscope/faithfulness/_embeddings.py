"""The vectors of a text's tokens, in the way of gradients."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Generator

    from transformers import PreTrainedModel

_SIDES = ("input_ids", "decoder_input_ids")


@contextmanager
def embedding_leaves(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Generator[list[Tensor]]:
    """Let gradients be taken by the vectors of the source's tokens, and then the target's: ``(1, token, width)`` each.

    What looks the token ids up in a table is found by what it reads, in the order in which the sides are read; where
    it is no table, there are fewer leaves than sides.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> model, text = BertModel(config).eval(), {"input_ids": torch.tensor([[5, 6, 7]])}
    >>> with embedding_leaves(model, text) as leaves:
    ...     output = model(**text).last_hidden_state
    >>> [one.shape for one in torch.autograd.grad(output[0, 1, 0], leaves)]
    [torch.Size([1, 3, 8])]
    """
    leaves: list[Tensor] = []
    waiting = [inputs[side] for side in _SIDES if side in inputs]

    def hook(_: nn.Module, arguments: tuple[Any, ...], returned: Any) -> Tensor | None:
        read = arguments[0] if arguments else None
        if (
            waiting
            and isinstance(read, Tensor)
            and isinstance(returned, Tensor)
            and torch.equal(read, waiting[0])
        ):
            waiting.pop(0)
            leaves.append(returned.detach().requires_grad_())
            return leaves[-1]
        return None

    hooks = [
        module.register_forward_hook(hook) for module in model.modules() if isinstance(module, nn.Embedding)
    ]
    try:
        yield leaves
    finally:
        for handle in hooks:
            handle.remove()
