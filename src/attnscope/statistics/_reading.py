"""What a model reads in one forward pass, and which of it stands on either side of an attention call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.corpus import Batch, collate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.corpus import Window


@dataclass(frozen=True, eq=False)
class Reading:
    """Windows side by side.

    Attributes
    ----------
    text
        What the encoder reads, or a model's only stack.
    target
        What the decoder beside an encoder reads. Without such a decoder, or without targets, the same as `text`.

    Examples
    --------
    >>> from attnscope.corpus import Window
    >>> target = Window((3, 7), (True, False), ((0, 0), (0, 3)), "text 1", 0, ("<s>", "Der"))
    >>> window = Window((5,), (False,), ((0, 3),), "text 1", 0, ("The",), target)
    >>> queries, keys = Reading.of([window], pad_id=0).sides("cross")
    >>> queries.input_ids.tolist(), keys.input_ids.tolist()
    ([[3, 7]], [[5]])
    """

    text: Batch
    target: Batch

    @classmethod
    def of(cls, windows: Sequence[Window], pad_id: int, device: torch.device | str = "cpu") -> Reading:
        """Put windows side by side, and their targets."""
        text = collate(windows, pad_id).to(device)
        if all(window.target is None for window in windows):
            return cls(text, text)
        return cls(text, collate([window.target or window for window in windows], pad_id).to(device))

    def sides(self, kind: str) -> tuple[Batch, Batch]:
        """What queries and keys of a site of that kind are made of: only a decoder is causal or looks across."""
        return self.text if kind == "self" else self.target, self.target if kind == "causal" else self.text

    def inputs(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """Arguments of the forward pass."""
        read = {"": self.text} | ({"decoder_": self.target} if model.config.is_encoder_decoder else {})
        given: dict[str, Tensor] = {}
        for side, batch in read.items():
            given[f"{side}input_ids"] = batch.input_ids
            if batch.attention_mask is not None:
                given[f"{side}attention_mask"] = batch.attention_mask
        return given
