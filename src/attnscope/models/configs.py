"""Configurations of the models, checked on creation.

huggingface_hub's ``strict`` checks types, but not those that ``from __future__ import annotations`` makes strings.
"""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from attnscope.support.errors import AttnscopeError

POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "t5", "none")
NORMS = ("pre", "post")


@strict
class LineageConfig(PreTrainedConfig):
    """The common configuration: one embedding table for source, target and output."""

    choices: ClassVar[dict[str, tuple[str, ...]]] = {}

    vocab_size: int = 8000
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        for name, names in self.choices.items():
            value = getattr(self, name)
            if value not in names:
                raise AttnscopeError(f"{name} {value!r} is not known: choose {', '.join(names)}")
        super().__post_init__(**kwargs)


@strict
class TransformerConfig(LineageConfig):
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
        Rows of the learned table: longer texts are rejected. The other schemes have no limit.
    norm
        ``pre``: normalise the input of a sublayer; ``post``: normalise its sum with the sublayer's output.
    dropout, attention_dropout, activation_dropout
        Dropout of embeddings and sublayers, of the weights, and within the feed-forward part; in training.
    """

    model_type = "attnscope-transformer"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"norm": NORMS, "positions": POSITIONS}
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "num_hidden_layers": "decoder_layers",
    }

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


@strict
class EncoderConfig(TransformerConfig):
    """Sizes of an `EncoderForMaskedLM`: those of `TransformerConfig`, without a decoder."""

    model_type = "attnscope-encoder"

    is_encoder_decoder: bool = False
    attribute_map: ClassVar[dict[str, str]] = TransformerConfig.attribute_map | {"num_hidden_layers": "encoder_layers"}
