"""Common parts of all models: the embedding table, and the mean loss."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel
from transformers import initialization as init

from attnscope.kernels.positions import LearnedPositions
from attnscope.support.errors import AttnscopeError

IGNORED = -100  # the label of padding and of tokens without loss, as in PyTorch


def mean_cross_entropy(
    logits: Float[Tensor, "batch token vocabulary"],
    labels: Int[Tensor, "batch token"],
    count: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Mean over the positions with a label, in nats; with `count`, the sum divided by it."""
    total = F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="mean" if count is None else "sum",
    )
    return total if count is None else total / count


class TiedModel(PreTrainedModel):
    """One embedding table for input and output."""

    main_input_name = "input_ids"
    _input_embed_layer = "embedding"
    embedding: nn.Embedding
    lm_head: nn.Linear

    def _init_weights(self, module: nn.Module) -> None:
        """Glorot for matrices, orthogonal for recurrent ones; biases are 0."""
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, (nn.Embedding, LearnedPositions)):
                init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            elif parameter.ndim == 1:
                init.constant_(parameter, 1.0 if isinstance(module, nn.LayerNorm) and name == "weight" else 0.0)
            elif name.startswith("weight_hh"):
                init.orthogonal_(parameter)
            else:
                init.xavier_uniform_(parameter)


# Arguments that `generate` and tokenizers always pass; no output depends on them.
_IDLE = frozenset({"use_cache", "return_dict", "output_attentions", "token_type_ids"})


def reject_unused(arguments: dict[str, Any]) -> None:
    """Reject arguments that would be ignored silently, such as a misspelt one."""
    for name, value in arguments.items():
        if value is None or value is False or name in _IDLE:
            continue
        if name != "decoder_attention_mask":
            raise AttnscopeError(f"found argument {name!r}, which this model does not use: leave it out")
        check_padding(value, name)  # no token attends to padding at the end


def check_padding(mask: Bool[Tensor, "batch token"] | Int[Tensor, "batch token"], name: str) -> None:
    """Reject padding before a token."""
    tokens = mask.bool()
    if bool((tokens[:, 1:] & ~tokens[:, :-1]).any()):
        raise AttnscopeError(
            f"{name} has padding before a token; expected it at the end of each text: pad on the right"
        )
