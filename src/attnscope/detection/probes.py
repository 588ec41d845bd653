"""Probes for roles: windows of the corpus, repeated random tokens, and needles hidden in a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import regex
import torch

from attnscope.capture.borrow import quiet
from attnscope.capture.placement import device_of
from attnscope.detection.role import ExpectedCalls, Nearness, NeedleCalls, RepeatedCalls, Role, TextCalls
from attnscope.explanation.inputs import TOKENS_AT_ONCE
from attnscope.measure.passes import WindowBatch
from attnscope.read.encoded import texts_of, windows_of
from attnscope.read.files import json_objects
from attnscope.read.groups import grouping_of
from attnscope.read.shown import tokens_of
from attnscope.read.windows import Window
from attnscope.support.checks import check_kind, shortly
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall

    #: A file of JSON Lines with needles, or its objects.
    Needles = str | Path | Sequence[Mapping[str, str]]

_LEAST = 8  # tokens of a window from which offsets and sinks mean something
_SEQUENCES, _REPEATED = 16, 50


@dataclass(frozen=True, eq=False)
class Probe:
    """Windows, and how one attention call over some of them is measured."""

    kind: str  # as a role names it
    windows: tuple[Window, ...]  # at least one
    # from windows of one length, by number, and a call over them to what it shows, with its ``output``
    look: Callable[[Sequence[int], AttentionCall], Any]
    batch_size: int | None = None  # windows at a time
    answers: tuple[Answer, ...] = ()  # of a model to needles

    def inputs(self, model: PreTrainedModel, numbers: Sequence[int]) -> dict[str, Tensor]:
        """Arguments of the forward pass over some windows, by number."""
        return WindowBatch.of([self.windows[number] for number in numbers], 0, device_of(model)).inputs(model)

    def measured(self, site: Site, numbers: Sequence[int], call: AttentionCall) -> Any:  # noqa: ARG002
        """The measurements of a call over some windows; None if it has other positions than their tokens."""
        tokens = len(self.windows[numbers[0]])
        return self.look(numbers, call) if call.query.shape[2] == tokens == call.key.shape[2] else None

    def batches(self) -> Iterator[list[int]]:
        """Numbers of windows of one length, some at a time: nothing is ever padded."""
        by_length = sorted(range(len(self.windows)), key=lambda number: len(self.windows[number]))
        for length, numbers in groupby(by_length, key=lambda number: len(self.windows[number])):
            several = list(numbers)
            size = self.batch_size or max(1, TOKENS_AT_ONCE // length)
            yield from (several[first : first + size] for first in range(0, len(several), size))


def text_probe(windows: Sequence[Window], length: int, reach: Nearness, batch_size: int | None) -> Probe:
    """Windows of the corpus: the full ones if at least half are full, else all of 8 tokens or more."""
    full = [window for window in windows if len(window) == length]
    used = full if 2 * len(full) >= len(windows) else [window for window in windows if len(window) >= _LEAST]
    if not used:
        raise AttnscopeError(
            f"found no window of {_LEAST} tokens or more, which positional roles need: give longer texts"
        )
    kinds = grouping_of("types").given  # delimiters: punctuation, line breaks, special tokens but the first token

    def delimiters(window: Window) -> list[bool]:
        named = zip(kinds(window), window.tokens, strict=True)
        return [k == "punctuation" or (k == "special" and at > 0) or "\n" in t for at, (k, t) in enumerate(named)]

    marks = [torch.tensor(delimiters(window)) for window in used]

    def look(numbers: Sequence[int], call: AttentionCall) -> TextCalls:
        return TextCalls.of(call, torch.stack([marks[number] for number in numbers]), reach)

    return Probe("text", tuple(used), look, batch_size)


def left_out_note(windows: Sequence[Window], used: Sequence[Window], length: int) -> dict[str, str]:
    """Note on the windows that `text_probe` left out; empty if it used all."""
    missing = len(windows) - len(used)
    if not missing:
        return {}
    why = (
        f"fewer than the {length} tokens of a full one, and where at least half are full only those are read, so that "
        "all are alike"
        if 2 * sum(len(window) == length for window in windows) >= len(windows)
        else f"fewer than {_LEAST} tokens, too few for positions to mean anything"
    )
    return {"left_out": f"{missing} of {count(len(windows), 'window')} left out: {why}."}


def repeated_probe(around: Window, words: Sequence[int], length: int, seed: int, batch_size: int | None) -> Probe:
    """16 texts of random tokens repeated once, with the special tokens around them that a window has."""
    begins, ends = _special_at_start(around.special), _special_at_start(around.special[::-1])
    prefix, suffix = around.ids[:begins], around.ids[len(around) - ends :]
    period = min(_REPEATED, (length - begins - ends) // 2, len(words))
    if period < 2:  # noqa: PLR2004
        raise AttnscopeError(
            f"found {len(words)} different tokens and windows of {length}; expected space for two tokens twice"
        )
    generator = np.random.default_rng(seed)
    windows: list[Window] = []
    for number in range(_SEQUENCES):
        drawn = tuple(generator.choice(np.asarray(words), period, replace=False).tolist())
        windows.append(plain_window((*prefix, *drawn, *drawn, *suffix), f"random tokens {number + 1}"))
    return Probe("repeated", tuple(windows), lambda _, call: RepeatedCalls.of(call, begins, period), batch_size)


def expected_probe(
    loaded: LoadedModel, role: Role, corpus: Sequence[Window], length: int, batch_size: int | None, *, sees_ahead: bool
) -> Probe | None:
    """The texts of a role with a probe of its own, or the windows of the corpus, and what it expects in each.

    None if it expects only later tokens, and no layer sees ahead.
    """
    windows = [*corpus]
    if role.texts is not None:
        windows = [*windows_of(texts_of([*role.texts]), loaded.tokenizer, length=length)]
        if len(windows) != len(role.texts):
            raise AttnscopeError(
                f"the role {role.name} has {count(len(role.texts), 'text')}, which are {count(len(windows), 'window')} "
                f"of at most {length} tokens: shorten its texts, or use a larger --window"
            )
    are_ids = role.texts is not None and not isinstance(role.texts[0], str)
    every = [_expected(role, window.ids if are_ids else window.tokens) for window in windows]
    asked = [number for number, counts in enumerate(every) if bool((counts > 0).any())]
    if not asked:
        raise AttnscopeError(f"the role {role.name} expects no key in any of {count(len(every), 'text')}")
    if not sees_ahead and not any(bool((every[number].tril() > 0).any()) for number in asked):
        return None

    def look(numbers: Sequence[int], call: AttentionCall) -> ExpectedCalls:
        return ExpectedCalls.of(call, torch.stack([every[asked[number]] for number in numbers]))

    return Probe(role.probe, tuple(windows[number] for number in asked), look, batch_size)


def _expected(role: Role, tokens: Sequence[Any]) -> torch.Tensor:
    """How much the weight on each key counts for each query, ``(query, key)``, as a role says of some tokens."""
    assert role.expecting is not None  # noqa: S101 its probe is its own
    advice = "Correct its function"
    with explaining(f"the role {role.name} failed on {count(len(tokens), 'token')}", advice):
        counts, again = (torch.as_tensor(role.expecting(tokens), dtype=torch.float64) for _ in range(2))
    if counts.shape != (len(tokens), len(tokens)):
        raise AttnscopeError(
            f"the role {role.name} returns shape {tuple(counts.shape)} for {count(len(tokens), 'token')}; expected "
            f"(query, key), {(len(tokens),) * 2}"
        )
    if not bool(((counts >= 0) & (counts <= 1)).all()):
        raise AttnscopeError(f"the role {role.name} returns NaN or numbers that are not between 0 and 1")
    if not torch.equal(counts, again):
        raise AttnscopeError(f"the role {role.name} returns other numbers for the same text: remove random numbers")
    return counts


def _special_at_start(special: Sequence[bool]) -> int:
    """The number of special tokens before the first other one; 0 if there is no other one."""
    return list(special).index(False) if False in special else 0


def plain_window(ids: Sequence[int], name: str) -> Window:
    """A window of ids without text."""
    size = len(ids)
    return Window(tuple(ids), (False,) * size, ((0, 0),) * size, name, 0, ("",) * size)


def ordinary_tokens(tokenizer: Any, windows: Sequence[Window], rows: int) -> list[int]:
    """Ids of the vocabulary without special tokens; without a tokenizer, the ids in the texts."""
    if tokenizer is None:
        pairs = (pair for window in windows for pair in zip(window.ids, window.special, strict=True))
        return sorted({token for token, special in pairs if not special})
    special = set(tokenizer.all_special_ids)
    return [token for token in range(min(len(tokenizer), rows)) if token not in special]


# Needles (Wu et al. 2024)

_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LONGEST_ANSWER = 50
_ENOUGH = 0.5  # share of the needle's words in an answer, above which it is one (ROUGE-1 recall)
_WORD = regex.compile(r"(?V1)[\p{Han}\p{Hiragana}\p{Katakana}]|[\w--[\p{Han}\p{Hiragana}\p{Katakana}]]+")
_FIELDS = ("needle", "question", "real_needle", "prompt")


@dataclass(frozen=True)
class Needle:
    """A sentence to hide, the question after the text, and the part of the sentence that answers it."""

    text: str
    prompt: str
    answer: str


@dataclass(frozen=True, eq=False)
class Answer:
    """A prompt with the model's answer."""

    ids: tuple[int, ...]  # prompt and answer, but for the last token
    needle: tuple[int, ...]  # positions of the needle's tokens
    tokens: tuple[int, ...]  # of the answer; the first is predicted by the last token of the prompt
    hidden: str  # the needle


def needles_of(source: Needles | None) -> list[Needle]:
    r"""Needles from a file of JSON Lines or from objects, with the names of fields that the paper's code has."""
    if source is None:
        return [_needle(value, "a needle of ours") for value in _OURS]
    if isinstance(source, str | Path):
        path = Path(source)
        needles = [_needle(value, f"{path}, line {number}") for number, value in json_objects(path, "needle")]
    else:
        check_kind("a file of JSON Lines, or needles in a list", list, tuple, needles=source)
        needles = [_needle(value, f"needle {number}") for number, value in enumerate(source, start=1)]
    if not needles:
        raise AttnscopeError("there are no needles (--needles): give one or more, or leave the option out")
    return needles


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
    prompt = f"\nBased on the content of the text, Question: {value.get('question')}\nAnswer:"
    return Needle(text.strip(), value.get("prompt", prompt), answer.strip())


def needle_probe(
    loaded: LoadedModel, windows: Sequence[Window], needles: Sequence[Needle], length: int
) -> tuple[Probe | None, int]:
    """Ask a model about each needle at five depths of a text; return the prompts that it answers and their number."""
    every = [_answer(loaded, windows, needle, depth, length) for needle in needles for depth in _DEPTHS]
    answers = [answer for answer in every if answer is not None]
    if not answers:
        return None, len(every)
    texts = tuple(plain_window(answer.ids, f"prompt {number + 1}") for number, answer in enumerate(answers))
    probe = Probe("needle", texts, lambda numbers, call: _calls(answers[numbers[0]], call), 1, tuple(answers))
    return probe, len(every)


def _calls(answered: Answer, call: AttentionCall) -> NeedleCalls:
    steps = torch.arange(len(answered.ids) - len(answered.tokens), len(answered.ids), device=call.query.device)
    matches = torch.zeros(len(steps), len(answered.ids), dtype=torch.float64, device=call.query.device)
    for step, token in enumerate(answered.tokens):
        matches[step, [position for position in answered.needle if answered.ids[position] == token]] = 1.0
    return NeedleCalls.of(call, steps, matches, len(answered.needle))


def _answer(loaded: LoadedModel, windows: Sequence[Window], needle: Needle, depth: float, length: int) -> Answer | None:
    """The prompt with the model's own answer; None if that is not the needle."""
    tokenizer = loaded.tokenizer
    hidden, marks = _tokens(tokenizer, needle)
    prompt_ids = tokenizer(needle.prompt, add_special_tokens=False)["input_ids"]
    around = windows[0]
    begins = _special_at_start(around.special)
    answer = min(_LONGEST_ANSWER, 2 * sum(marks) + 10)
    room = length - begins - len(hidden) - len(prompt_ids) - answer  # tokens of the text around the needle
    if room < len(hidden):
        raise AttnscopeError(
            f"a window of {length} tokens has no space for a needle of {len(hidden)}, its question of "
            f"{len(prompt_ids)} and an answer: use a larger --window, or shorter needles"
        )
    pairs = (pair for window in windows for pair in zip(window.ids, window.special, strict=True))
    hay = list(islice(cycle([token for token, special in pairs if not special]), room))
    cut = round(depth * room)
    prompt = [*around.ids[:begins], *hay[:cut], *hidden, *hay[cut:], *prompt_ids]
    positions = [begins + cut + position for position, mark in enumerate(marks) if mark]
    answer_ids = _continued(loaded, prompt, answer)
    wanted, written = (Counter(_words(text)) for text in (needle.answer, tokenizer.decode(answer_ids)))
    if (wanted & written).total() <= _ENOUGH * wanted.total():
        return None
    return Answer((*prompt, *answer_ids[:-1]), tuple(positions), tuple(answer_ids), needle.text)


def _words(text: str) -> list[str]:
    """Words of a text in lower case; characters of Chinese and Japanese."""
    return _WORD.findall(text.lower())


def _tokens(tokenizer: Any, needle: Needle) -> tuple[list[int], list[bool]]:
    """Tokens of a needle on a line of its own, and which of them are the answer."""
    text = f"\n{needle.text}\n"
    tokens = tokens_of(tokenizer, text)
    if len(tokens) and not tokens.is_aligned:
        raise AttnscopeError("needles need the characters of each token: use a fast tokenizer (tokenizer.json)")
    first = text.index(needle.answer)
    last = first + len(needle.answer)
    # tokens that overlap with the answer
    marks = [max(start, first) < min(end, last) for start, end in tokens.spans]
    if not any(marks):
        raise AttnscopeError(f"the tokenizer returns no token for the needle {shortly(needle.answer)}")
    return [*tokens.ids], marks


@torch.no_grad()
def _continued(loaded: LoadedModel, prompt: Sequence[int], most: int) -> list[int]:
    """Greedy continuation by the model, up to a line break or its end token."""
    from transformers import GenerationConfig

    model: Any = loaded.model
    ids = torch.tensor([prompt], device=device_of(model))
    settings = model.generation_config
    ends = settings.eos_token_id if settings.eos_token_id is not None else loaded.tokenizer.eos_token_id
    first = ends[0] if isinstance(ends, list) else ends
    pad = 0 if first is None else first
    greedy = GenerationConfig(
        max_new_tokens=most, do_sample=False, num_beams=1, repetition_penalty=1.0, eos_token_id=ends, pad_token_id=pad
    )
    with quiet():
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
    answer_ids: list[int] = []
    for token in whole[0, len(prompt) :].tolist():
        answer_ids.append(token)
        if "\n" in loaded.tokenizer.decode([token]):
            break
    return answer_ids
