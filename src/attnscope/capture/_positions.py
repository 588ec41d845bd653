"""Where a model keeps its table of absolute positions, and how far the table reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from attnscope.attention import LearnedPositions
from attnscope.capture._heuristics import is_position_table, reserved_rows, stored_rows, turns_queries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

_MATRIX, _BATCH_OF_ONE = 2, 3  # dimensions


@dataclass(frozen=True, eq=False)
class StoredPositions:
    """A table of absolute positions as it lies in the model.

    Attributes
    ----------
    name
        Name of the module or parameter.
    tensor
        ``(row, width)``: the model's own memory.
    reserved
        How many rows at the start belong to no position: RoBERTa keeps those up to its padding index for
        itself, BART and OPT keep two, and the position ids of YOSO and Nystromformer begin at 2.
    of_words
        Whether the model looks rows up by id, and so can read no further than the table. Others compute more
        rows (M2M100) or do not read text (ViT).
    """

    name: str
    tensor: Tensor
    reserved: int
    of_words: bool


def stored_positions(model: PreTrainedModel) -> Iterator[StoredPositions]:
    """Find every table of absolute positions, in the order of the model's modules.

    Examples
    --------
    >>> from transformers import BartConfig, BartModel
    >>> config = BartConfig(
    ...     d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1,
    ...     encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9, max_position_embeddings=16,
    ... )
    >>> [(one.name, len(one.tensor), one.reserved) for one in stored_positions(BartModel(config))]
    [('encoder.embed_positions', 18, 2), ('decoder.embed_positions', 18, 2)]
    """
    for name, module in model.named_modules():
        if not is_position_table(name) or turns_queries(module):
            continue
        weight = stored_rows(module)
        if not isinstance(weight, Tensor) or weight.ndim != _MATRIX:
            continue
        reserved = reserved_rows(module, _parent(model, name), len(weight))
        of_words = isinstance(module, (nn.Embedding, LearnedPositions))
        yield StoredPositions(name, weight, reserved, of_words)
    for name, tensor in model.named_buffers():
        if is_position_table(name, buffer=True) and tensor.ndim == _MATRIX:
            yield StoredPositions(name, tensor, 0, of_words=True)
    for name, tensor in model.named_parameters():
        if not is_position_table(name) or turns_queries(_parent(model, name)):
            continue
        if tensor.ndim == _MATRIX or (tensor.ndim == _BATCH_OF_ONE and len(tensor) == 1):
            yield StoredPositions(name, tensor.detach().view(tensor.shape[-2:]), 0, of_words=False)


def position_table_length(model: PreTrainedModel) -> int | None:
    """How many positions the model's learned or tabulated positions reach; None where it has no table.

    Examples
    --------
    >>> from transformers import RobertaConfig, RobertaModel
    >>> config = RobertaConfig(
    ...     hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8,
    ...     max_position_embeddings=66,
    ... )
    >>> position_table_length(RobertaModel(config))
    64
    """
    return min(
        (len(table.tensor) - table.reserved for table in stored_positions(model) if table.of_words),
        default=None,
    )


def _parent(model: PreTrainedModel, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])
