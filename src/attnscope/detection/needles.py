"""Needles hidden in a text, and what a model answers when it is asked about them (Wu et al. 2024)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex
import torch

from attnscope.capture.borrow import quiet
from attnscope.capture.placement import device_of
from attnscope.detection.role import Probe, plain_window
from attnscope.detection.seen import NeedleCalls
from attnscope.read.files import json_objects
from attnscope.read.shown import tokenize
from attnscope.read.windows import Window
from attnscope.support.arguments import validated
from attnscope.support.checks import check_kind, shortly
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.loaded import LoadedModel
    from attnscope.kernels.call import AttentionCall

    #: How needles are given: a file of JSON Lines, or its objects.
    Needles = str | Path | Sequence[Mapping[str, str]]

_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LONGEST_ANSWER = 50
_ANSWERED = 0.5  # share of the needle's words in an answer, above which it is one (ROUGE-1 recall)
_WORD = regex.compile(r"(?V1)[\p{Han}\p{Hiragana}\p{Katakana}]|[\w--[\p{Han}\p{Hiragana}\p{Katakana}]]+")
_FIELDS = ("needle", "question", "real_needle", "prompt")


@dataclass(frozen=True)
class Needle:
    """A sentence to hide, what is asked after the text, and the part of the sentence that answers it."""

    text: str
    prompt: str
    answer: str


@dataclass(frozen=True, eq=False)
class AnsweredPrompt:
    """A prompt that was answered."""

    ids: tuple[int, ...]  # prompt and answer, but for the last token said
    needle: tuple[int, ...]  # places of the needle's tokens
    said: tuple[int, ...]  # tokens of the answer; the first is said by the last token of the prompt


@validated
def needles_of(given: Needles | None) -> list[Needle]:
    r"""Needles from a file of JSON Lines or from objects, with the names of fields that the paper's code has."""
    if given is None:
        return [_needle(value, "a needle of ours") for value in _OURS]
    if isinstance(given, str | Path):
        path = Path(given)
        return [_needle(value, f"{path}, line {number}") for number, value in json_objects(path, "needle")]
    check_kind("a file of JSON Lines, or needles in a list", list, tuple, needles=given)
    return [_needle(value, f"needle {number}") for number, value in enumerate(given, start=1)]


_OURS = tuple(
    {"needle": needle, "question": question}
    for needle, question in (
        ("The secret word of the old harbour is marmalade.", "What is the secret word of the old harbour?"),
        ("Anna keeps the key of the tower under the blue stone.", "Where does Anna keep the key of the tower?"),
        (
            "On the third day the ship came back with seven red lanterns.",
            "With what did the ship come back on the third day?",
        ),
    )
)


def _needle(value: Any, where: str) -> Needle:
    strings = isinstance(value, Mapping) and all(isinstance(value.get(name, ""), str) for name in _FIELDS)
    if not strings or not value.get("needle", "").strip() or not (value.get("question") or value.get("prompt")):
        raise AttnscopeError(
            f'{where}: expected a needle and a question, as in {{"needle": "The best pie is of plums.", "question": '
            '"Which pie is best?"}'
        )
    text, answer = value["needle"], value.get("real_needle", value["needle"])
    if answer.strip() not in text:
        raise AttnscopeError(
            f"{where}: real_needle {shortly(answer)} is not a part of the needle; expected the part that answers"
        )
    asked = f"\nBased on the content of the text, Question: {value.get('question')}\nAnswer:"
    return Needle(text.strip(), value.get("prompt", asked), answer.strip())


def needle_probe(
    loaded: LoadedModel, windows: Sequence[Window], needles: Sequence[Needle], length: int
) -> tuple[Probe | None, int]:
    """Ask a model about each needle at five depths of a text; the prompts that it answers, and how many there were."""
    answers: list[AnsweredPrompt] = []
    for needle in needles:
        for depth in _DEPTHS:
            answered = _asked(loaded, windows, needle, depth, length)
            if answered is not None:
                answers.append(answered)
    prompts = len(needles) * len(_DEPTHS)
    if not answers:
        return None, prompts
    texts = tuple(plain_window(answer.ids, f"prompt {number + 1}") for number, answer in enumerate(answers))
    return Probe("needle", texts, lambda numbers, call: _seen(answers[numbers[0]], call), 1), prompts


def _seen(answered: AnsweredPrompt, call: AttentionCall) -> NeedleCalls:
    first = len(answered.ids) - len(answered.said)
    steps = torch.arange(first, len(answered.ids), device=call.query.device)
    matches = torch.zeros(len(steps), len(answered.ids), dtype=torch.float64, device=call.query.device)
    for step, token in enumerate(answered.said):
        matches[step, [place for place in answered.needle if answered.ids[place] == token]] = 1.0
    return NeedleCalls.of(call, steps, matches, len(answered.needle))


def _asked(
    loaded: LoadedModel, windows: Sequence[Window], needle: Needle, depth: float, length: int
) -> AnsweredPrompt | None:
    """The prompt with the model's own answer; None where that is not the needle."""
    tokenizer = loaded.tokenizer
    hidden, marks = _tokens(tokenizer, needle)
    asked = tokenizer(needle.prompt, add_special_tokens=False)["input_ids"]
    around = windows[0]
    begins = list(around.special).index(False) if False in around.special else 0
    answer = min(_LONGEST_ANSWER, 2 * sum(marks) + 10)
    room = length - begins - len(hidden) - len(asked) - answer
    if room < len(hidden):
        raise AttnscopeError(
            f"a window of {length} tokens has no room for a needle of {len(hidden)}, its question of {len(asked)} and "
            "an answer: give a larger --window, or shorter needles"
        )
    text = [
        token for window in windows for token, special in zip(window.ids, window.special, strict=True) if not special
    ]
    hay = list(islice(cycle(text), room))
    cut = round(depth * room)
    prompt = [*around.ids[:begins], *hay[:cut], *hidden, *hay[cut:], *asked]
    places = [begins + cut + place for place, mark in enumerate(marks) if mark]
    said = _said(loaded, prompt, answer)
    wanted, given = (Counter(_words(text)) for text in (needle.answer, tokenizer.decode(said)))
    if (wanted & given).total() <= _ANSWERED * wanted.total():
        return None
    return AnsweredPrompt((*prompt, *said[:-1]), tuple(places), tuple(said))


def _words(text: str) -> list[str]:
    """Words of a text, in small letters; of Chinese and Japanese, characters."""
    return _WORD.findall(text.lower())


def _tokens(tokenizer: Any, needle: Needle) -> tuple[list[int], list[bool]]:
    """Tokens of a needle on a line of its own, and which of them are of the part that answers."""
    text = f"\n{needle.text}\n"
    read = list(tokenize(tokenizer, text))
    if read and not read[0].is_aligned:
        raise AttnscopeError("needles need the characters behind each token: give a fast tokenizer (tokenizer.json)")
    first = text.index(needle.answer)
    last = first + len(needle.answer)
    marks = [max(token.start, first) < min(token.end, last) for token in read]
    if not any(marks):
        raise AttnscopeError(f"the tokenizer makes no token of the needle {shortly(needle.answer)}")
    return [token.id for token in read], marks


@torch.no_grad()
def _said(loaded: LoadedModel, prompt: Sequence[int], most: int) -> list[int]:
    """What a model goes on with, the likeliest token at each step, up to a line break or its end."""
    from transformers import GenerationConfig

    model: Any = loaded.model
    ids = torch.tensor([prompt], device=device_of(model))
    own = model.generation_config
    ends = own.eos_token_id if own.eos_token_id is not None else loaded.tokenizer.eos_token_id
    first = ends[0] if isinstance(ends, list) else ends
    greedy = GenerationConfig(
        max_new_tokens=most,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        eos_token_id=ends,
        pad_token_id=first if first is not None else 0,
    )
    with quiet():
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
    said: list[int] = []
    for token in whole[0, len(prompt) :].tolist():
        said.append(token)
        if "\n" in loaded.tokenizer.decode([token]):
            break
    return said


@validated
def retrieval_share(scores: Mapping[str, Sequence[float]], threshold: float = 0.1) -> float:
    """Share of heads whose mean score is above a threshold, as the paper's table gives it.

    Parameters
    ----------
    scores
        Scores of each head over prompts: what the files of ``head_score`` of nightdessert/Retrieval_Head hold.
    threshold
        Threshold of the mean.

    Examples
    --------
    >>> retrieval_share({"0-0": [0.0, 0.1], "0-1": [0.5, 0.1], "1-0": [0.0, 0.0], "1-1": [0.2, 0.1]})
    0.5
    """
    means = [sum(values) / len(values) for values in scores.values()]
    return sum(mean > threshold for mean in means) / len(means)
