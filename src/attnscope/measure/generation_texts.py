"""From passes to texts: which row of which pass wrote each token of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import xarray as xr

from attnscope.capture.notes import layer_coordinates
from attnscope.measure.generation_rows import (
    BINS,
    DOUBLINGS,
    OWN,
    PLACES,
    PROMPT,
    RANGES,
    SOURCE,
    SPANS,
    START,
    by_places,
)
from attnscope.measure.quantities import EQUAL, wording
from attnscope.read.chats import ChatTexts
from attnscope.read.encoded import Texts
from attnscope.read.groups import Grouping
from attnscope.read.texts import Corpus
from attnscope.read.windows import Frame, Window, cut_windows
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from attnscope.capture.loaded import LoadedModel
    from attnscope.capture.watch import Site
    from attnscope.measure.generation_pass import GenerationObserver
    from attnscope.measure.generation_rows import Spans


@dataclass(frozen=True, eq=False)
class Written:
    """One generated sequence, and what was measured of it."""

    # token ids without padding: what its decoder was given, what it wrote, and what its encoder read, if it has one
    prompt: list[int]
    new: list[int]
    source: list[int]
    given: int  # how many tokens the decoder was given, which may have been embeddings
    number: int  # number of the prompt among those of its call
    sites: Sequence[Site]  # one for each layer
    # names of the spans, and of each layer the spans that its keys may belong to, ``(layer, span)``
    spans: tuple[tuple[str, ...], np.ndarray]
    measured: Mapping[str, np.ndarray]  # ``(step, layer, head)``, spans or bins behind; of equal weights with one head

    @property
    def whole(self) -> list[int]:
        """The text that the decoder has read and written; -1 for what it was given as an embedding."""
        return [*([-1] * (self.given - len(self.prompt))), *self.prompt, *self.new]


def texts_of(
    observer: GenerationObserver, sequences: Tensor, beams: Tensor | None, ends: Sequence[int], pad: int | None
) -> list[Written]:
    """A record of each sequence that `generate` gave."""
    rows = rows_of(observer)
    sequences = sequences.cpu()
    prompts, before = (observer.prompts, rows.prompt if observer.is_pair or observer.prompts.ids is not None else 0)
    count = 1 if prompts.ids is None else len(prompts.ids)
    texts: list[Written] = []
    for number, sequence in enumerate(sequences):
        new = sequence[before:]
        own = number * count // len(sequences)
        if beams is not None:
            chosen = beams[number][beams[number] >= 0].cpu()
        else:
            chosen = torch.full((_length(new, ends, pad if len(sequences) > 1 else None),), number)
        new = new[: len(chosen)]
        rows.check(chosen, new)
        given = prompts.tokens(own)
        padding = 0 if observer.is_pair else int(prompts.padding(len(sequences))[number])
        spans = np.array([observer.spans_of(site.kind) for site in rows.sites])
        if prompts.names:
            there = prompts.spans[own]
            spans[:, 1 : 1 + len(prompts.names)] &= np.array([name in there for name in prompts.names])
        texts.append(
            Written(
                prompt=sequence[:before].tolist() if observer.is_pair else given,
                new=new.tolist(),
                source=given if observer.is_pair else [],
                given=rows.prompt - padding,
                number=own,
                sites=rows.sites,
                spans=(observer.spans, spans),
                measured=_with_places(observer, rows.picked(chosen), own, rows.prompt - padding),
            )
        )
    return texts


def _with_places(
    observer: GenerationObserver, measured: dict[str, np.ndarray], own: int, given: int
) -> dict[str, np.ndarray]:
    """Beside what was measured of one sequence, what the places of each head give."""
    names = list(observer.spans)
    columns = np.zeros((given + len(measured["entropy"]), len(names)))
    columns[:given, names.index(START if observer.is_pair else PROMPT)] = 1.0
    columns[given:, names.index(OWN)] = 1.0
    if observer.prompts.spans and not observer.is_pair:
        for name, tokens in observer.prompts.spans[own].items():
            columns[tokens, names.index(name)] = 1.0
    return measured | {PLACES: by_places(measured, columns, given)}


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """The measured rows of all passes, one behind the other; see `rows_of`."""

    prompt: int
    sites: list[Site]
    layers: list[dict[str, Tensor]]  # (batch, head, row) of all passes
    ids: Tensor  # (batch, row), -1 where they are not known
    of_place: dict[int, int]  # from a place in the text to the last row that was read there

    def columns(self, steps: int) -> Tensor:
        """The row from which each token was chosen: that of the token before it."""
        places = range(self.prompt - 1, self.prompt - 1 + steps)
        missing = [place for place in places if place not in self.of_place]
        if missing:
            raise AttnscopeError(
                f"no pass of generate() reads token {missing[0] + 1} of the text: what was measured is not of it"
            )
        return torch.tensor([self.of_place[place] for place in places], dtype=torch.int64)

    def check(self, chosen: Tensor, new: Tensor) -> None:
        """Refuse passes that read other tokens than the text holds."""
        read = self.ids[chosen, self.columns(len(chosen))][1:]
        if bool(((read != new[:-1]) & (read >= 0)).any()):
            raise AttnscopeError(
                "the passes of generate() read other tokens than it returns: it is not known which rows write the text"
            )

    def picked(self, chosen: Tensor) -> dict[str, np.ndarray]:
        """Of one sequence: ``(step, layer, head)``, spans behind; NaN where a layer has fewer heads than another."""
        columns = self.columns(len(chosen))
        heads = {name: max(layer[name].shape[1] for layer in self.layers) for name in self.layers[0]}
        arrays: dict[str, np.ndarray] = {}
        for name, most in heads.items():
            first = self.layers[0][name]
            array = np.full((len(chosen), len(self.layers), most, *first.shape[3:]), np.nan)
            for number, layer in enumerate(self.layers):
                array[:, number, : layer[name].shape[1]] = layer[name][chosen, :, columns].numpy()
            arrays[name] = array
        return arrays


def rows_of(observer: GenerationObserver) -> MeasuredRows:
    """The measured rows of all passes of a `generate` call."""
    passes = observer.passes
    if not passes or observer.prompt is None:
        raise AttnscopeError("generate() made no pass that could be seen, so nothing was measured")
    known = list(passes[0].layers)
    if not known or any(list(seen.layers) != known or seen.batch != passes[0].batch for seen in passes):
        raise AttnscopeError(
            "the passes of generate() differ in their layers or sequences: which rows write the text is not known"
        )
    of_place: dict[int, int] = {}
    row = 0
    for seen in passes:
        of_place |= {seen.start + number: row + number for number in range(seen.rows)}
        row += seen.rows
    layers = [
        {
            name: torch.cat([seen.layers[layer][name] for seen in passes], dim=2).cpu()
            for name in passes[0].layers[layer]
        }
        for layer in known
    ]
    ids = [torch.full((seen.batch, seen.rows), -1) if seen.ids is None else seen.ids.cpu() for seen in passes]
    return MeasuredRows(
        observer.prompt, [observer.sites[layer] for layer in known], layers, torch.cat(ids, 1), of_place
    )


def _length(new: Tensor, ends: Sequence[int], pad: int | None) -> int:
    """How many tokens were written, up to the one that ends the text; what is behind only fills the batch."""
    last = torch.isin(new, torch.tensor(list(ends), dtype=new.dtype)).nonzero()
    if len(last):
        return int(last[0]) + 1
    written = (new != pad).nonzero() if pad is not None else new
    return len(new) if pad is None else int(written[-1]) + 1 if len(written) else len(new)


ANY = "..."  # in a pattern: whatever stands between


def prompts_of(texts: Texts | ChatTexts, loaded: LoadedModel, *, length: int, limit: int | None) -> list[Window]:
    """The first `length` tokens of each text; a chat, whose end matters, must fit as a whole."""
    prompts: list[Window] = []
    if isinstance(texts, ChatTexts):
        for window in texts.windows(length=length):
            if prompts and window.source == prompts[-1].source:
                raise AttnscopeError(
                    f"{window.source} has more than {length} tokens, all that fit before what is generated: leave that "
                    "chat out, or raise --window"
                )
            if len(prompts) == limit:
                break
            prompts.append(window)
    elif isinstance(texts, Corpus):
        frame = Frame.of(loaded.tokenizer)
        if not loaded.model.config.is_encoder_decoder:
            frame = replace(frame, suffix=())  # a text that goes on has no end
        for text in texts:
            if len(prompts) == limit:
                break
            prompts += cut_windows([text], loaded.tokenizer, length=length, limit=1, frame=frame)
    else:
        prompts += texts.windows(loaded.tokenizer, length=length, limit=limit)
    if not prompts:
        raise AttnscopeError("no prompt: expected a text at least")
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
    """Refuse a pattern that marks nothing in any prompt."""
    left = dict(patterns)
    for prompt in prompts:
        for name in spans_of(prompt, left, None):
            del left[name]
        if not left:
            return
    for name, pattern in left.items():
        is_cut = next((len(prompt) for prompt in prompts if _stretches(prompt.text, pattern)), None)
        raise AttnscopeError(
            f"the span {name!r} (--span) is {pattern!r:.60}, which stands in "
            + (
                f"none of the {len(prompts)} prompts: give it as the text reads, with ... for whatever stands between"
                if is_cut is None
                else f"no prompt, but in a text behind its first {is_cut} tokens: raise window (--window), or leave "
                "the span out"
            )
        )


def patterns_of(given: object) -> dict[str, str]:
    """Spans as patterns by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise AttnscopeError(f'spans are {given!r:.60}; expected patterns by name, as {{"document": "<doc>...</doc>"}}')
    named = cast("Mapping[Any, Any]", given)
    for name, pattern in named.items():
        if not isinstance(name, str) or not name.strip() or name in {PROMPT, SOURCE, START, OWN}:
            raise AttnscopeError(f"a span has the name {name!r:.60}; expected another word")
        if not isinstance(pattern, str) or not pattern:
            raise AttnscopeError(
                f'the span {name!r} is {pattern!r:.60}; expected how it reads, as "<doc>...</doc>", with ... for '
                "whatever stands between"
            )
    return {str(name): str(pattern) for name, pattern in named.items()}


def _stretches(text: str, pattern: str) -> list[tuple[int, int]]:
    """Characters from a pattern's beginning to its end, each time that it is there."""
    parts: Sequence[str] = pattern.split(ANY)
    stretches: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        first = end = text.find(parts[0], at)
        for part in parts:
            place = text.find(part, end) if end >= 0 else -1
            end = place + len(part) if place >= 0 else -1
        if end < 0:
            break
        if not parts[-1]:  # nothing is said about the end
            end = len(text)
        stretches.append((first, end))
        at = max(end, at + 1)
    return stretches


if TYPE_CHECKING:
    Shown = Callable[[Sequence[int]], Sequence[str]]

#: Name and unit of what no scan has.
_WORDS = {
    SPANS: ("Weight on each span", "share"),
    f"{EQUAL}{SPANS}": ("Weight on each span, of equal weights", "share"),
    f"{EQUAL}mean_offset": ("Mean offset (negative is left), of equal weights", "tokens"),
    PLACES: ("Weight on each span by the head's places alone", "share"),
    BINS: ("Weight in each bin of offsets", "share"),
    "top_key": ("Place of the key with the largest weight", "tokens"),
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
    """Label what was measured of generated sequences, one behind the other."""
    sites = texts[0].sites
    if any([site.name for site in text.sites] != [site.name for site in sites] for text in texts):
        raise AttnscopeError("generate() calls differ in their layers: watch anew for each of them")
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
        data[name] = (dims, array, _attributes(name))
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
    """From parts of doublings, the last dimension, to doublings."""
    starts = [first for first, _ in RANGES]
    return np.add.reduceat(values, [starts.index(first) for first, _ in DOUBLINGS], axis=-1)


def _merged(each: Sequence[tuple[str, ...]], known: Sequence[str]) -> list[str]:
    """The spans of all sequences in their order: what a model always has stands around those that were named."""
    last = [name for name in each[0] if name in {START, OWN}]
    named = dict.fromkeys([each[0][0], *known, *(name for names in each for name in names)])
    return [name for name in named if name not in last] + last


def _attributes(name: str) -> dict[str, str]:
    if name in _WORDS:
        long_name, units = _WORDS[name]
        return {"long_name": long_name, "units": units}
    return wording(name).attributes


def _filled(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Rows of numbers, -1 behind their ends."""
    array = np.full((len(rows), width), -1, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def _named(rows: Sequence[Sequence[int]], width: int, shown: Shown) -> np.ndarray:
    """Rows of tokens as they are shown, nothing behind their ends."""
    array = np.full((len(rows), width), "", dtype=object)
    for number, row in enumerate(rows):
        known = [token for token in row if token >= 0]
        array[number, len(row) - len(known) : len(row)] = shown(known)
    return array


def _tokens(texts: Sequence[Written], shown: Shown | None, places: int, source_places: int) -> dict[str, Any]:
    """The whole texts, and how many tokens of them were there and were written."""
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
        dims = ("sequence", f"{side}_place")
        data[f"{side}_token_id"] = (dims, _filled(rows, width))
        if shown is not None:
            data[f"{side}_token"] = (dims, _named(rows, width, shown))
    return data


def _of_steps(texts: Sequence[Written], steps: int) -> dict[str, Any]:
    """Coordinates of the steps: which token was chosen, and where the token stands from which it was."""
    places = [range(text.given - 1, text.given - 1 + len(text.new)) for text in texts]
    return {
        "prompt": ("sequence", np.array([text.number for text in texts])),
        "token_id": (("sequence", "step"), _filled([text.new for text in texts], steps)),
        "position": (("sequence", "step"), _filled(places, steps)),
    }
