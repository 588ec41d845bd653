"""The Transformer's encoder alone, trained to say what stands behind masks (Devlin et al. 2019)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from attnscope.models.configs import EncoderConfig
from attnscope.models.layers import TiedModel, reject_unused
from attnscope.models.loss import mean_cross_entropy
from attnscope.models.transformer import TransformerEncoder


class EncoderForMaskedLM(TiedModel):
    """A masked language model: every token looks both ways, and masked ones are guessed.

    Examples
    --------
    >>> import torch
    >>> config = EncoderConfig(vocab_size=9, width=8, heads=2, feed_forward=16)
    >>> model = EncoderForMaskedLM(config)
    >>> model(torch.tensor([[1, 4, 2]])).logits.shape
    torch.Size([1, 3, 9])
    """

    config_class = EncoderConfig
    base_model_prefix = "encoder"
    _tied_weights_keys = {  # noqa: RUF012 transformers' form
        "encoder.embedding.weight": "embedding.weight",
        "lm_head.weight": "embedding.weight",
    }
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.width, config.pad_token_id)
        self.encoder = TransformerEncoder(config, self.embedding)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"] | None = None,
        labels: Int[Tensor, "batch token"] | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> MaskedLMOutput:
        """Logits at every place, and the mean loss in nats over the places that have a label (not -100).

        `num_items_in_batch`, which transformers' Trainer gives, is their number where this batch is a part of a larger
        one. Arguments that are not used are refused.
        """
        reject_unused(others)
        encoded = self.encoder(input_ids, attention_mask, output_attentions=output_attentions)
        logits = self.lm_head(encoded[0])
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, attentions=encoded.attentions)

    def hidden(
        self,
        input_ids: Int[Tensor, "batch token"],
        attention_mask: Int[Tensor, "batch token"],
        labels: Int[Tensor, "batch token"],  # noqa: ARG002 the other models' decoders read them
    ) -> Float[Tensor, "batch token width"]:
        """States after the last layer."""
        return self.encoder(input_ids, attention_mask)[0]
