"""The attention lineage as Hugging Face models, from one fixed vector to many heads, for the Auto classes."""

from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from attnscope.models.configs import EncoderConfig, RecurrentConfig, TransformerConfig
from attnscope.models.recurrent import RecurrentForConditionalGeneration
from attnscope.models.transformer import EncoderForMaskedLM, TransformerForConditionalGeneration
from attnscope.models.translator import IGNORED

__all__ = [
    "IGNORED",
    "EncoderConfig",
    "EncoderForMaskedLM",
    "RecurrentConfig",
    "RecurrentForConditionalGeneration",
    "TransformerConfig",
    "TransformerForConditionalGeneration",
]

for _config in (EncoderConfig, RecurrentConfig, TransformerConfig):
    AutoConfig.register(_config.model_type, _config)
AutoModelForMaskedLM.register(EncoderConfig, EncoderForMaskedLM)
AutoModelForSeq2SeqLM.register(RecurrentConfig, RecurrentForConditionalGeneration)
AutoModelForSeq2SeqLM.register(TransformerConfig, TransformerForConditionalGeneration)
