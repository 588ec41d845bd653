"""The attention lineage as Hugging Face models, from one fixed vector to many heads, for the Auto classes."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from attnscope.models.configs import TransformerConfig
from attnscope_lineage.models.configs import RecurrentConfig
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.models.transformer import TransformerForConditionalGeneration

__all__ = [
    "RecurrentConfig",
    "RecurrentForConditionalGeneration",
    "TransformerConfig",
    "TransformerForConditionalGeneration",
]

for _config in (RecurrentConfig, TransformerConfig):
    AutoConfig.register(_config.model_type, _config)
AutoModelForSeq2SeqLM.register(RecurrentConfig, RecurrentForConditionalGeneration)
AutoModelForSeq2SeqLM.register(TransformerConfig, TransformerForConditionalGeneration)
