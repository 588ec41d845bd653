"""From settings to a model."""

from __future__ import annotations

import os
from typing import Any

import torch

from attnscope.errors import AttnscopeError
from attnscope.models import (
    EncoderConfig,
    EncoderForMaskedLM,
    RecurrentConfig,
    RecurrentForConditionalGeneration,
    TransformerConfig,
    TransformerForConditionalGeneration,
)
from attnscope.training.config import TrainConfig

_TRAINED = 16  # bytes of a parameter in training: itself, its gradient and Adam's two moments


def build_model(config: TrainConfig, vocabulary: int) -> Any:
    """A new model of the kind and sizes that the settings name.

    Raises
    ------
    AttnscopeError
        If it takes more memory than this machine has.

    Examples
    --------
    >>> build_model(TrainConfig(model="recurrent", attention="none"), 300).config.attention
    'none'
    """
    check_model(config, vocabulary)
    return _new(config, vocabulary)


def check_model(config: TrainConfig, vocabulary: int) -> None:
    """Refuse settings of a model that cannot be built, or not be trained here, without building it.

    Parameters
    ----------
    config
        Settings of a training.
    vocabulary
        Number of tokens.

    Raises
    ------
    AttnscopeError
        If its sizes do not go together, or it takes more memory than this machine has.

    Examples
    --------
    >>> check_model(TrainConfig(model="recurrent", attention="dot", encoder_width=64, decoder_width=64), 300)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: dot-product attention compares ... decoder_width is 64 and encoder_width 64: ...
    """
    both = 2 * config.encoder_width
    if config.model == "recurrent" and config.attention == "dot" and config.decoder_width != both:
        raise AttnscopeError(
            "dot-product attention compares the decoder's state with the encoder's two side by side, but decoder_width "
            f"is {config.decoder_width} and encoder_width {config.encoder_width}: give a decoder_width of {both}, or "
            "attention bilinear or additive"
        )
    with torch.device("meta"):  # its sizes alone
        parameters = sum(parameter.numel() for parameter in _new(config, vocabulary).parameters())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = parameters * _TRAINED
    if needed > memory:
        raise AttnscopeError(
            f"the settings ask for a model of {parameters:,} parameters, which takes {needed / 1e9:,.0f} GB to train; "
            f"this machine has {memory / 1e9:,.0f}: choose smaller widths, fewer layers or subwords"
        )


def _new(config: TrainConfig, vocabulary: int) -> Any:
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
