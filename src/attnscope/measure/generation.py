"""`generate`: where does every head attend while the model writes? Prompts, new tokens, and measurements of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import torch
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, quiet, verb
from attnscope.capture.load import load_model, signature_of
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.parameters import PromptReading, loading
from attnscope.capture.placement import device_of
from attnscope.capture.verify import TOLERANCE
from attnscope.measure.generation_pass import GenerationCall, Written, full_pass_difference
from attnscope.measure.generation_rows import BINS, DOUBLINGS, OWN, PLACES, PROMPT, RANGES, SOURCE, SPANS, START
from attnscope.measure.quantities import EQUAL, Wording, wording
from attnscope.measure.texts import beyond_note, grouping_for, read_sides, window_length
from attnscope.read.chats import Chats, ChatTexts
from attnscope.read.encoded import Sources, Texts
from attnscope.read.groups import Grouping
from attnscope.read.shown import IdNames
from attnscope.read.sources import as_list
from attnscope.read.texts import Corpus
from attnscope.read.windows import Frame, Window, Windows
from attnscope.store.arrays import in_a_row
from attnscope.store.runs import RunFolder
from attnscope.store.signature import short_hash
from attnscope.support.arguments import Count
from attnscope.support.checks import BEAMS, check_real, check_whole
from attnscope.support.errors import AttnscopeError, explaining
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope.support.state import own_random_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnscope.capture.load import Model
    from attnscope.measure.generation_rows import Spans


ANY = "..."  # in a pattern: any text


def prompts_of(texts: Texts | ChatTexts, loaded: LoadedModel, *, length: int, limit: int | None) -> list[Window]:
    """The first `length` tokens of each text; a chat must fit as a whole."""
    prompts: list[Window] = []
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
            prompts += Windows([text], loaded.tokenizer, length=length, limit=1, frame=frame)
    else:
        prompts += texts.windows(loaded.tokenizer, length=length, limit=limit)
    if not prompts:
        raise AttnscopeError("found no prompt; expected at least one text")
    return prompts


def spans_of(prompt: Window, patterns: Mapping[str, str], grouping: Grouping | None) -> Spans:
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


def patterns_of(spans: object) -> dict[str, str]:
    """Spans as patterns by name."""
    if spans is None:
        return {}
    if not isinstance(spans, Mapping):
        raise AttnscopeError(f'spans are {spans!r:.60}; expected patterns by name, as {{"document": "<doc>...</doc>"}}')
    named = cast("Mapping[Any, Any]", spans)
    for name, pattern in named.items():
        if not isinstance(name, str) or not name.strip() or name in {PROMPT, SOURCE, START, OWN}:
            raise AttnscopeError(f"a span has the name {name!r:.60}, which is reserved or empty: choose another")
        if not isinstance(pattern, str) or not pattern:
            raise AttnscopeError(
                f'the span {name!r} is {pattern!r:.60}; expected its text, such as "<doc>...</doc>", with ... for '
                "any text in between"
            )
    return {str(name): str(pattern) for name, pattern in named.items()}


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


if TYPE_CHECKING:
    Shown = Callable[[Sequence[int]], Sequence[str]]


#: Name and unit of variables that a scan does not have.
_WORDS = {
    SPANS: Wording("Weight on each span", "share"),
    f"{EQUAL}{SPANS}": Wording("Weight on each span, under uniform attention", "share"),
    f"{EQUAL}mean_offset": Wording("Mean offset (negative is left), under uniform attention", "tokens"),
    PLACES: Wording("Weight on each span predicted from offsets alone", "share"),
    BINS: Wording("Weight in each bin of offsets", "share"),
    "top_key": Wording("Position of the key with the largest weight", "tokens"),
}


def generation_dataset(
    texts: Sequence[Written],
    shown: Shown | None = None,
    *,
    steps: int = 0,
    places: int = 0,
    source_places: int = 0,
    spans: Sequence[str] = (),
) -> xr.Dataset:
    """The measurements of generated sequences as one Dataset."""
    sites = texts[0].sites
    if any([site.name for site in text.sites] != [site.name for site in sites] for text in texts):
        raise AttnscopeError("generate() calls differ in their layers: use a new `watch` for each")
    names_of = _merged([text.spans[0] for text in texts], spans)
    steps = max(steps, *(len(text.new) for text in texts))
    heads = max(text.measured["entropy"].shape[2] for text in texts)
    far = max(places, *(text.given + len(text.new) for text in texts))
    bins = slice(next(number for number, (_, last) in enumerate(DOUBLINGS) if -last < far), None)
    data: dict[str, Any] = {}
    for name in texts[0].measured:
        of_equal = name.startswith(EQUAL)
        along = "span" if name.endswith(SPANS) else "offset_bin" if name == BINS else ""
        more = {"": (), "span": (len(names_of),), "offset_bin": (len(DOUBLINGS[bins]),)}[along]
        array = np.full((len(texts), steps, len(sites), *(() if of_equal else (heads,)), *more), np.nan)
        for number, text in enumerate(texts):
            value = text.measured[name]
            value = value[:, :, 0] if of_equal else value
            if along != "span":
                array[number, : len(value)] = _doubled(value)[..., bins] if along else value
                continue
            names, there = text.spans
            value = np.where(there if of_equal else there[:, None], value, np.nan)
            array[number, : len(value)][..., [names_of.index(span) for span in names]] = value
        dims = ("sequence", "step", "layer", *(() if of_equal else ("head",)), *((along,) if along else ()))
        data[name] = (dims, array, (_WORDS.get(name) or wording(name)).attributes)
    return xr.Dataset(
        data | _tokens(texts, shown, places, source_places),
        coords={
            "sequence": np.arange(len(texts)),
            "step": np.arange(steps),
            **layer_coordinates(sites),
            "head": np.arange(heads),
            "span": np.array(names_of, dtype=object),
            "offset_bin": np.array([last for _, last in DOUBLINGS[bins]]),
            "bin_first": ("offset_bin", np.array([first for first, _ in DOUBLINGS[bins]])),
            **_of_steps(texts, steps),
        },
    )


def _doubled(values: np.ndarray) -> np.ndarray:
    """Sums over the parts of each doubling, along the last dimension."""
    starts = [first for first, _ in RANGES]
    return np.add.reduceat(values, [starts.index(first) for first, _ in DOUBLINGS], axis=-1)


def _merged(each: Sequence[tuple[str, ...]], known: Sequence[str]) -> list[str]:
    """The spans of all sequences in order: the prompt or source, named spans, then the start and own output."""
    last = [name for name in each[0] if name in {START, OWN}]
    named = dict.fromkeys([each[0][0], *known, *(name for names in each for name in names)])
    return [name for name in named if name not in last] + last


def _filled(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Rows of numbers, padded with -1."""
    array = np.full((len(rows), width), -1, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def _named(rows: Sequence[Sequence[int]], width: int, shown: Shown) -> np.ndarray:
    """Rows of displayed tokens, padded with empty strings."""
    array = np.full((len(rows), width), "", dtype=object)
    for number, row in enumerate(rows):
        known = [token for token in row if token >= 0]
        array[number, len(row) - len(known) : len(row)] = shown(known)
    return array


def _tokens(texts: Sequence[Written], shown: Shown | None, places: int, source_places: int) -> dict[str, Any]:
    """The whole texts, and the numbers of tokens of prompt and output."""
    counted = {"units": "tokens"}
    data: dict[str, Any] = {
        "prompt_length": ("sequence", np.array([text.given for text in texts]), counted),
        "length": ("sequence", np.array([len(text.new) for text in texts]), counted),
    }
    sides = {"text": ([text.whole for text in texts], places)}
    if any(text.source for text in texts):
        sides["source"] = ([text.source for text in texts], source_places)
    for side, (rows, least) in sides.items():
        width = max(least, *map(len, rows))
        dims = ("sequence", f"{side}_position")
        data[f"{side}_token_id"] = (dims, _filled(rows, width))
        if shown is not None:
            data[f"{side}_token"] = (dims, _named(rows, width, shown))
    return data


def _of_steps(texts: Sequence[Written], steps: int) -> dict[str, Any]:
    """Coordinates of the steps: the chosen token and the position of its query."""
    places = [range(text.given - 1, text.given - 1 + len(text.new)) for text in texts]
    return {
        "prompt": ("sequence", np.array([text.number for text in texts])),
        "token_id": (("sequence", "step"), _filled([text.new for text in texts], steps)),
        "position": (("sequence", "step"), _filled(places, steps)),
    }


CACHES = ("dynamic", "static", "none")


@verb()
def generate(
    model: Model,
    texts: Sources = None,
    *,
    new_tokens: int = 64,
    beams: int = 1,
    sample: bool = False,
    temperature: float = 1.0,
    top_p: float = 1.0,
    spans: Mapping[str, str] | None = None,
    cache: str = "dynamic",
    batch_size: Count = 1,
    **reading: Unpack[PromptReading],
) -> xr.Dataset:
    """Continue texts with a model, and measure where every head attends at each new token.

    A step is a new token. Its numbers are those of the query that predicted it, the token before it. They equal those
    of one full pass over the final text; each run checks this on its first text.

    Parameters
    ----------
    model
        See `attnscope.scan`; a causal model or an encoder-decoder. There is no default, because the bundled model is a
        masked language model and cannot generate. In a chat, a last message of the assistant is left out.
    texts
        See `attnscope.scan`; the beginning of each text is a prompt. An encoder-decoder reads it with its encoder.
    new_tokens
        Largest number of new tokens; the model may end a text earlier.
    beams
        Beams of the search.
    sample, temperature, top_p
        Sample each token, from scores divided by `temperature`, among the most likely ones with a total probability of
        `top_p`. By default the most likely token is chosen.
    spans
        Parts of the prompts by name and text, with ``...`` for any text in between: ``{"document":
        "<doc>...</doc>"}``. All matches are marked; each span must match a prompt.
    groups
        Groups of the prompts' tokens, each a span: see `attnscope.scan`; for chats, their roles.
    cache
        Cache of keys and values: ``dynamic``, ``static`` (of a fixed length), or ``none``.
    window
        Largest number of tokens of a prompt; by default the model's length minus `new_tokens`.
    limit
        Largest number of prompts.
    batch_size
        Prompts in a batch, padded on the left.

    Returns
    -------
    xarray.Dataset
        Dimensions ``sequence, step, layer, head``. ``span_weight`` (and ``span``): weight on the prompt, on each named
        span, and on the model's ``own output``; for an encoder-decoder, on the ``source`` in cross-attention, and on
        the decoder's ``start`` and its ``own output`` in its self-attention. ``entropy`` (nats), ``max_weight``,
        ``first_token``, ``mean_offset`` (key minus query, tokens), ``top_key`` (position of the key with the largest
        weight), ``bin_weight`` over ``offset_bin``. ``equal_span_weight``, ...: uniform attention over the same keys;
        ``position_span_weight``: predicted from the head's offsets and first token alone. NaN after the end of a text.
        Coordinates ``token`` and ``token_id`` (the chosen token) and ``position`` (of the query, from the start of the
        text), over ``sequence, step``; ``text_token`` has the whole texts, ``written`` the new part.

    Raises
    ------
    AttnscopeError
        If an argument or the model cannot be used; the message says what to do.

    Examples
    --------
    >>> import attnscope
    >>> attnscope.generate("bundled", ["Once upon a time"])
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: the bundled model is a masked language model, which cannot generate: give ...
    """
    window, limit, field, out = reading["window"], reading["limit"], reading["field"], reading["out"]
    settings = {
        "new_tokens": new_tokens,
        "beams": beams,
        "sample": sample,
        "temperature": temperature,
        "top_p": top_p,
        "seed": reading["seed"],
        "cache": cache,
        "window": window,
        "limit": limit,
        "batch_size": batch_size,
    }
    _check(settings)
    patterns = patterns_of(spans)
    sources = as_list(texts) if isinstance(texts, Iterator) else texts
    reject_modalities("generate", model, sources, field=field, revision=reading["revision"])
    corpus, _ = read_sides(
        sources,
        None,
        field=field,
        by_line=reading["by_line"],
        stride=None,
        chat=reading["chat"],
        chat_template=reading["chat_template"],
    )
    grouping = grouping_for(reading["groups"], corpus)
    loaded = load_model(model, **loading(reading))
    _check_writes(loaded)
    if isinstance(corpus, Chats):
        corpus = corpus.read_with(loaded.tokenizer, to_answer=True)
    length = _prompt_length(loaded, window, new_tokens)
    prompts = prompts_of(corpus, loaded, length=length, limit=limit)
    reject_unmatched(prompts, patterns)
    grouping = None if grouping is None else grouping.over(prompts)
    job = _Job(loaded, prompts, grouping, patterns, settings, reading["progress"] or no_progress)
    signature = signature_of("generate", loaded, corpus, None, job.signature_settings(length))
    attributes = {"signature": signature.to_json(), "model": loaded.name}
    attributes |= beyond_note(
        loaded,
        max(length, new_tokens) if loaded.model.config.is_encoder_decoder else length + new_tokens,
        "Texts with their new tokens",
    )
    if out is None:
        results = in_a_row([part for _, part in job.parts()], "sequence")
        return results.assign_attrs(attributes)
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=reading["repair"]) as run:
        if not run.complete:
            for first, part in job.parts(run):
                run.append(part.rename(sequence="window"), first)
            run.finish(attributes=attributes)
        return load_generation(run)


def _check_writes(loaded: LoadedModel) -> None:
    """Reject a model that cannot generate."""
    if not loaded.model.can_generate():
        is_bundled = loaded.name == MODEL.name
        name = "the bundled model is a masked language model, which" if is_bundled else type(loaded.model).__name__
        raise AttnscopeError(f"{name} cannot generate: give a causal model or an encoder-decoder")


def load_generation(run: RunFolder) -> xr.Dataset:
    """The result of `generate`, from the folder of a finished run."""
    results = run.results().rename(window="sequence").sortby("sequence").assign_attrs(run.state["attributes"])
    results.encoding["source"] = str(run.path)
    return results


def _check(settings: Mapping[str, Any]) -> None:
    """Reject inconsistent settings; types and counts are checked at the boundary."""
    temperature, top_p = settings["temperature"], settings["top_p"]
    check_whole(1, new_tokens=settings["new_tokens"])
    check_whole(1, BEAMS, beams=settings["beams"])
    check_real(0.0, 1.0, top_p=top_p)
    check_real(0.0, temperature=temperature)
    if settings["cache"] not in CACHES:
        raise AttnscopeError(f"cache (--cache) is {settings['cache']!r:.40}; expected {', '.join(CACHES)}")
    if not temperature or not top_p:
        raise AttnscopeError("temperature (--temperature) and top_p (--top-p) must be above 0")
    if not settings["sample"] and (temperature, top_p) != (1.0, 1.0):
        raise AttnscopeError("temperature and top_p need sampling: add sample (--sample)")


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
class _Job:
    """Prompts to continue."""

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

    def parts(self, run: RunFolder | None = None) -> Iterator[tuple[int, xr.Dataset]]:
        """The results of each batch that the run lacks, with the number of its first prompt."""
        size, count = self.settings["batch_size"], len(self.prompts)
        for first in range(0, count, size):
            numbers = range(first, min(first + size, count))
            if run is None or not run.holds(numbers):
                yield first, self._batch(numbers)
            self.tell(Progress("generate", numbers.stop / count, {"prompts": numbers.stop}))

    def _batch(self, numbers: range) -> xr.Dataset:
        prompts = [self.prompts[number] for number in numbers]
        spans = [spans_of(prompt, self.patterns, self.grouping) for prompt in prompts]
        model: Any = self.loaded.model
        call = GenerationCall(model, model.generate, (), self._arguments(prompts))
        with own_random_numbers(), quiet(), explaining(f"{self.loaded.name} fails to generate", "Try another cache"):
            torch.manual_seed(self.settings["seed"] + numbers.start)
            _, texts = call.run(spans)
        checked: dict[str, str] = {}  # in the first piece, so that a run that resumes has it too
        if numbers.start == 0:
            away = full_pass_difference(call, texts[0])
            checked["full_pass"] = f"{away:.1e}"
            if away > TOLERANCE[model.dtype]:
                checked["cached"] = (
                    f"Weights during generation differ from one pass over the final text by up to {away:.2g} of a "
                    "row's weight (for example because rotary angles depend on the length)."
                )
        longest = max(map(len, self.prompts))
        is_pair = model.config.is_encoder_decoder
        results = generation_dataset(
            texts,
            IdNames(self.loaded.tokenizer).of,
            steps=self.settings["new_tokens"],
            places=self.settings["new_tokens"] + (1 if is_pair else longest),
            source_places=longest if is_pair else 0,
            spans=self._names,
        )
        written = [self.loaded.tokenizer.decode(text.new) for text in texts]
        results = results.assign_attrs(checked)
        return results.assign(written=("sequence", np.array(written, dtype=object))).assign_coords(
            sequence=list(numbers),
            prompt=("sequence", list(numbers)),
            source=("sequence", np.array([p.source for p in prompts], dtype=object)),
        )

    @cached_property
    def _names(self) -> list[str]:
        """All named spans, in order."""
        groups = [] if self.grouping is None else list(self.grouping.names)
        return list(dict.fromkeys([*groups, *self.patterns]))

    def _arguments(self, prompts: Sequence[Window]) -> dict[str, Any]:
        """Arguments of `generate`: the prompts in a batch, padded on the left (for an encoder on the right)."""
        model, settings = self.loaded.model, self.settings
        device = device_of(model)
        longest = max(map(len, prompts))
        pad = next(
            token
            for token in (self.loaded.tokenizer.pad_token_id, model.generation_config.pad_token_id, 0)
            if token is not None
        )
        ids = torch.full((len(prompts), longest), pad)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            at = slice(0, len(prompt)) if model.config.is_encoder_decoder else slice(longest - len(prompt), None)
            ids[row, at], mask[row, at] = torch.tensor(prompt.ids), 1
        drawn = {"temperature": settings["temperature"], "top_p": settings["top_p"], "top_k": 0}
        caches: dict[str, dict[str, Any]] = {
            "dynamic": {},
            "static": {"cache_implementation": "static"},
            "none": {"use_cache": False},
        }
        return {
            "input_ids": ids.to(device),
            "attention_mask": mask.to(device),
            "pad_token_id": pad,
            "max_new_tokens": settings["new_tokens"],
            "num_beams": settings["beams"],
            "do_sample": settings["sample"],
            **(drawn if settings["sample"] else {"temperature": 1.0, "top_p": 1.0, "top_k": 50}),
            **caches[settings["cache"]],
        }
