"""A model and its texts, in whatever form they are given: windows of any length, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attnscope._arguments import typed
from attnscope.capture import decoder_start, load_model
from attnscope.checks import check_whole
from attnscope.corpus import EncodedTexts, LinePairs, Window, texts_and_targets, window_name, windows_of
from attnscope.errors import AttnscopeError
from attnscope.mechanism import FEW_TEXTS, Study
from attnscope.mechanism.evidence import ids_of
from attnscope.statistics import window_length

if TYPE_CHECKING:
    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources

AnyWindow = Window | Sequence[int]


@dataclass(frozen=True, eq=False)
class Given:
    """A model and the windows that it is to read.

    Attributes
    ----------
    model
        As it was given, or loaded.
    windows
        Windows of any length; with a target where a decoder reads one.
    name
        The model's.
    mask_id
        The token that a masked language model predicts at; None where there is none, or no tokenizer.

    Examples
    --------
    >>> given = given_texts("bundled", limit=2)
    >>> given.documents, given.mask_id is not None
    (['01-attention.txt', '01-attention.txt'], True)
    """

    model: PreTrainedModel
    windows: list[AnyWindow]
    name: str
    mask_id: int | None

    @property
    def documents(self) -> list[str]:
        """The text that each window is from: what intervals are drawn over."""
        return [
            getattr(window, "source", window_name(window, number))
            for number, window in enumerate(self.windows)
        ]


@typed
def given_texts(
    model: Model | Study | Given | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    by_line: bool = False,
) -> Given:
    """Take a model and texts; a study gives those that it has.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, by_line
        See `attnscope.scan`. A `attnscope.mechanism.Study` or another `Given` brings its texts.
    limit
        Windows to read, by default 8.

    Raises
    ------
    AttnscopeError
        What `attnscope.scan` raises of them.

    Examples
    --------
    >>> given_texts(texts=["The tide is out."]).windows[0].tokens[:2]
    ('<s>', ' The')
    """
    check_whole(1, window=window, limit=limit)
    limit = FEW_TEXTS if limit is None else limit
    if isinstance(model, Study | Given):
        beside = {"texts": texts, "targets": targets, "tokenizer": tokenizer, "window": window}
        if named := [name for name, value in beside.items() if value is not None]:
            raise AttnscopeError(
                f"found a study and {named[0]} beside it: a study has read its texts; leave {named[0]} out, or make "
                "another study"
            )
        if isinstance(model, Given):
            return model
        known = None if model.loaded is None else model.loaded.tokenizer
        return Given(model.model, model.windows[:limit], model.name, _mask_id(known))
    corpus, target = texts_and_targets(
        texts, targets, by_line=by_line or targets is not None, blank_lines=targets is not None
    )
    if isinstance(model, PreTrainedModel) and tokenizer is None and isinstance(corpus, EncodedTexts):
        return Given(model, list(corpus.rows[:limit]), type(model).__name__, None)
    loaded = load_model(model, tokenizer=tokenizer)
    length = window_length(loaded, window)
    if target is None or isinstance(corpus, EncodedTexts):
        windows = list(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=limit), limit))
    else:
        start = decoder_start(loaded.model)
        pairs = LinePairs(corpus, target, loaded.tokenizer, start, length=length, limit=limit)
        pairs.check()
        windows = list(pairs)
    return Given(loaded.model, [*windows], loaded.name, _mask_id(loaded.tokenizer))


def inputs_of(model: PreTrainedModel, window: AnyWindow) -> dict[str, Tensor]:
    """Arguments of a forward pass over one window; without a target a decoder beside an encoder reads the same.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> inputs_of(BertModel(config), [5, 6, 7])
    {'input_ids': tensor([[5, 6, 7]])}
    """
    read = {"input_ids": window}
    if model.config.is_encoder_decoder:
        read["decoder_input_ids"] = getattr(window, "target", None) or window
    return {name: torch.tensor([list(ids_of(text))], device=model.device) for name, text in read.items()}


def _mask_id(tokenizer: Any) -> int | None:
    return getattr(tokenizer, "mask_token_id", None)
