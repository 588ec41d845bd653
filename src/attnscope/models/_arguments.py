"""Arguments that a forward pass takes, as transformers asks, and these models do not use: refused where it matters."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from attnscope.errors import AttnscopeError

# What `generate` and tokenizers hand over unasked; no answer depends on it.
_IDLE = frozenset({"use_cache", "return_dict", "output_attentions", "token_type_ids"})


def refuse_unused(given: dict[str, Any]) -> None:
    """Refuse arguments that would be passed over in silence, such as a misspelt one.

    Examples
    --------
    >>> refuse_unused({"use_cache": True, "output_hidden_states": False, "inputs_embeds": None})
    >>> refuse_unused({"atention_mask": 1})
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: found argument 'atention_mask', which this model does not use: leave it out
    """
    for name, value in given.items():
        if value is None or value is False or name in _IDLE:
            continue
        if name != "decoder_attention_mask":
            raise AttnscopeError(f"found argument {name!r}, which this model does not use: leave it out")
        check_padding(value, name)  # nothing before padding at the end looks at it


def check_padding(mask: Bool[Tensor, "batch token"] | Int[Tensor, "batch token"], name: str) -> None:
    """Refuse padding before a token.

    Examples
    --------
    >>> import torch
    >>> check_padding(torch.tensor([[1, 1, 0], [0, 0, 0]]), "attention_mask")
    >>> check_padding(torch.tensor([[0, 1, 1]]), "attention_mask")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: attention_mask has padding before a token; expected it at the end of each text:
    pad on the right
    """
    there = mask.bool()
    if bool((there[:, 1:] & ~there[:, :-1]).any()):
        raise AttnscopeError(
            f"{name} has padding before a token; expected it at the end of each text: pad on the right"
        )
