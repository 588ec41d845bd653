"""What a model reads in a walk: the sentence, and beside an encoder the text of its decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attnscope.capture import LoadedModel, decoder_start, position_table_length
from attnscope.corpus import Corpus, TargetTokenizer, Window, cut_windows, shifted
from attnscope.errors import AttnscopeError, out_of_memory, reason_of
from attnscope.translation import translate_lines
from attnscope.walkthrough._compute import check_number

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_TOKENS = 1024  # more than anyone walks through


@dataclass(frozen=True)
class Read:
    """A text, and what the model reads of it.

    Attributes
    ----------
    name
        What to call it.
    text
        In words.
    window
        In tokens.
    """

    name: str
    text: str
    window: Window

    def position(self, wanted: int | str | None) -> int:
        """Position of a token by its number, or by characters of the text that it covers; of the last by default."""
        window = self.window
        if wanted is None:
            return max((i for i, special in enumerate(window.special) if not special), default=0)
        if isinstance(wanted, int) or wanted.isdecimal():
            return check_number("token", int(wanted), len(window))
        exact = [i for i, token in enumerate(window.tokens) if token.strip() == wanted.strip()]
        if exact:
            return exact[0]
        start = self.text.find(wanted)
        covering = [i for i, (first, last) in enumerate(window.spans) if first <= start < last]
        if start < 0 or not covering:
            shown = " ".join(f"{i}:{token.strip()}" for i, token in enumerate(window.tokens[:40]))
            raise AttnscopeError(f"{self.name} has no {wanted!r}; choose by position or text among\n{shown}")
        return covering[0]


@dataclass(frozen=True)
class Texts:
    """The sentence, what a decoder beside an encoder reads, and whether the model itself made the latter."""

    source: Read
    target: Read | None = None
    translated: bool = False

    def inputs(self, model: PreTrainedModel) -> dict[str, Any]:
        """Arguments of a forward pass."""
        texts = {"input_ids": self.source, "decoder_input_ids": self.target}
        return {
            name: torch.tensor([text.window.ids], device=model.device)
            for name, text in texts.items()
            if text is not None
        }

    def sides(self, kind: str) -> tuple[Read, Read]:
        """What queries and keys are made of in a layer of this kind."""
        queries = self.source if self.target is None or kind == "self" else self.target
        return queries, self.source if kind == "cross" else queries


def read_texts(sentence: str, target: str | None, loaded: LoadedModel) -> Texts:
    """Cut the sentence into tokens; for an encoder-decoder also the target, by default the model's own translation.

    Raises
    ------
    AttnscopeError
        If a text is empty, too long or one token, there is a target and no decoder beside an encoder that could read
        it, or the model cannot translate the sentence where there is none.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> read_texts("The tide is out.", None, load_model("bundled", device="cpu")).source.window.tokens[:2]
    ('<s>', ' The')
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    most = min(MOST_TOKENS, position_table_length(model) or MOST_TOKENS)
    start = decoder_start(model) if target is not None or model.config.is_encoder_decoder else None
    source = _read("the sentence", sentence, tokenizer, most)
    if start is None:
        return Texts(source)
    text = _translation(loaded, sentence) if target is None else target
    said = _read("the target", text, TargetTokenizer(tokenizer), most)
    heard = Read(said.name, text, shifted(said.window, tokenizer, start))
    return Texts(source, heard, translated=target is None)


def _read(name: str, text: str, tokenizer: Any, most: int) -> Read:
    if not text.strip():
        raise AttnscopeError(f"{name} is empty: give some words to walk through")
    length = max(len(text), most) * 4
    (window,) = cut_windows(Corpus.from_sources([text]), tokenizer, length=length, limit=1)
    if len(window) > most:
        raise AttnscopeError(
            f"{name} has {len(window)} tokens; at most {most} can be walked through: shorten it"
        )
    if len(window) < 2:  # noqa: PLR2004
        raise AttnscopeError(f"{name} is one token, which can only look at itself: give a longer one")
    return Read(name, text, window)


def _translation(loaded: LoadedModel, sentence: str) -> str:
    """The model's own, the likeliest token at a time."""
    try:
        (text,) = translate_lines(loaded.model, loaded.tokenizer, [sentence], beams=1).texts
    except Exception as error:  # families raise what they like where a head or a setting is missing
        raise out_of_memory(error) or _no_translation(loaded, reason_of(error)) from error
    if not text:
        raise _no_translation(loaded, "it says nothing")
    return text


def _no_translation(loaded: LoadedModel, reason: str) -> AttnscopeError:
    return AttnscopeError(
        f"{type(loaded.model).__name__} does not translate the sentence itself ({reason}): say what its decoder reads "
        "(--target)"
    )
