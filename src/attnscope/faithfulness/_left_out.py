"""What becomes of a prediction when nobody may look at a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.capture import Site, forward, watching
from attnscope.faithfulness._calls import attended
from attnscope.faithfulness._limits import NUMBERS_AT_ONCE
from attnscope.faithfulness._predictions import log_probabilities
from attnscope.faithfulness._sides import sides_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def leave_one_out(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    positions: Int[Tensor, " prediction"],
    name: str,
    tokens: Sequence[int] | None = None,
) -> Float[Tensor, "token prediction"]:
    """Total variation distance of each prediction from what it is when no query may look at a token.

    The token keeps its place and all others theirs; its own state goes on through the residual connection. One forward
    pass a token, several at a time.

    Parameters
    ----------
    model
        In eval mode, with a head.
    inputs
        Inputs of a batch of one.
    positions
        Where predictions are compared.
    name
        What to call the text in an error.
    tokens
        Which are left out, those of the source before those of the target; by default all.

    Returns
    -------
    Tensor
        Shares; columns are predictions.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> config = BertConfig(
    ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> text = {"input_ids": torch.tensor([[5, 6, 7]])}
    >>> leave_one_out(BertForMaskedLM(config).eval(), text, torch.tensor([0]), "the text").shape
    torch.Size([3, 1])
    """
    sides = sides_of(inputs)
    chosen = list(range(sides.tokens)) if tokens is None else list(tokens)
    hidden = torch.tensor([], dtype=torch.int64)
    largest = 1

    def observe(site: Site, call: AttentionCall) -> Tensor:
        nonlocal largest
        largest = max(largest, call.query.shape[1] * call.query.shape[2] * call.key.shape[2])
        keys = sides.of(site.kind)[1]
        index = torch.arange(keys.start, keys.start + call.key.shape[2], device=call.key.device)
        keep = (index != hidden.to(index.device)[:, None])[:, None, None]
        mask = keep if call.mask is None else call.mask & keep
        return attended(replace(call, mask=mask.expand(-1, -1, call.query.shape[2], -1)))[0]

    def run(some: Sequence[int]) -> Tensor:
        nonlocal hidden
        hidden = torch.tensor(some)
        several = {key: tensor.expand(len(some), *tensor.shape[1:]) for key, tensor in inputs.items()}
        with watching(model, observe):
            return log_probabilities(forward(model, several, lambda _: name), positions).exp()

    whole = run([-1])
    largest = max(largest, whole.numel())
    size = max(1, NUMBERS_AT_ONCE // largest)
    changes = [(run(chosen[at : at + size]) - whole).abs().sum(-1) / 2 for at in range(0, len(chosen), size)]
    return torch.cat(changes) if changes else whole.new_zeros(0, whole.shape[1])
