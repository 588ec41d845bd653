"""What both encoder-decoders share: reading and writing tokens, the loss, and what transformers' `generate` asks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from attnscope.models.layers import TiedModel, reject_unused
from attnscope.models.loss import mean_cross_entropy, shift_right


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a decoder hands back."""

    hidden: Tensor  # what the output layer reads, ``(batch, target, width)``
    # weights on the source, ``(batch, head, target, source)``, and on the target; a tensor a layer, where they were
    # made
    cross: tuple[Tensor, ...] | None = None
    own: tuple[Tensor, ...] | None = None


class Translator(TiedModel, GenerationMixin):
    """An encoder, a decoder that looks at it, and one table of tokens for source, target and output."""

    base_model_prefix = "model"
    _tied_weights_keys = {  # noqa: RUF012 transformers' form
        "encoder.embedding.weight": "embedding.weight",
        "decoder.embedding.weight": "embedding.weight",
        "lm_head.weight": "embedding.weight",
    }
    encoder: nn.Module

    @abstractmethod
    def decode(
        self,
        tokens: Int[Tensor, "batch target"],
        states: Float[Tensor, "batch source width"],
        attention_mask: Int[Tensor, "batch source"],
        cache: Any,
        *,
        output_attentions: bool = False,
    ) -> Decoded:
        """Run the decoder over `tokens`; with a cache, over those that it has not read yet."""

    def forward(
        self,
        input_ids: Int[Tensor, "batch source"] | None = None,
        attention_mask: Int[Tensor, "batch source"] | None = None,
        decoder_input_ids: Int[Tensor, "batch target"] | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Any = None,
        labels: Int[Tensor, "batch target"] | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the next target token at every place, and the mean loss in nats if there are labels."""
        reject_unused(others)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, output_attentions=output_attentions
            )
        states: Any = encoder_outputs[0]  # pyright: ignore[reportOptionalSubscript]
        if attention_mask is None:
            attention_mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.decoder_inputs(labels)
        decoded = self.decode(
            decoder_input_ids,  # pyright: ignore[reportArgumentType]
            states,
            attention_mask,
            past_key_values,
            output_attentions=bool(output_attentions),
        )
        logits = self.lm_head(decoded.hidden)
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            cross_attentions=decoded.cross,
            decoder_attentions=decoded.own,
            encoder_last_hidden_state=states,
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )

    def hidden(
        self,
        input_ids: Int[Tensor, "batch source"],
        attention_mask: Int[Tensor, "batch source"],
        labels: Int[Tensor, "batch target"],
    ) -> Float[Tensor, "batch target width"]:
        """What the output layer reads under teacher forcing."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        return self.decode(self.decoder_inputs(labels), states, attention_mask, None).hidden

    def decoder_inputs(self, labels: Int[Tensor, "batch target"]) -> Int[Tensor, "batch target"]:
        """What the decoder reads under teacher forcing."""
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """`decoder_inputs`, under the name that transformers' data collator asks for."""
        return self.decoder_inputs(labels)

    def get_encoder(self, *_: Any, **__: Any) -> nn.Module:
        """For `generate`."""
        return self.encoder
