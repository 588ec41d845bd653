"""The configuration of the recurrent models, checked on creation."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from attnscope.models.configs import LineageConfig

ATTENTIONS = ("none", "dot", "scaled_dot", "bilinear", "additive")
CELLS = ("gru", "lstm")


@strict
class RecurrentConfig(LineageConfig):
    r"""Sizes of a `RecurrentForConditionalGeneration`.

    Parameters
    ----------
    vocab_size, embedding_width
        Joint vocabulary of source and target; width of its vectors, shared with the output layer.
    encoder_width, encoder_layers
        Width of one direction of the encoder (the annotations :math:`h_i` are twice as wide), and its layers.
    decoder_width
        Width of the decoder's state :math:`s_t`.
    cell
        ``gru`` or ``lstm``.
    attention
        ``none`` (the decoder sees only one fixed vector c), ``dot``, ``scaled_dot``, ``bilinear`` or ``additive``.
    attention_width
        Width of the additive score's hidden layer, by default `decoder_width`.
    dropout
        Dropout of embeddings, encoder and readout, in training.
    """

    model_type = "attnscope-recurrent"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"attention": ATTENTIONS, "cell": CELLS}

    embedding_width: int = 256
    encoder_width: int = 256
    decoder_width: int = 512
    encoder_layers: int = 1
    cell: str = "gru"
    attention: str = "additive"
    attention_width: int | None = None
    dropout: float | int = 0.2
    num_hidden_layers: int = 1  # of the decoder, for transformers

    def __post_init__(self, **kwargs: Any) -> None:
        if self.attention_width is None:
            self.attention_width = self.decoder_width
        super().__post_init__(**kwargs)
