"""What a model predicts: its logits, if it has any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.capture import forward
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def lacks_predictions(model: PreTrainedModel, inputs: dict[str, Any]) -> str:
    """Why a model predicts nothing; empty where it gives logits, for each token or for the text.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> text = {"input_ids": torch.tensor([[5, 6, 7]])}
    >>> lacks_predictions(BertForMaskedLM(config).eval(), text)
    ''
    >>> lacks_predictions(BertModel(config).eval(), text)
    'BertModel has no head that predicts: its output is hidden states, not logits'
    """
    output = model(**inputs)
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor) and logits.ndim in {2, 3}:
        return ""
    return f"{type(model).__name__} has no head that predicts: its output is hidden states, not logits"


def check_predictions(model: PreTrainedModel, inputs: dict[str, Any], what: str) -> None:
    """Refuse a model that predicts nothing, where predictions are compared.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> check_predictions(BertModel(config).eval(), {"input_ids": torch.tensor([[5, 6]])}, "permutation_test")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: permutation_test compares predictions, and BertModel has no head that predicts:
    its output is hidden states, not logits. Give a model with its head, such as BertForMaskedLM
    """
    if reason := lacks_predictions(model, inputs):
        raise AttnscopeError(
            f"{what} compares predictions, and {reason}. Give a model with its head, such as BertForMaskedLM"
        )


def log_probabilities(
    logits: Float[Tensor, "batch *position outcome"], positions: Int[Tensor, " prediction"] | None = None
) -> Float[Tensor, "batch prediction outcome"]:
    """Log probabilities, nats, at some positions; a model that gives one prediction a text has position 0.

    Examples
    --------
    >>> log_probabilities(torch.zeros(1, 3, 2), torch.tensor([1])).exp().tolist()
    [[[0.5, 0.5]]]
    """
    by_position = logits[:, None] if logits.ndim == 2 else logits  # noqa: PLR2004
    chosen = by_position if positions is None else by_position[:, positions]
    return chosen.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def predict(
    model: PreTrainedModel, inputs: dict[str, Any], name: str
) -> Float[Tensor, "batch prediction outcome"]:
    """Log probabilities at every position.

    Examples
    --------
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> config = BertConfig(
    ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> predict(BertForMaskedLM(config).eval(), {"input_ids": torch.tensor([[5, 6, 7]])}, "the text").shape
    torch.Size([1, 3, 9])
    """
    return log_probabilities(forward(model, inputs, lambda _: name))
