"""A model and its windows, of any length, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.forward import decoder_start
from attnscope.capture.load import load_model
from attnscope.explanation.inputs import ids_of
from attnscope.explanation.study import FEW_TEXTS
from attnscope.measure.texts import window_length
from attnscope.read.encoded import EncodedTexts, texts_and_targets, windows_of
from attnscope.read.pairs import LinePairs
from attnscope.read.windows import Window, window_name
from attnscope.support.arguments import Count, validated

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.read.encoded import Sources

AnyWindow = Window | Sequence[int]


@dataclass(frozen=True, eq=False)
class InterventionInput:
    """A model and the windows that it is to read."""

    model: PreTrainedModel
    windows: list[AnyWindow]  # with a target where a decoder reads one
    name: str  # the model's
    mask_id: int | None  # the token that a masked language model predicts at; None without one, or a tokenizer

    @property
    def documents(self) -> list[str]:
        """The text that each window is from: what intervals are drawn over."""
        return [getattr(window, "source", window_name(window, number)) for number, window in enumerate(self.windows)]


@validated
def input_of(
    model: Model | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: Count | None = None,
    limit: Count = FEW_TEXTS,
    by_line: bool = False,
) -> InterventionInput:
    """Load a model, and cut texts into windows."""
    corpus, target = texts_and_targets(
        texts, targets, by_line=by_line or targets is not None, blank_lines=targets is not None
    )
    if isinstance(model, PreTrainedModel) and tokenizer is None and isinstance(corpus, EncodedTexts):
        return InterventionInput(model, list(corpus.rows[:limit]), type(model).__name__, None)
    loaded = load_model(model, tokenizer=tokenizer)
    length = window_length(loaded, window)
    if target is None or isinstance(corpus, EncodedTexts):
        windows = list(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=limit), limit))
    else:
        start = decoder_start(loaded.model)
        pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
        pairs.check()
        windows = list(pairs)
    return InterventionInput(loaded.model, [*windows], loaded.name, getattr(loaded.tokenizer, "mask_token_id", None))


def inputs_of(model: PreTrainedModel, window: AnyWindow) -> dict[str, Tensor]:
    """Arguments of a forward pass over one window; without a target a decoder beside an encoder reads the same."""
    read = {"input_ids": window}
    if model.config.is_encoder_decoder:
        read["decoder_input_ids"] = getattr(window, "target", None) or window
    return {name: torch.tensor([list(ids_of(text))], device=model.device) for name, text in read.items()}
