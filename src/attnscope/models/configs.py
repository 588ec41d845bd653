"""Sizes and kinds of the models, checked when they are made.

huggingface_hub's ``strict`` checks the types, but not those that ``from __future__ import annotations`` makes strings.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from attnscope.support.errors import AttnscopeError

ATTENTIONS = ("none", "dot", "scaled_dot", "bilinear", "additive")
CELLS = ("gru", "lstm")
POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "t5", "none")
NORMS = ("pre", "post")


@strict
class RecurrentConfig(PreTrainedConfig):
    r"""Sizes of a `RecurrentForConditionalGeneration`.

    Parameters
    ----------
    vocab_size, embedding_width
        Joint vocabulary of source and target; width of its vectors, shared with the output layer.
    encoder_width
        Width of one direction of the encoder; the annotations :math:`h_i` are twice as wide.
    decoder_width
        Width of the decoder's state :math:`s_t`.
    encoder_layers
        Number of layers of the encoder.
    cell
        ``gru`` or ``lstm``.
    attention
        ``none`` (the decoder sees one fixed vector c alone), ``dot``, ``scaled_dot``, ``bilinear`` or ``additive``.
    attention_width
        Width of the additive score's hidden layer, by default `decoder_width`.
    dropout
        Dropout of embeddings, encoder and readout, in training.

    Examples
    --------
    >>> RecurrentConfig(attention="additive").attention_width
    512
    >>> RecurrentConfig(attention="cosine")
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: attention 'cosine' is not known: choose none, dot, scaled_dot, bilinear, additive
    """

    model_type = "attnscope-recurrent"

    vocab_size: int = 8000
    embedding_width: int = 256
    encoder_width: int = 256
    decoder_width: int = 512
    encoder_layers: int = 1
    cell: str = "gru"
    attention: str = "additive"
    attention_width: int | None = None
    dropout: float | int = 0.2
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    num_hidden_layers: int = 1  # of the decoder, as transformers asks

    def __post_init__(self, **kwargs: Any) -> None:
        check_choice("attention", self.attention, ATTENTIONS)
        check_choice("cell", self.cell, CELLS)
        if self.attention_width is None:
            self.attention_width = self.decoder_width
        super().__post_init__(**kwargs)


@strict
class TransformerConfig(PreTrainedConfig):
    r"""Sizes of a `TransformerForConditionalGeneration` (and of the encoder alone, `EncoderForMaskedLM`).

    Parameters
    ----------
    vocab_size
        Joint vocabulary of source, target and output.
    width, heads, feed_forward
        Model width d, heads of each layer, hidden width of the feed-forward part.
    key_width, value_width
        :math:`d_k` and :math:`d_v` of a head, by default ``width / heads``.
    encoder_layers, decoder_layers
        Numbers of layers.
    positions
        ``sinusoidal``, ``learned``, ``rope``, ``alibi``, ``t5`` or ``none``.
    max_position_embeddings
        Rows of the learned table: longer texts are refused. The other schemes know no end.
    norm
        ``pre``: normalise what enters a sublayer; ``post``: normalise its sum with what it made.
    dropout, attention_dropout, activation_dropout
        Dropout of embeddings and sublayers, of the weights, and within the feed-forward part; in training.

    Examples
    --------
    >>> TransformerConfig(positions="rope").num_hidden_layers
    4
    >>> TransformerConfig(norm="both")
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: norm 'both' is not known: choose pre, post
    """

    model_type = "attnscope-transformer"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "num_hidden_layers": "decoder_layers",
    }

    vocab_size: int = 8000
    width: int = 128
    heads: int = 4
    feed_forward: int = 256
    key_width: int | None = None
    value_width: int | None = None
    encoder_layers: int = 4
    decoder_layers: int = 4
    positions: str = "sinusoidal"
    max_position_embeddings: int = 512
    norm: str = "pre"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        check_choice("norm", self.norm, NORMS)
        check_choice("positions", self.positions, POSITIONS)
        super().__post_init__(**kwargs)


@strict
class EncoderConfig(TransformerConfig):
    """Sizes of an `EncoderForMaskedLM`: those of `TransformerConfig`, without a decoder.

    Examples
    --------
    >>> config = EncoderConfig(encoder_layers=3, positions="learned")
    >>> config.num_hidden_layers, config.is_encoder_decoder
    (3, False)
    """

    model_type = "attnscope-encoder"

    is_encoder_decoder: bool = False
    attribute_map: ClassVar[dict[str, str]] = TransformerConfig.attribute_map | {"num_hidden_layers": "encoder_layers"}


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that means nothing here."""
    if value not in known:
        raise AttnscopeError(f"{name} {value!r} is not known: choose {', '.join(known)}")
