"""From a translation model's cross-attention to weights between words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import not_finite
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import attend_in_full, output_of
from attnscope.lineage.data import collate
from attnscope.lineage.parallel_text import check_parallel
from attnscope.support.errors import AttnscopeError, out_of_memory, reason_of
from attnscope.support.progress import Progress, Tell, no_progress

End = Literal["drop", "keep", "null"]
Step = Literal["predicts", "reads"]
Words = Literal["space", "piece"]


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """The weights of one sentence pair between words."""

    source: list[str]  # the words
    target: list[str]
    weights: np.ndarray  # ``(..., target, source)``; with ``end="keep"`` one more column, the marks


def word_weights(
    weights: Float[np.ndarray, "*lead n m"],
    source_words: Int[np.ndarray, " m"],
    target_words: Int[np.ndarray, " n"],
    *,
    end: End = "drop",
    step: Step = "predicts",
    sizes: tuple[int, int] | None = None,
) -> Float[np.ndarray, "*lead target source"]:
    """Merge weights between subwords into weights between words."""
    sources, targets = sizes or (int(source_words.max(initial=-1)) + 1, int(target_words.max(initial=-1)) + 1)
    by_source = _membership(source_words, sources)  # (m, source)
    by_target = _membership(target_words, targets).T  # (target, n)
    if step == "reads":
        if by_target[:, -1:].any():
            raise AttnscopeError("no step reads the last target token: it must end with a mark such as </s>")
        by_target = np.roll(by_target, 1, axis=1)  # row t + 1 reads token t
    by_target = by_target / np.maximum(by_target.sum(1, keepdims=True), 1)
    rows = by_target @ weights.astype(np.float64)
    on_words = rows @ by_source
    on_marks = rows[..., source_words == NO_WORD].sum(-1, keepdims=True)
    if end == "keep":
        return np.concatenate([on_words, on_marks], -1)
    left = on_words.sum(-1, keepdims=True)
    shares = np.divide(on_words, left, out=np.zeros_like(on_words), where=left > 0)
    if end == "null":
        shares[(on_marks > on_words.max(-1, keepdims=True, initial=0))[..., 0]] = 0
    return shares


def _membership(words: np.ndarray, count: int) -> np.ndarray:
    """(token, word): 1 where the token belongs to the word."""
    return (words[:, None] == np.arange(count)).astype(np.float64)


_CHECKED = 16  # tokens of the first pair that tell whether the model's attention is captured


@dataclass(frozen=True, eq=False)
class ForcedPair:
    """A sentence pair as the model read it: its tokens, and the weights ``(layer, head, n, m)`` between them."""

    source: Pieces
    target: Pieces
    weights: np.ndarray

    def words(self, layer: int | None, head: int | None, **how: Any) -> WordAlignment:
        """Between words, of a layer and a head, or the mean over all."""
        weights = self.weights
        for name, number, count in zip(("layer", "head"), (layer, head), weights.shape, strict=False):
            if number is not None and not 0 <= number < count:
                raise AttnscopeError(f"there is no {name} {number}: the decoder has {name}s 0 to {count - 1}")
        of_layer = weights.mean(0) if layer is None else weights[layer]
        return self._merged(of_layer.mean(0) if head is None else of_layer[head], how)

    def words_of_heads(self, **how: Any) -> WordAlignment:
        """Between words, ``(layer, head, target, source)``: every head for itself."""
        return self._merged(self.weights, how)

    def _merged(self, weights: np.ndarray, how: dict[str, Any]) -> WordAlignment:
        source, target = self.source, self.target
        sizes = (len(source.words), len(target.words))
        merged = word_weights(weights, source.word, target.word, sizes=sizes, **how)
        return WordAlignment(source.words, target.words, merged)


class Forcing:
    """An encoder-decoder that is run over given translations, some lines at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        words: Words = "space",
        batch_size: int = 16,
    ) -> None:
        self.count = check_parallel({"the source": sources, "the target": targets})
        if not model.config.is_encoder_decoder:
            raise AttnscopeError(
                f"{type(model).__name__} is not an encoder-decoder: alignments are read off the attention of a decoder "
                "to an encoder"
            )
        if not getattr(tokenizer, "is_fast", False):
            raise AttnscopeError("the tokenizer gives no character offsets: a fast one (tokenizer.json) is needed")
        self.model, self.tokenizer, self.sources, self.targets = model, tokenizer, sources, targets
        self.cut, self.batch_size = words, batch_size
        self._checked = False

    def only(self, lines: Sequence[int]) -> Iterator[ForcedPair]:
        """Some lines alone."""
        texts = ([side[i] for i in lines] for side in (self.sources, self.targets))
        part = Forcing(self.model, self.tokenizer, *texts, words=self.cut, batch_size=self.batch_size)
        return part.pairs(range(len(lines)))

    def pairs(self, lines: range, tell: Tell = no_progress) -> Iterator[ForcedPair]:
        """Those lines in batches, which begin anew at the first of them."""
        for start in range(lines.start, lines.stop, self.batch_size):
            stop = min(start + self.batch_size, lines.stop)
            left = cut(self.tokenizer, list(self.sources[start:stop]), self.cut, target=False)
            right = cut(self.tokenizer, list(self.targets[start:stop]), self.cut, target=True)
            if not self._checked:
                _check_capture(self.model, self.tokenizer, left, right, first=start + 1)
                self._checked = True
            attention = _cross_attention(self.model, self.tokenizer, left, right, first=start + 1)
            for i, (source, target) in enumerate(zip(left, right, strict=True)):
                weights = attention[:, i, :, : len(target.ids), : len(source.ids)]
                strange = ~np.isfinite(weights).all((1, 2, 3))
                if strange.any():
                    where = f"layer {int(strange.argmax())} of the decoder's attention to the source"
                    raise not_finite(f"line {start + i + 1}", where, self.model.dtype)
                yield ForcedPair(source, target, weights)
            tell(Progress("align", stop / self.count, {"pairs": stop}))


def _check_capture(model: PreTrainedModel, tokenizer: Any, left: list[Pieces], right: list[Pieces], first: int) -> None:
    """Refuse a model whose attention to the source is not seen as it is, on the start of the first pair with tokens."""
    pairs = enumerate(zip(left, right, strict=True), start=first)
    chosen = next((pair for pair in pairs if pair[1][0].ids and pair[1][1].ids), None)
    if chosen is None:
        return
    line, (source, target) = chosen
    inputs = _inputs(model, tokenizer, [source.ids[:_CHECKED]], [target.ids[:_CHECKED]])
    with borrowed(model):
        sites, _ = verify(model, inputs, text=f"line {line}", cross_only=True, weights_suffice=True)
    if not any(site.kind == "cross" for site in sites):
        raise AttnscopeError(
            f"{type(model).__name__} has no attention of its decoder to the source, as far as is seen: nothing can be "
            "aligned with it"
        )


def _cross_attention(
    model: PreTrainedModel, tokenizer: Any, left: list[Pieces], right: list[Pieces], first: int
) -> np.ndarray:
    """(layer, pair, head, n, m) of one batch, padded on the right."""
    layers: list[np.ndarray] = []

    def observe(site: Site, call: AttentionCall) -> Tensor:
        if site.kind != "cross":
            return output_of(call)
        output, weights = attend_in_full(call)
        layers.append(weights.float().cpu().numpy())
        return output

    inputs = _inputs(model, tokenizer, [pieces.ids for pieces in left], [pieces.ids for pieces in right])
    try:
        with borrowed(model), torch.inference_mode(), watching(model, observe, weights_suffice=True):
            model(**inputs)
    except (IndexError, ValueError, RuntimeError) as error:
        longest = max(range(len(left)), key=lambda i: max(len(left[i].ids), len(right[i].ids)))
        raise out_of_memory(error) or AttnscopeError(
            f"the model cannot take one of the pairs from line {first} to {first + len(left) - 1}; the longest is line "
            f"{first + longest} ({len(left[longest].ids)} source and {len(right[longest].ids)} target tokens): "
            f"{reason_of(error)}"
        ) from error
    return np.stack(layers)


def _inputs(
    model: PreTrainedModel, tokenizer: Any, sources: list[list[int]], targets: list[list[int]]
) -> dict[str, Tensor]:
    """Arguments of a forward pass that says the targets."""
    fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return {name: tensor.to(model.device) for name, tensor in collate(sources, targets, pad_id=fill).items()}


NO_WORD = -1  # the word of </s> and other marks


@dataclass(frozen=True, eq=False)
class Pieces:
    """One sentence as the tokenizer cut it: token ids, and for each the word it belongs to."""

    ids: list[int]
    word: np.ndarray
    words: list[str]


def cut(tokenizer: Any, texts: list[str], words: str, *, target: bool) -> list[Pieces]:
    options = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "truncation": False}
    options["verbose"] = False  # too long is refused below, by its line
    coded = tokenizer(text_target=texts, **options) if target else tokenizer(texts, **options)
    rows = zip(texts, coded["input_ids"], coded["offset_mapping"], coded["special_tokens_mask"], strict=True)
    belongs = _spaced if words == "space" else _each
    return [Pieces(list(ids), *belongs(text, offsets, marks)) for text, ids, offsets, marks in rows]


def _spaced(text: str, offsets: Sequence[tuple[int, int]], marks: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    """The word of each token, and the words between spaces."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    ends = [stop for _, stop in spans]
    # A token belongs to the first word that ends after it begins: spaces go to the word they precede.
    word = [
        NO_WORD if mark or not spans else min(int(np.searchsorted(ends, start, side="right")), len(spans) - 1)
        for (start, _), mark in zip(offsets, marks, strict=True)
    ]
    return np.array(word, dtype=np.int64), [text[start:stop] for start, stop in spans]


def _each(text: str, offsets: Sequence[tuple[int, int]], marks: Sequence[int]) -> tuple[np.ndarray, list[str]]:
    """Every token that is no mark is a word."""
    is_word = np.array(marks, dtype=np.int64) == 0
    word = np.where(is_word, np.cumsum(is_word) - 1, NO_WORD)
    pieces = [text[start:stop] for (start, stop), keep in zip(offsets, is_word, strict=True) if keep]
    return word, [piece.strip() or piece for piece in pieces]
