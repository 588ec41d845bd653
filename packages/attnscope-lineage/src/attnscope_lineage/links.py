"""Word alignments: weights between words from cross-attention, links extracted from them, and error rates."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy import special
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import not_finite
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import attend_in_full
from attnscope.read.files import shown
from attnscope.statistics.intervals import without_skewness
from attnscope.statistics.units import LEAST
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError, out_of_memory, reason_of
from attnscope.support.numbers import percent
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope_lineage.data import collate
from attnscope_lineage.parallel_text import check_parallel, read_lines

End = Literal["drop", "keep", "null"]
Step = Literal["predicts", "reads"]
Words = Literal["space", "piece"]


def word_weights(
    weights: Float[np.ndarray, "*lead n m"],
    source_words: Int[np.ndarray, " m"],
    target_words: Int[np.ndarray, " n"],
    *,
    end: End = "drop",
    step: Step = "predicts",
    sizes: tuple[int, int] | None = None,
) -> Float[np.ndarray, "*lead target source"]:
    """Merge weights between subwords into weights between words; with ``end="keep"``, one more column: the marks."""
    sources, targets = sizes or (int(source_words.max(initial=-1)) + 1, int(target_words.max(initial=-1)) + 1)
    by_source = _membership(source_words, sources)  # (m, source)
    by_target = _membership(target_words, targets).T  # (target, n)
    if step == "reads":
        if by_target[:, -1:].any():
            raise AttnscopeError("no step reads the last target token; expected a mark such as </s> at the end")
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
    """(token, word): 1 if the token belongs to the word."""
    return (words[:, None] == np.arange(count)).astype(np.float64)


_CHECKED = 16  # tokens of the first pair, to check that the model's attention is captured


@dataclass(frozen=True, eq=False)
class ForcedPair:
    """A sentence pair as the model read it: its tokens, and the weights ``(layer, head, n, m)`` between them."""

    source: Pieces
    target: Pieces
    weights: np.ndarray

    def words(self, layer: int | None, head: int | None, **how: Any) -> np.ndarray:
        """Between words, of a layer and a head, or the mean over all."""
        weights = self.weights
        for name, number, count in zip(("layer", "head"), (layer, head), weights.shape, strict=False):
            if number is not None and not 0 <= number < count:
                raise AttnscopeError(f"found {name} {number}; expected a {name} of the decoder from 0 to {count - 1}")
        of_layer = weights.mean(0) if layer is None else weights[layer]
        return self.merged(of_layer.mean(0) if head is None else of_layer[head], **how)

    def merged(self, weights: np.ndarray, **how: Any) -> np.ndarray:
        """Weights between its tokens as weights between its words."""
        sizes = len(self.source.words), len(self.target.words)
        return word_weights(weights, self.source.word, self.target.word, sizes=sizes, **how)


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
                f"{type(model).__name__} is not an encoder-decoder; alignment needs the attention of a decoder to an "
                "encoder"
            )
        if not getattr(tokenizer, "is_fast", False):
            raise AttnscopeError("the tokenizer has no character offsets; expected a fast tokenizer (tokenizer.json)")
        self.model, self.tokenizer, self.sources, self.targets = model, tokenizer, sources, targets
        self.cut: Words = words
        self.batch_size = batch_size
        self._checked = False

    def only(self, lines: Sequence[int]) -> Iterator[ForcedPair]:
        texts = ([side[i] for i in lines] for side in (self.sources, self.targets))
        part = Forcing(self.model, self.tokenizer, *texts, words=self.cut, batch_size=self.batch_size)
        return part.pairs(range(len(lines)))

    def pairs(self, lines: range, tell: Tell = no_progress) -> Iterator[ForcedPair]:
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
    """Check on the first pair that the model's attention to the source is captured correctly."""
    pairs = enumerate(zip(left, right, strict=True), start=first)
    chosen = next((pair for pair in pairs if pair[1][0].ids and pair[1][1].ids), None)
    if chosen is None:
        return
    line, (source, target) = chosen
    inputs = _inputs(model, tokenizer, [source.ids[:_CHECKED]], [target.ids[:_CHECKED]])
    with borrowed(model):
        sites = verify(model, inputs, text=f"line {line}", cross_only=True, weights_suffice=True)
    if not any(site.kind == "cross" for site in sites):
        raise AttnscopeError(
            f"{type(model).__name__} cannot align: no attention of its decoder to the source was captured"
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
            f"the model fails on one of the pairs from line {first} to {first + len(left) - 1}; the longest is line "
            f"{first + longest} ({len(left[longest].ids)} source and {len(right[longest].ids)} target tokens): "
            f"{reason_of(error)}"
        ) from error
    return np.stack(layers)


def _inputs(
    model: PreTrainedModel, tokenizer: Any, sources: list[list[int]], targets: list[list[int]]
) -> dict[str, Tensor]:
    """Arguments of a forward pass over the targets."""
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
    options["verbose"] = False  # overlong lines are rejected below, with their number
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
    """Every token except marks is a word."""
    is_word = np.array(marks, dtype=np.int64) == 0
    word = np.where(is_word, np.cumsum(is_word) - 1, NO_WORD)
    pieces = [text[start:stop] for (start, stop), keep in zip(offsets, is_word, strict=True) if keep]
    return word, [piece.strip() or piece for piece in pieces]


Links: TypeAlias = frozenset[tuple[int, int]]  # (source word, target word), counted from 0

Rule = Literal["argmax", "intersection", "threshold"]  # threshold: links are all weights above a minimum
LEAST_WEIGHT = 0.2
_LONGEST_LINK = 40  # characters
_LINK = re.compile("([0-9]+)([-p?])([0-9]+)")


@dataclass(frozen=True)
class Gold:
    """Gold alignments of each sentence pair, made by people."""

    sure: list[Links]  # required links
    possible: list[Links]  # allowed links, including the sure ones


@dataclass(frozen=True)
class AlignmentScore:
    """Agreement of links with gold alignments."""

    error_rate: float  # AER, between 0 and 1; NaN with neither links nor sure links
    precision: float  # share of the links that are possible; NaN without links
    recall: float  # share of the sure links that were found; NaN without sure links
    links: int  # number of links


def links(weights: Float[np.ndarray, "target source"], rule: Rule = "argmax", threshold: float = LEAST_WEIGHT) -> Links:
    """Extract links from the weights of one sentence pair."""
    if not threshold > 0:
        raise AttnscopeError(f"threshold must be above 0, found {threshold}")
    chosen = weights >= threshold if rule == "threshold" else weights > 0
    if rule != "threshold" and weights.size:
        chosen &= np.arange(weights.shape[1]) == weights.argmax(1)[:, None]
        if rule == "intersection":
            chosen &= np.arange(weights.shape[0])[:, None] == weights.argmax(0)
    return frozenset((int(source), int(target)) for target, source in np.argwhere(chosen))


def score_alignments(aligned: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links]) -> AlignmentScore:
    """Compare links with gold alignments over a corpus: AER, precision and recall."""
    check_parallel({"the alignment": aligned, "the sure links": sure, "the possible links": possible})
    predicted, gold = sum(map(len, aligned)), sum(map(len, sure))
    hits = sum(len(a & s) for a, s in zip(aligned, sure, strict=True))
    right = sum(len(a & (p | s)) for a, s, p in zip(aligned, sure, possible, strict=True))
    error_rate = 1 - _ratio(hits + right, predicted + gold)
    return AlignmentScore(error_rate, precision=_ratio(right, predicted), recall=_ratio(hits, gold), links=predicted)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def read_gold(path: Path | str, first: int = 1) -> Gold:
    """Read a file of gold alignments: ``1-2`` is a sure link and ``1p2`` (or ``1?2``) a possible one."""
    gold = Gold([], [])
    for number, line in enumerate(read_lines(path), start=1):
        kind_of: dict[tuple[int, int], set[str]] = {}
        for part in line.split():
            match = _LINK.fullmatch(part) if len(part) <= _LONGEST_LINK else None
            if match is None or min(int(match[1]), int(match[3])) < first:
                raise AttnscopeError(
                    f"{shown(path)}, line {number}: {shortly(part)} is not a link; expected "
                    f"{first}-{first + 1}, or {first}p{first + 1} for a possible one, words counted from {first} "
                    "(--gold-first)"
                )
            kind_of.setdefault((int(match[1]) - first, int(match[3]) - first), set()).add(match[2])
        gold.sure.append(frozenset(link for link, kinds in kind_of.items() if "-" in kinds))
        gold.possible.append(frozenset(kind_of))
    return gold


def within(links: Links, sources: int, targets: int) -> Links:
    """The links that fit a pair of sentences with these numbers of words."""
    return frozenset((source, target) for source, target in links if source < sources and target < targets)


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Write links as Pharaoh did: ``source-target``, words counted from 0, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def links_of_line(line: str) -> Links:
    """The links of a line that `pharaoh` wrote."""
    return frozenset((int(source), int(target)) for source, target in (link.split("-") for link in line.split()))


_BELOW = 0.01  # of the level that random links stay above
_OUTSIDE = 0.05  # of an interval
_SKEWED, _VERY_SKEWED = 0.1, 0.5  # skewness of an error rate


@dataclass(frozen=True)
class Controls:
    """Error rates to hold an alignment's against."""

    # AER if each target word were linked to the source word at the same place of its sentence
    diagonal: float
    # mean AER of the same number of links for each target word, to source words drawn at random
    chance: float
    # the AER that such random links go below in 1 of 100, by the normal distribution; where the best of several heads
    # was chosen, the best of as many random ones
    chance_level: float
    heads: int = 1  # number of heads of which the best was chosen; 1 where none was
    # 95% interval of the alignment's own AER, of sentence pairs like these; NaN where the best of several heads was
    # chosen on these very pairs, which none holds for
    lower: float = math.nan
    upper: float = math.nan
    # the least and the most by which its AER lies above the diagonal's, in the same way; where the best of several
    # heads was chosen, an interval for all of them together
    above: float = math.nan
    below: float = math.nan


def controls_in_words(scores: Mapping[str, float]) -> str:
    """The controls next to an error rate, in words; the arrays of `Controls` and the error rate by name."""
    diagonal, above = f"diagonal {percent(scores['diagonal'])}", scores["above"]
    if math.isnan(above):
        diagonal += " (too few sentence pairs for a test)" if math.isfinite(scores["error_rate"]) else ""
    elif above > 0:
        diagonal = f"diagonal {percent(scores['diagonal'])} (significantly better)"
    elif scores["below"] >= 0:
        diagonal += " (no significant difference)"
    best = f"the best of {scores['heads']} such heads " if scores["heads"] > 1 else ""
    level = percent(scores["chance_level"])
    return f"{diagonal}; random words {percent(scores['chance'])}, {best}below {level} in 1 of 100"


def controls(aligned: Sequence[Links], gold: Gold, lengths: Sequence[tuple[int, int]], chosen_of: int = 1) -> Controls:
    """Error rates that need no model: of the diagonal, and of random links."""
    diagonal = [
        frozenset(((2 * target + 1) * sources // (2 * targets), target) for target in range(targets) if sources)
        for sources, targets in lengths
    ]
    mean = variance = 0.0
    for links, sure, possible, of_pair in zip(aligned, gold.sure, gold.possible, lengths, strict=True):
        certain = Counter(target for _, target in within(sure, *of_pair))
        both = Counter(target for _, target in within(sure | possible, *of_pair))
        for target, drawn in Counter(target for _, target in links).items():
            of_word = _drawn(drawn, of_pair[0], certain[target], both[target])
            mean, variance = mean + of_word[0], variance + of_word[1]
    whole = sum(map(len, aligned)) + sum(map(len, gold.sure))
    (rate, part), (of_diagonal, part_of_diagonal) = _by_pair(aligned, gold), _by_pair(diagonal, gold)
    lower, upper = _interval_of_rate(rate, part) if chosen_of == 1 else (math.nan, math.nan)
    above, below = _interval(rate - of_diagonal, part - part_of_diagonal, _OUTSIDE / chosen_of)
    best = mean + float(special.ndtri((1 - _BELOW) ** (1 / chosen_of))) * math.sqrt(variance)
    chance, level = ((1 - right / whole) if whole else math.nan for right in (mean, best))
    return Controls(of_diagonal, chance, level, chosen_of, lower, upper, above, below)


def _by_pair(aligned: Sequence[Links], gold: Gold) -> tuple[float, Float[np.ndarray, " pair"]]:
    """AER, and by how much each pair moves it, to the first order."""
    pairs = zip(aligned, gold.sure, gold.possible, strict=True)
    rows = [(len(links & sure) + len(links & (sure | maybe)), len(links) + len(sure)) for links, sure, maybe in pairs]
    counts = np.array(rows, dtype=np.float64).reshape(-1, 2)
    right, all_links = counts.sum(0)
    if not all_links:
        return math.nan, np.zeros(len(counts))
    share = right / all_links
    return float(1 - share), (share * counts[:, 1] - counts[:, 0]) / all_links


def _interval(estimate: float, parts: Float[np.ndarray, " pair"], outside: float) -> tuple[float, float]:
    count = len(parts)
    if count < LEAST or math.isnan(estimate):
        return math.nan, math.nan
    error = math.sqrt(count / (count - 1) * np.square(parts).sum())
    reach = float(special.stdtrit(count - 1, 1 - outside / 2)) * error
    return estimate - reach, estimate + reach


def _interval_of_rate(rate: float, parts: Float[np.ndarray, " pair"]) -> tuple[float, float]:
    """Student's where it is between 0 and 1 and is not skewed; else Wilson's, and Hall's end of a long tail."""
    lower, upper = _interval(rate, parts, _OUTSIDE)
    count, square = len(parts), float(np.square(parts).sum())
    if math.isnan(lower):
        return lower, upper
    variance = count / (count - 1) * square
    third = count**2 / ((count - 1) * (count - 2)) * float((parts**3).sum())
    skewness = third / variance**1.5 if variance else 0.0
    if lower > 0 and upper < 1 and abs(skewness) <= _SKEWED:
        return lower, upper
    quantile = float(special.stdtrit(count - 1, 1 - _OUTSIDE / 2))
    share = quantile**2 * variance / (rate * (1 - rate)) if variance else quantile**2 / count
    middle, half = ((rate + share / 2) / (1 + share), math.sqrt(share * rate * (1 - rate) + share**2 / 4) / (1 + share))
    low, high = (
        rate - math.sqrt(variance) * float(without_skewness(sign * quantile, np.array(skewness))) for sign in (1, -1)
    )
    lower = min(middle - half, low) if skewness < -_VERY_SKEWED else middle - half
    upper = max(middle + half, high) if skewness > _VERY_SKEWED else middle + half
    return max(lower, 0.0), min(upper, 1.0)


def _drawn(links: int, words: int, sure: int, possible: int) -> tuple[float, float]:
    """Mean and variance of a sum of 2 for each sure and 1 for each other possible word, over distinct random words."""
    mean = (sure + possible) / words
    spread = (3 * sure + possible) / words - mean**2  # 4 sure + (possible - sure)
    finite = (words - links) / (words - 1) if words > 1 else 0.0
    return links * mean, links * spread * finite
