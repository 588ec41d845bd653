"""What a model is meant to be: whether it should look back only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def should_look_back(model: PreTrainedModel) -> bool:
    """Whether a model is a causal language model by its class, or can be no other by its config.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> should_look_back(LlamaModel(LlamaConfig(**sizes))), should_look_back(BertModel(BertConfig(**sizes)))
    (True, False)
    """
    if model.config.is_encoder_decoder:
        return False
    kind = model.config.model_type
    only = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return only or model.can_generate()
