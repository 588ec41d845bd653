"""A model and its windows, of any length, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.forward import decoder_start
from attnscope.capture.load import load_model
from attnscope.explanation.study import FEW_TEXTS, Study
from attnscope.explanation.tokens import ids_of
from attnscope.measure.windows import window_length
from attnscope.read.encoded import EncodedTexts, texts_and_targets, windows_of
from attnscope.read.pairs import LinePairs
from attnscope.read.windows import Window, window_name
from attnscope.support.arguments import Count, validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.read.encoded import Sources

AnyWindow = Window | Sequence[int]


@dataclass(frozen=True, eq=False)
class InterventionInput:
    """A model and the windows that it is to read."""

    model: PreTrainedModel  # as it was given, or loaded
    windows: list[AnyWindow]  # windows of any length; with a target where a decoder reads one
    name: str  # the model's
    mask_id: int | None  # the token that a masked language model predicts at; None where there is none, or no tokenizer

    @property
    def documents(self) -> list[str]:
        """The text that each window is from: what intervals are drawn over."""
        return [getattr(window, "source", window_name(window, number)) for number, window in enumerate(self.windows)]


class InputOptions(TypedDict, total=False):
    """How texts are read: see `attnscope.scan`."""

    targets: Sources
    tokenizer: Tokenizer
    window: int | None
    limit: int | None
    by_line: bool


@validated
def input_of(
    model: Model | Study | InterventionInput | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: Count | None = None,
    limit: Count | None = None,
    by_line: bool = False,
) -> InterventionInput:
    """Take a model and texts; a study gives those that it has."""
    limit = FEW_TEXTS if limit is None else limit
    if isinstance(model, Study | InterventionInput):
        beside = {"texts": texts, "targets": targets, "tokenizer": tokenizer, "window": window}
        if named := [name for name, value in beside.items() if value is not None]:
            raise AttnscopeError(
                f"found a study and {named[0]} beside it: a study has read its texts; leave {named[0]} out, or make "
                "another study"
            )
        if isinstance(model, InterventionInput):
            return model
        known = None if model.loaded is None else model.loaded.tokenizer
        return InterventionInput(model.model, model.windows[:limit], model.name, _mask_id(known))
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
    return InterventionInput(loaded.model, [*windows], loaded.name, _mask_id(loaded.tokenizer))


def inputs_of(model: PreTrainedModel, window: AnyWindow) -> dict[str, Tensor]:
    """Arguments of a forward pass over one window; without a target a decoder beside an encoder reads the same."""
    read = {"input_ids": window}
    if model.config.is_encoder_decoder:
        read["decoder_input_ids"] = getattr(window, "target", None) or window
    return {name: torch.tensor([list(ids_of(text))], device=model.device) for name, text in read.items()}


def _mask_id(tokenizer: Any) -> int | None:
    return getattr(tokenizer, "mask_token_id", None)
