"""Pairs of a clean and a corrupted text with two answers, from files or from Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.families import result_of
from attnscope.capture.forward import decoder_start
from attnscope.capture.placement import device_of
from attnscope.intervention.metrics import Metric
from attnscope.intervention.questions import (
    as_float32,
    class_of,
    embeddings,
    kind_of_question,
    log_of_sum,
    padded_answers,
)
from attnscope.models.common import IGNORED
from attnscope.read.shown import IdNames, tokens_of
from attnscope.read.sources import Text
from attnscope.read.spans import Span, tokens_within
from attnscope.read.windows import Frame, TargetTokenizer
from attnscope.report.schema import with_marked_spaces
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError

FIELDS = ("clean", "corrupted", "answer", "wrong")
EMBEDDINGS = ("clean_embedding", "corrupted_embedding")  # inputs of a metric of an encoder


def _along_the_change(states: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The part of the way from the corrupted to the clean run's embedding: 1 in the clean run, 0 in the other."""
    clean, corrupted = (inputs[name] for name in EMBEDDINGS)
    valid = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    way = clean - corrupted
    return ((embeddings(states, valid) - corrupted) * way).sum(1) / (way**2).sum(1)


#: The default of an encoder without a head.
ALONG_THE_CHANGE = Metric(
    _along_the_change,
    "shift of the embedding",
    "share",
    meaning="It is 1 in the clean run and 0 in the corrupted one, by projection. The embedding is the model's own, or "
    "the mean of its last layer over tokens.",
)

Answers: TypeAlias = "str | tuple[str, ...]"


@dataclass(frozen=True)
class Pair:
    """A clean and a corrupted text of equal length in tokens, and their answers.

    A masked language model predicts the one mask of each text, at the same position; other models the next token.
    """

    clean: str
    corrupted: str
    # right for the clean text: one token for a mask, else one or more; or several answers of one token each, whose
    # probabilities are summed
    answer: Answers
    wrong: Answers  # right for the corrupted text
    target: str = ""  # what the decoder of an encoder-decoder has written before the answer
    corrupted_target: str | None = None  # the same in the corrupted run, by default that of the clean one
    spans: Mapping[str, tuple[Span, Span]] = field(default_factory=dict[str, Any], hash=False)  # in both texts, by name

    def text(self, name: str) -> str:
        """A field as a text, several answers with bars between."""
        value: Answers = getattr(self, name)
        return value if isinstance(value, str) else "|".join(value)


@dataclass(frozen=True)
class PairTexts:
    """Pairs as the corpus of a signature."""

    pairs: tuple[Pair, ...]
    files: str = ""  # hash of the images or sounds that they name
    positions: Sequence[str] = ()  # names of the spans that matter

    def sha256(self) -> str:
        rows: list[Any] = []
        for pair in self.pairs:
            targets = [pair.target, pair.corrupted_target] if pair.target or pair.corrupted_target else []
            spans = [pair.spans.get(name) for name in self.positions]
            rows.append([pair.clean, pair.corrupted, pair.answer, pair.wrong, *targets, *spans])
        rows += [self.files] if self.files else []
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Pairs as token ids, all of one length.

    A row is a text; if answers have several tokens, two: the text and its answer, the text and the wrong answer.
    """

    clean: Tensor  # token ids ``(row, position)``, or images or sounds
    corrupted: Tensor
    positions: Int[Tensor, "row token"]  # of the predictions
    answers: Int[Tensor, "pair id"]  # token ids, padded
    wrongs: Int[Tensor, "pair id"]
    tokens: tuple[tuple[str, ...], ...]  # tokens of each text, those of a decoder's last, for display
    corrupted_tokens: tuple[tuple[str, ...], ...]
    # what the decoder of an encoder-decoder reads in the clean and in the corrupted run
    targets: tuple[Int[Tensor, "row query"], Int[Tensor, "row query"]] | None = None
    are_several: bool = False  # whether answers are several of one token each, not one of several tokens
    metric: Metric | None = None  # in place of answer minus wrong answer
    reads: str = "input_ids"  # the argument of the model that is clean or corrupted
    ends: tuple[Tensor, Tensor] | None = None  # embeddings of the clean and the corrupted run of an encoder
    # positions of each span that is patched; by default each position, the last one with the tokens of the answers
    spans: Mapping[str, Bool[Tensor, "row position"]] = field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        pairs: Sequence[Pair],
        loaded: LoadedModel,
        numbers: Sequence[int] | None = None,
        metric: Metric | None = None,
        media: Mapping[str, Tensor] | None = None,
        spans: Sequence[str] = (),
    ) -> EncodedPairs:
        """Encode pairs of one length; `numbers` name them in errors, by default 1, 2, ..., `spans` those to find.

        The texts may be names of `media`: images or sounds, as the model reads them.
        """
        kind = kind_of_question(loaded.model)
        encoded = (
            cls._of_media(pairs, loaded, metric, media)
            if media
            else cls._of_texts(pairs, loaded, numbers, metric, spans)
        )
        if kind != "output":
            return encoded
        with torch.no_grad():
            results = [result_of(loaded.model, loaded.model(**inputs)) for inputs in encoded.inputs]
        valid = torch.ones(encoded.clean.shape[:2], dtype=torch.bool, device=encoded.clean.device)
        clean, corrupted = (embeddings(result, valid) for result in results)
        return replace(encoded, ends=(clean, corrupted))

    @classmethod
    def _of_media(
        cls, pairs: Sequence[Pair], loaded: LoadedModel, metric: Metric | None, media: Mapping[str, Tensor]
    ) -> EncodedPairs:
        clean, corrupted = (torch.cat([media[getattr(pair, side)] for pair in pairs]) for side in FIELDS[:2])
        labels = [_labels(pair, loaded, f"pair {number}", metric) for number, pair in enumerate(pairs, 1)]
        padded, _, _ = padded_answers(labels, [0] * len(pairs), device_of(loaded.model))
        positions = torch.zeros(len(pairs), 1, dtype=torch.int64, device=padded.device)
        none = ((),) * len(pairs)
        encoded = cls(clean, corrupted, positions, padded[:, 0], padded[:, 1], none, none, metric=metric)
        several = any(not isinstance(side, str) for pair in pairs for side in (pair.answer, pair.wrong))
        return replace(encoded, are_several=several, reads=loaded.model.main_input_name)

    @classmethod
    def _of_texts(
        cls,
        pairs: Sequence[Pair],
        loaded: LoadedModel,
        numbers: Sequence[int] | None,
        metric: Metric | None,
        spans: Sequence[str],
    ) -> EncodedPairs:
        kind, tokenizer, masked = kind_of_question(loaded.model), loaded.tokenizer, is_masked(loaded)
        numbered = list(zip(numbers or range(1, len(pairs) + 1), pairs, strict=True))
        rows: list[list[list[int]]] = [[], [], [], []]
        positions: list[int] = []
        for number, pair in numbered:
            sides = [sides_of(pair, loaded, number, corrupted=corrupted) for corrupted in (False, True)]
            lengths = [(len(clean), len(corrupted)) for clean, corrupted in zip(*sides, strict=True)]
            unequal = next((both for both in lengths if both[0] != both[1]), None)
            if unequal is not None:
                raise AttnscopeError(
                    f"pair {number}: the clean text has {unequal[0]} tokens and the corrupted one {unequal[1]}; "
                    "expected the same number, so that positions match. Reword one"
                )
            if sides[0] == sides[1]:
                raise AttnscopeError(
                    f"pair {number}: clean and corrupted text have the same tokens; expected a difference"
                )
            for row, ids in zip(rows, chain(*zip(*sides, strict=True)), strict=False):
                row.append(ids)
            ids = [side[-1] for side in sides]
            positions.append(0 if kind == "label" else position_of_answer(ids, tokenizer, number, masked=masked))
        rows, names = [side for side in rows if side], IdNames(tokenizer)
        tokenizer = TargetTokenizer(tokenizer) if rows[2:] else tokenizer
        both_of = [(pair.answer, pair.wrong) for pair in pairs]
        are_several = not all(isinstance(answer, str) for both in both_of for answer in both)
        answers = [
            both_answers(tokenizer, both, f"pair {number}", masked=masked, are_several=are_several)
            if metric is None and kind != "label"
            else _labels(pair, loaded, f"pair {number}", metric)
            if kind in {"label", "output"}
            else [[one for word in _listed(side) for one in _tokens(tokenizer, word)] for side in both]
            for (number, pair), both in zip(numbered, both_of, strict=True)
        ]
        padded, predicting, each = padded_answers(answers, positions, device_of(loaded.model))
        if are_several or metric is not None or kind == "label":  # one prediction for all of them
            predicting, each = predicting[::each, :1], 1
        most = predicting.shape[1]
        # texts and all tokens of their answers but the last one; causal models ignore the padding
        after = [(ids + ids[-1:] * most)[: most - 1] for both in answers for ids in both[:each]]
        clean, other, *targets = (
            torch.tensor([side[at // each] + more * last for at, more in enumerate(after)], device=predicting.device)
            for side, last in zip(rows, [0, 0, 1, 1][-len(rows) :], strict=True)
        )
        tokens = [
            tuple(names.of([*chain(*both)]) for both in zip(*sides, strict=True)) for sides in (rows[::2], rows[1::2])
        ]
        both = (targets[0], targets[1]) if targets else None
        ids = clean, other, predicting, padded[:, 0], padded[:, 1]
        within = {name: torch.zeros(clean.shape, dtype=torch.bool, device=clean.device) for name in spans}
        for row, (number, pair) in enumerate(numbered):
            for name in spans:
                chosen = (
                    [positions[row]]
                    if is_prediction(name, pair)
                    else positions_of_span(pair, name, loaded.tokenizer, number)
                )
                within[name][row * each : (row + 1) * each, chosen] = True
        return cls(*ids, *tokens, targets=both, are_several=are_several, metric=metric, spans=within)

    @property
    def inputs(self) -> list[dict[str, Tensor]]:
        """Arguments of the clean and of the corrupted pass."""
        sides = [{self.reads: ids} for ids in (self.clean, self.corrupted)]
        return [
            side | {"decoder_input_ids": ids} for side, ids in zip(sides, self.targets or (), strict=False)
        ] or sides

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def predicting(self) -> Int[Tensor, "row token"] | None:
        """Positions whose logits a pass returns; None: all, for a metric of one's own."""
        return self.positions if self.metric is None else None

    def measure(self, logits: Float[Tensor, ...], inputs: dict[str, Tensor]) -> Float[Tensor, " pair"]:
        """The metric of a pass: answer minus wrong answer, or that of one's own."""
        if self.metric is None:
            return self.difference(logits)
        return self.metric.of_texts(logits, self.with_answers(inputs), len(self))

    def with_answers(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of a pass as a metric of one's own gets them."""
        more = {} if self.ends is None else dict(zip(EMBEDDINGS, self.ends, strict=True))
        return inputs | {"answer": self.answers, "wrong": self.wrongs, "position": self.positions[:, 0]} | more

    def measure_all(self, logits: Float[Tensor, ...], inputs: dict[str, Tensor]) -> Float[Tensor, "variant pair"]:
        """The metric of each variant of a pass."""
        if self.metric is None:
            return self.difference(logits)
        return torch.stack([self.measure(one, inputs) for one in logits])

    @property
    def patched_positions(self) -> list[Bool[Tensor, "row position"]]:
        """The positions that are patched at a time: spans, or each one, the last with the tokens of the answers."""
        if self.spans:
            return [*self.spans.values()]
        return self._single_positions(self.clean if self.targets is None else self.targets[0])

    def positions_in(self, *, decoder: bool) -> list[Bool[Tensor, "row position"]]:
        """The positions of one stack that are patched at a time."""
        if decoder or self.targets is None:
            return self.patched_positions
        return self._single_positions(self.clean, answered=False)

    def _single_positions(self, ids: Tensor, *, answered: bool = True) -> list[Bool[Tensor, "row position"]]:
        last = ids.shape[1] - (self.positions.shape[1] if answered else 1)
        numbers = torch.arange(ids.shape[1], device=ids.device).clamp(max=last)
        return [(numbers == number).expand(ids.shape) for number in range(last + 1)]

    def by_pair(self, rows: Float[Tensor, "row ..."]) -> Float[Tensor, "pair ..."]:
        """Sum over the rows of each pair."""
        return rows.unflatten(0, (len(self), -1)).sum(1)

    def turned(self) -> EncodedPairs:
        """Swap clean and corrupted texts, but not the answers."""
        targets = self.targets and (self.targets[1], self.targets[0])
        return replace(self, clean=self.corrupted, corrupted=self.clean, targets=targets)

    def difference(self, logits: Float[Tensor, "*variant row token vocabulary"]) -> Float[Tensor, "*variant pair"]:
        """Logit of the answer minus that of the wrong answer; of several tokens, the sums of log probabilities.

        Of several answers, the log of the sum of their probabilities.
        """
        if self.are_several:
            sides = [log_of_sum(logits[..., 0, :], ids) for ids in (self.answers, self.wrongs)]
            return sides[0] - sides[1]
        if self.answers.shape[1] == 1:
            index = torch.stack([self.answers, self.wrongs], -1).expand(*logits.shape[:-1], 2)
            both = as_float32(logits.gather(-1, index)[..., 0, :])
        else:
            labels = torch.stack([self.answers, self.wrongs], 1).flatten(0, 1)
            index = labels.clamp(min=0)[..., None].expand(*logits.shape[:-1], 1)
            logs = as_float32(logits.gather(-1, index)[..., 0]) - as_float32(logits).logsumexp(-1)
            both = torch.where(labels == IGNORED, 0, logs).sum(-1).unflatten(-1, (-1, 2))
        return both[..., 0] - both[..., 1]


def _labels(pair: Pair, loaded: LoadedModel, where: str, metric: Metric | None) -> list[list[int]]:
    """The classes that are right and wrong for a pair, as numbers; empty without answers, for a metric of one's own."""
    sides = [_listed(side) for side in (pair.answer, pair.wrong)]
    if kind_of_question(loaded.model) == "output" or (metric is not None and sides == [[""], [""]]):
        return [[], []]
    both = [[class_of(label, loaded.model, where) for label in side] for side in sides]
    if metric is None and {*both[0]} & {*both[1]}:
        raise AttnscopeError(f"{where}: answer and wrong are the same label; expected labels that differ")
    return both


def _listed(answer: Answers) -> Sequence[str]:
    return [answer] if isinstance(answer, str) else answer


def position_labels(clean: Sequence[Sequence[str]], corrupted: Sequence[Sequence[str]]) -> list[str]:
    """Label of each position: its token; clean/corrupted if they differ; with "…" if pairs differ."""
    labels: list[str] = []
    for clean_tokens, corrupted_tokens in zip(zip(*clean, strict=True), zip(*corrupted, strict=True), strict=True):
        first = "/".join(dict.fromkeys(map(with_marked_spaces, (clean_tokens[0], corrupted_tokens[0]))))
        labels.append(first if len(set(zip(clean_tokens, corrupted_tokens, strict=True))) == 1 else f"{first}…")
    return labels


def sides_of(pair: Pair, loaded: LoadedModel, number: int, *, corrupted: bool = False) -> list[list[int]]:
    """Token ids of one text of a pair, and of what the decoder of an encoder-decoder reads."""
    tokenizer, kind = loaded.tokenizer, kind_of_question(loaded.model)
    two = kind == "translation"
    text, target = (pair.corrupted, pair.corrupted_target) if corrupted else (pair.clean, pair.target)
    ids: list[int] = tokenizer(text)["input_ids"]
    sides = [ids if kind != "next" else _unended(ids, tokenizer)]
    if not ids:
        raise AttnscopeError(f"pair {number}: {text!r} has no tokens; expected at least one")
    if two:
        whole: list[int] = TargetTokenizer(tokenizer)(pair.target if target is None else target)["input_ids"]
        ended = bool(whole) and whole[-1] == tokenizer.eos_token_id
        sides.append([decoder_start(loaded.model)(whole or [0]), *whole[: -1 if ended else None]])
    return sides


PREDICTION = "prediction"  # name of the span that is the position of the prediction


def is_prediction(name: str, pair: Pair) -> bool:
    """Whether a span is the position of the prediction, which every pair has."""
    return name == PREDICTION and name not in pair.spans


def positions_of_span(pair: Pair, name: str, tokenizer: Any, number: int) -> list[int]:
    """The positions of a span, which are the same in both texts."""
    if name not in pair.spans:
        listed = ", ".join([*pair.spans, PREDICTION])
        raise AttnscopeError(f"pair {number}: there is no span {name!r} (positions, --positions); choose from {listed}")
    both: list[list[int]] = []
    for text, span in zip((pair.clean, pair.corrupted), pair.spans[name], strict=True):
        window = Frame.of(tokenizer).around(tokens_of(tokenizer, text), Text(f"pair {number}", text))
        both.append(np.flatnonzero(tokens_within(window, span, f"pair {number}: the span {name!r}")).tolist())
    if not both[0] or both[0] != both[1]:
        places = [", ".join(map(str, one)) or "none" for one in both]
        raise AttnscopeError(
            f"pair {number}: the span {name!r} is at positions {places[0]} of the clean text and {places[1]} of the "
            "corrupted one; expected the same, at least one. Reword one, or name other positions"
        )
    return both[0]


def _unended(ids: list[int], tokenizer: Any) -> list[int]:
    """Ids without the end token, which nothing follows."""
    end = getattr(tokenizer, "eos_token_id", None)
    return ids[:-1] if ids and end is not None and ids[-1] == end and ids[-1] != ids[0] else ids


def position_of_answer(both: list[list[int]], tokenizer: Any, number: int, *, masked: bool) -> int:
    if not masked:
        return len(both[0]) - 1
    positions = [np.flatnonzero(np.array(ids) == tokenizer.mask_token_id).tolist() for ids in both]
    if len(positions[0]) != 1 or positions[0] != positions[1]:
        raise AttnscopeError(
            f"pair {number}: found {len(positions[0])} and {len(positions[1])} masks; expected one "
            f"{tokenizer.mask_token} in each text, at the same position"
        )
    return int(positions[0][0])


def _tokens(tokenizer: Any, word: str) -> list[int]:
    """The ids of the tokens with this text, or of the one with this name."""
    ids: list[int] = tokenizer(word, add_special_tokens=False)["input_ids"]
    bare: list[int] = tokenizer(word.lstrip(), add_special_tokens=False)["input_ids"]
    if 0 < len(bare) < len(ids) and tokenizer.convert_ids_to_tokens(bare)[0].startswith("▁"):
        ids = bare  # it writes the space itself
    vocabulary: dict[str, int] = tokenizer.get_vocab() if len(ids) != 1 else {}
    return [int(vocabulary[word])] if word in vocabulary else ids


def one_token(tokenizer: Any, word: str, what: str) -> int:
    """The id of the token with this text or name."""
    ids = _tokens(tokenizer, word)
    if len(ids) == 1:
        return ids[0]
    names = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(ids[:4])))
    raise AttnscopeError(
        f"{shortly(word)} ({what}) has {len(ids)} tokens ({names}); expected one: choose another word, or a listed "
        "token"
    )


def both_answers(
    tokenizer: Any, words: Sequence[Answers], where: str, *, masked: bool, are_several: bool = False
) -> list[list[int]]:
    """Token ids of the right and of the wrong answer; a mask, and each of several answers, is one token."""
    if are_several or not all(isinstance(word, str) for word in words):
        sides = [[side] if isinstance(side, str) else side for side in words]
        both = [[one_token(tokenizer, word, f"{where}: one of several answers") for word in side] for side in sides]
        shared = {*both[0]} & {*both[1]}
        if shared:
            name = tokenizer.convert_ids_to_tokens([*shared][:1])[0]
            raise AttnscopeError(f"{where}: {name!r} is an answer and a wrong one; expected answers that differ")
        return both
    names = zip(cast("Sequence[str]", words), ("answer", "wrong"), strict=True)
    both = [
        [one_token(tokenizer, word, f"{where}: the {name}")] if masked else _tokens(tokenizer, word)
        for word, name in names
    ]
    if all(one == other for one, other in zip(*both, strict=False)):
        raise AttnscopeError(
            f"{where}: answer and wrong ({words[0]!r} and {words[1]!r}) have the same tokens, or one begins with the "
            "other and is never the likelier one; expected answers that differ before either ends"
        )
    return both


def is_masked(loaded: LoadedModel) -> bool:
    """Whether the model predicts a mask, not the next token."""
    return kind_of_question(loaded.model) == "masked"


def texts_of(pairs: xr.Dataset) -> list[tuple[str, ...]] | range:
    """The texts of each pair in a result, which are the units of intervals and tests: equal pairs count once."""
    texts = [pairs[name].to_numpy().tolist() for name in ("clean_text", "corrupted_text") if name in pairs.coords]
    return list(zip(*texts, strict=True)) if texts else range(pairs.sizes["pair"])
