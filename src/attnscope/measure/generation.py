"""`generate`: where does every head attend while the model writes? Prompts, new tokens, and measurements of each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, quiet
from attnscope.capture.placement import device_of
from attnscope.capture.verify import TOLERANCE
from attnscope.measure.generation_pass import GenerationCall, together
from attnscope.measure.generation_rows import check_name
from attnscope.opened import window_length
from attnscope.read.chats import Chats, ChatTexts
from attnscope.read.encoded import Texts
from attnscope.read.groups import Grouping
from attnscope.read.shown import IdNames
from attnscope.read.texts import Corpus
from attnscope.read.windows import Frame, Window, Windows, padded
from attnscope.report.signature import short_hash
from attnscope.store.run import Batch, Job, Work
from attnscope.store.runs import RunFolder, load_tree
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.numbers import count
from attnscope.support.progress import Progress, Tell
from attnscope.support.state import own_random_numbers

ANY = "..."  # in a pattern: any text


def prompts_of(
    texts: Texts | ChatTexts, loaded: LoadedModel, *, length: int, limit: int | None
) -> tuple[list[Window], int]:
    """The first `length` tokens of each text, and how many texts are longer; a chat must fit as a whole."""
    prompts, cut = list[Window](), 0
    if isinstance(texts, ChatTexts):
        for window in texts.windows(length=length):
            if prompts and window.source == prompts[-1].source:
                raise AttnscopeError(
                    f"{window.source} has more than the {length} tokens that fit before the generated ones: leave that "
                    "chat out, or raise --window"
                )
            if len(prompts) == limit:
                break
            prompts.append(window)
    elif isinstance(texts, Corpus):
        frame = Frame.of(loaded.tokenizer)
        if not loaded.model.config.is_encoder_decoder:
            frame = replace(frame, suffix=())  # a text to continue has no end
        for text in texts:
            if len(prompts) == limit:
                break
            first, *more = Windows([text], loaded.tokenizer, length=length, limit=2, frame=frame)
            prompts.append(first)
            cut += len(more)
    else:
        prompts += texts.windows(loaded.tokenizer, length=length, limit=limit)
    if not prompts:
        raise AttnscopeError("found no prompt; expected at least one text")
    return prompts, cut


def spans_of(prompt: Window, patterns: Mapping[str, str], grouping: Grouping | None) -> dict[str, list[int]]:
    """The tokens of each named span of a prompt: by patterns in its text, and by groups."""
    spans: dict[str, list[int]] = {}
    if grouping is not None:
        for number, name in enumerate(grouping.given(prompt)):
            spans.setdefault(name, []).append(number)
    for name, pattern in patterns.items():
        stretches = _stretches(prompt.text, pattern)
        tokens = [
            number
            for number, (start, end) in enumerate(prompt.spans)
            if any(start < last and max(end, start + 1) > first for first, last in stretches)
        ]
        if tokens:
            spans[name] = tokens
    return spans


def reject_unmatched(prompts: Sequence[Window], patterns: Mapping[str, str]) -> None:
    """Reject a pattern without a match in any prompt."""
    left = dict(patterns)
    for prompt in prompts:
        for name in spans_of(prompt, left, None):
            del left[name]
        if not left:
            return
    for name, pattern in left.items():
        is_cut = next((len(prompt) for prompt in prompts if _stretches(prompt.text, pattern)), None)
        raise AttnscopeError(
            f"the span {name!r} (--span) is {pattern!r:.60} and matches "
            + (
                f"none of the {len(prompts)} prompts: write it as in the text, with ... for any text in between"
                if is_cut is None
                else f"only after the first {is_cut} tokens of a text: raise window (--window), or leave the span out"
            )
        )


def _stretches(text: str, pattern: str) -> list[tuple[int, int]]:
    """Characters from a pattern's beginning to its end, for each match."""
    parts: Sequence[str] = pattern.split(ANY)
    stretches: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        first = end = text.find(parts[0], at)
        for part in parts:
            match = text.find(part, end) if end >= 0 else -1
            end = match + len(part) if match >= 0 else -1
        if end < 0:
            break
        if not parts[-1]:  # the pattern has no end
            end = len(text)
        stretches.append((first, end))
        at = max(end, at + 1)
    return stretches


#: Arguments of `generate` for each cache.
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "none": {"use_cache": False},
}


def load_generation(run: RunFolder) -> xr.Dataset:
    """The result of `generate`, from the folder of a finished run."""
    tree = load_tree(run)
    results, attributes = tree["generation"].to_dataset(), dict(tree.attrs)
    results.encoding["source"] = attributes.pop("run")
    return results.assign_attrs(attributes)


def check_spans(patterns: Mapping[Any, Any]) -> None:
    """Reject spans without a name or a pattern."""
    for name, pattern in patterns.items():
        check_name(name)
        if not isinstance(pattern, str) or not pattern:
            raise AttnscopeError(
                f'the span {name!r} is {pattern!r:.60}; expected its text, such as "<doc>...</doc>", with ... for '
                "any text in between"
            )


def read_prompts(
    loaded: LoadedModel,
    corpus: Any,
    *,
    window: int | None,
    new_tokens: int | None,
    limit: int | None,
    patterns: Mapping[str, str],
) -> tuple[Any, int, int, list[Window], dict[str, str]]:
    """The texts, the longest prompt and the new part in tokens, the prompts, and a note if some were cut."""
    check_generates(loaded)
    texts = corpus.read_with(loaded.tokenizer, to_answer=True) if isinstance(corpus, Chats) else corpus
    if new_tokens is None:
        whole = window_length(loaded, None)
        new_tokens = _NEW_TOKENS if whole > _NEW_TOKENS or loaded.model.config.is_encoder_decoder else whole // 2
    length = _prompt_length(loaded, window, new_tokens)
    prompts, cut = prompts_of(texts, loaded, length=length, limit=limit)
    reject_unmatched(prompts, patterns)
    note = f"Cut to the first {length} tokens (--window): {cut} of {count(len(prompts), 'prompt')}."
    return texts, length, new_tokens, prompts, {"cut": note} if cut else {}


def check_generates(loaded: LoadedModel) -> None:
    """Reject a model that writes no text."""
    if not loaded.model.can_generate():
        is_bundled = loaded.name == MODEL.name
        name = "the bundled masked language model" if is_bundled else type(loaded.model).__name__
        raise AttnscopeError(
            f"{name} cannot generate: give a causal model, such as bundled:tasks, or an encoder-decoder"
        )


_NEW_TOKENS = 64  # by default


def _prompt_length(loaded: LoadedModel, window: int | None, new_tokens: int) -> int:
    """Tokens of a prompt: the window, checked against the model; by default the model's length minus the new ones."""
    if loaded.model.config.is_encoder_decoder:
        return window_length(loaded, window)
    if window is not None:
        window_length(loaded, window + new_tokens)
        return window
    whole = window_length(loaded, None)
    if whole <= new_tokens:
        raise AttnscopeError(
            f"new_tokens (--new-tokens) is {new_tokens}, but {loaded.name} takes {whole} tokens in all: lower it to "
            "leave space for a prompt"
        )
    return whole - new_tokens


@dataclass(eq=False)
class Generation(Job):
    """Prompts to continue."""

    node, dimension = "generation", "sequence"

    loaded: LoadedModel
    prompts: Sequence[Window]
    grouping: Grouping | None
    patterns: Mapping[str, str]
    settings: Mapping[str, Any]
    tell: Tell

    def signature_settings(self, length: int) -> dict[str, Any]:
        """The settings behind the numbers, besides model and texts, for prompts of at most `length` tokens."""
        return {
            **self.settings,
            "window": length,
            "spans": [f"{name}={pattern}" for name, pattern in self.patterns.items()],
            "groups": None if self.grouping is None else self.grouping.signature,
            "generation_config": short_hash(self.loaded.model.generation_config.to_diff_dict()),
        }

    def work(self) -> Work:
        """A pass over each prompt with its new tokens, in as many steps, with a cache of keys."""
        size, new = self.settings["batch_size"], self.settings["new_tokens"]
        parts = [self.prompts[first : first + size] for first in range(0, len(self.prompts), size)]
        beams = self.settings["beams"]
        return Work([(len(part), max(map(len, part)) + new) for part in parts], 1 + new, beams, has_cache=True)

    def batches(self) -> Iterator[Batch]:
        size, whole = self.settings["batch_size"], len(self.prompts)
        for first in range(0, whole, size):
            numbers = range(first, min(first + size, whole))
            yield Batch(numbers)
            self.tell(Progress("generate", numbers.stop / whole, {"prompts": numbers.stop}))

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        return {self.node: self.joined(measured)}

    def result(self, nodes: dict[str, xr.Dataset], attributes: dict[str, str]) -> xr.Dataset:
        return nodes[self.node].assign_attrs(attributes)

    def stored(self, run: RunFolder) -> xr.Dataset:
        return load_generation(run)

    def measure(self, batch: Batch) -> xr.Dataset:
        numbers = batch.texts
        prompts = [self.prompts[number] for number in numbers]
        spans = [spans_of(prompt, self.patterns, self.grouping) for prompt in prompts]
        model: Any = self.loaded.model

        stopped: list[Exception] = []

        def tell(tokens: int) -> None:
            done = numbers.start + len(numbers) * min(1.0, tokens / self.settings["new_tokens"])
            details = {"prompts": numbers.start, "tokens": tokens}
            try:
                self.tell(Progress("generate", done / len(self.prompts), details))
            except Exception as error:
                stopped.append(error)
                raise

        call = replace(self._call(numbers, prompts), after_pass=tell)
        try:
            with (
                own_random_numbers(),
                quiet(),
                explaining(f"{self.loaded.name} fails to generate", "Try another cache"),
            ):
                torch.manual_seed(self.settings["seed"] + numbers.start)
                _, texts = call.run(spans)
        except AttnscopeError:
            if stopped:  # the caller's function of progress, not the model
                raise stopped[0] from None
            raise
        new, longest = self.settings["new_tokens"], max(map(len, self.prompts))
        results = together(
            texts,
            IdNames(self.loaded.tokenizer).of,
            spans=[*(self.grouping.names if self.grouping else ()), *self.patterns],
            step=new,
            text_position=new + (1 if model.config.is_encoder_decoder else longest),
            source_position=longest,
            **self._sizes(),
        )
        if numbers.start == 0:  # in the first piece, so that a run that resumes has it too
            away = call.full_pass_difference(texts[0])
            results.attrs["full_pass"] = f"{away:.1e}"
            if away > TOLERANCE[model.dtype]:
                results.attrs["cached"] = (
                    f"Weights during generation differ from one pass over the final text by up to {away:.2g} of a "
                    "row's weight (for example because rotary angles depend on the length)."
                )
        written = [self.loaded.tokenizer.decode(text.token_id.values.tolist()) for text in texts]
        results["written"] = "sequence", np.array(written, dtype=object)
        results = results.assign_coords(
            sequence=list(numbers),
            prompt=("sequence", list(numbers)),
            source=("sequence", np.array([p.source for p in prompts], dtype=object)),
        )
        return results.rename(sequence="window")

    def _sizes(self) -> dict[str, int]:
        """Sizes of further dimensions, to which all texts are padded."""
        return {}

    def _call(self, numbers: Sequence[int], prompts: Sequence[Window]) -> GenerationCall:  # noqa: ARG002
        """The call of `generate`: the prompts in a batch, padded on the left (for an encoder on the right)."""
        model: Any = self.loaded.model
        device, left = device_of(model), not model.config.is_encoder_decoder
        inputs = {
            "input_ids": padded([prompt.ids for prompt in prompts], self._pad, left=left).to(device),
            "attention_mask": padded([[1] * len(prompt) for prompt in prompts], left=left).to(device),
        }
        return GenerationCall(model, model.generate, (), inputs | self._options())

    @property
    def _pad(self) -> int:
        candidates = (self.loaded.tokenizer.pad_token_id, self.loaded.model.generation_config.pad_token_id, 0)
        return next(token for token in candidates if token is not None)

    def _options(self) -> dict[str, Any]:
        """Arguments of `generate` besides the prompts."""
        settings = self.settings
        drawn = {"temperature": settings["temperature"], "top_p": settings["top_p"], "top_k": 0}
        return {
            "pad_token_id": self._pad,
            "max_new_tokens": settings["new_tokens"],
            "num_beams": settings["beams"],
            "do_sample": settings["sample"],
            **(drawn if settings["sample"] else {"temperature": 1.0, "top_p": 1.0, "top_k": 50}),
            **CACHES[settings["cache"]],
        }
