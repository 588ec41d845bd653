"""The bundled model as a Hugging Face model, for the Auto classes."""

from transformers import AutoConfig, AutoModelForMaskedLM

from attnscope.models.configs import EncoderConfig
from attnscope.models.transformer import EncoderForMaskedLM

__all__ = ["EncoderConfig", "EncoderForMaskedLM"]

AutoConfig.register(EncoderConfig.model_type, EncoderConfig)
AutoModelForMaskedLM.register(EncoderConfig, EncoderForMaskedLM)
