"""From settings to a model."""

from __future__ import annotations

from typing import Any

from attnscope.models import (
    EncoderConfig,
    EncoderForMaskedLM,
    RecurrentConfig,
    RecurrentForConditionalGeneration,
    TransformerConfig,
    TransformerForConditionalGeneration,
)
from attnscope.translation.config import TrainConfig


def build_model(config: TrainConfig, vocabulary: int) -> Any:
    """A new model of the kind and sizes that the settings name.

    Examples
    --------
    >>> build_model(TrainConfig(model="recurrent", attention="none"), 300).config.attention
    'none'
    """
    if config.model == "recurrent":
        return RecurrentForConditionalGeneration(
            RecurrentConfig(
                vocab_size=vocabulary,
                embedding_width=config.embedding_width,
                encoder_width=config.encoder_width,
                decoder_width=config.decoder_width,
                cell=config.cell,
                attention=config.attention,
                dropout=config.dropout,
            )
        )
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "width": config.width,
        "heads": config.heads,
        "feed_forward": config.feed_forward,
        "encoder_layers": config.layers,
        "decoder_layers": config.layers,
        "positions": config.positions,
        "max_position_embeddings": config.longest,
        "norm": config.norm,
        "dropout": config.dropout,
    }
    if config.model == "masked-lm":
        return EncoderForMaskedLM(EncoderConfig(**sizes))
    return TransformerForConditionalGeneration(TransformerConfig(**sizes))
