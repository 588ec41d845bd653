"""One `generate` call of a model, watched from beginning to end: which row of which pass wrote each token."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from torch import Tensor

from attnscope.capture.forward import check_finite, decoder_start
from attnscope.capture.functional import cached_tokens
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watching import capture_of, watching
from attnscope.measure.generation_rows import (
    OWN,
    PLACES,
    PROMPT,
    SOURCE,
    SPANS,
    START,
    GivenSpans,
    KeyMarks,
    Prompts,
    by_places,
    measure_rows,
)
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator

    from torch import nn
    from transformers import PreTrainedModel

    from attnscope.capture.watch import Site
    from attnscope.kernels.call import AttentionCall


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


_TRIED = 32  # tokens of the prompt on which the capture is checked
_CANNOT = {
    "guidance_scale": "the model reads two texts by turns",
    "assistant_early_exit": "the model drafts with some of its own layers",
    "custom_generate": "it is not known what the model then reads",
    "output_attentions": "attention is seen in another way, which gives no weights back",
}


@dataclass(frozen=True, eq=False)
class GenerationCall:
    """One ``model.generate(...)``: the model, its own method, and what the caller gives it."""

    model: PreTrainedModel
    generate: Callable[..., Any]
    given: tuple[Any, ...]
    named: Mapping[str, Any]

    def run(self, spans: GivenSpans | None) -> tuple[Any, list[Written]]:
        """Generate, and measure each new token: what the model returns, and a record of each sequence."""
        self._check()
        prompts = Prompts(self._ids, self._mask, spans)
        observer = GenerationObserver(self.sites, prompts, is_pair=self._is_pair)
        named: dict[str, Any] = dict(self.named)
        asked = {"return_dict_in_generate": True, "disable_compile": True}  # what is compiled is not seen
        if named.get("generation_config") is None:
            named |= asked
        else:
            named["generation_config"] = copy.deepcopy(named["generation_config"])
            named["generation_config"].update(**asked)
        with watching(self.model, observer, weights_suffice=True), observer.reading(self.model):
            output = self.generate(*self.given, **named)
        beams = getattr(output, "beam_indices", None)
        pad = self._setting("pad_token_id")
        texts = texts_of(observer, output.sequences, beams, self._ends, pad if isinstance(pad, int) else None)
        return output if self._setting("return_dict_in_generate") else output.sequences, texts

    def _check(self) -> None:
        name = type(self.model).__name__
        if _own_method(type(self.model)) is not transformers.GenerationMixin.__dict__["generate"]:
            raise AttnscopeError(f"{name} has a generate() of its own, and it is not known what it reads in each pass")
        if self.model.training:
            raise AttnscopeError(f"{name} is in training mode: call model.eval() first")
        for setting, reason in _CANNOT.items():
            value = self._setting(setting)
            if value not in {None, False} and not (setting == "guidance_scale" and value == 1):
                raise AttnscopeError(f"generate({setting}={value!r:.40}) cannot be watched: {reason}. Leave it out")
        if self._setting("cache_implementation") == "paged":
            raise AttnscopeError("generate(cache_implementation='paged') cannot be watched: it mixes texts in a pass")
        if self._is_pair and (self.named.get("assistant_model") or self._setting("prompt_lookup_num_tokens")):
            raise AttnscopeError(f"assisted generation of {name}, an encoder-decoder, cannot be watched")
        mask = self._mask
        if not self._is_pair and mask is not None and bool((mask[:, -1] == 0).any()):
            raise AttnscopeError(
                "a prompt is padded on the right, so the model would go on after padding: pad on the left "
                "(tokenizer.padding_side = 'left')"
            )

    @property
    def _is_pair(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    def _setting(self, name: str) -> Any:
        """What holds for this call: as it is asked for, else as the model is set."""
        for holder in (self.named, self.named.get("generation_config"), self.model.generation_config):
            value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            if value is not None:
                return value
        return None

    @cached_property
    def _main(self) -> Tensor:
        """What the model is given to read: ids, embeddings, or what its encoder takes."""
        usual = ("input_ids", "inputs_embeds", self.model.main_input_name)
        known = [self.given[0] if self.given else self.named.get("inputs"), *map(self.named.get, usual)]
        main = next((value for value in known if isinstance(value, Tensor)), None)
        if main is None:
            raise AttnscopeError("generate() was given nothing to go on with that can be watched: give input_ids")
        return main

    @property
    def _ids(self) -> Tensor | None:
        return None if self._main.is_floating_point() or self._main.ndim != 2 else self._main  # noqa: PLR2004

    @cached_property
    def _mask(self) -> Tensor | None:
        """Where the prompts are padded: as it is said, else as transformers tells it."""
        mask = self.named.get("attention_mask")
        if mask is not None or self._ids is None or self._is_pair:
            return mask
        pad, ends = self._setting("pad_token_id"), self._ends
        return None if pad is None or pad in ends else (self._ids != pad).long()

    @property
    def _ends(self) -> list[int]:
        """Tokens that end a text."""
        ends = self._setting("eos_token_id")
        return [] if ends is None else [int(end) for end in torch.as_tensor(ends).flatten()]

    @cached_property
    def sites(self) -> dict[tuple[str, int], Site]:
        """The layers in which a token looks at those before it or at a source, checked on the prompt's beginning."""
        if self._is_pair and capture_of(self.model) != "registry":
            raise AttnscopeError(_by_weights(self.model))
        ids = self._ids
        if ids is None:
            whole = self._main[:1] if self._is_pair else self._main[:1, :_TRIED]
            key = self.model.main_input_name if self._is_pair else "inputs_embeds"
            inputs = {key: whole}
        else:
            first = ids[0] if self._mask is None else ids[0][self._mask[0] > 0]
            inputs = {"input_ids": first[:_TRIED].repeat(2 if len(first) == 1 else 1)[None]}
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        if self._is_pair:
            start = decoder_start(self.model)([0, *self._ends[:1]])
            inputs["decoder_input_ids"] = torch.full((1, 2), start, device=self.model.device)
        seen, _ = verify(self.model, inputs, text="the prompt", weights_suffice=True)
        if self._is_pair and capture_of(self.model) != "registry":
            raise AttnscopeError(_by_weights(self.model))
        calls: dict[str, int] = {}
        sites: dict[tuple[str, int], Site] = {}
        for site in seen:
            number = calls[site.name] = calls.get(site.name, -1) + 1
            if site.kind != "self":
                sites[site.name, number] = site
        if not sites:
            raise AttnscopeError(
                f"no layer of {type(self.model).__name__} looks back only: generate() is for causal models"
            )
        return sites


def _own_method(kind: type) -> Any:
    """The `generate` that a class has, of its own or inherited."""
    return next((base.__dict__["generate"] for base in kind.__mro__ if "generate" in base.__dict__), None)


def _by_weights(model: PreTrainedModel) -> str:
    return (
        f"{type(model).__name__} does not use transformers' attention registry, and its encoder and decoder "
        "run apart in generate(): it cannot be watched there"
    )


_SHARES = (SPANS, "max_weight", "first_token")


@torch.no_grad()
def full_pass_difference(call: GenerationCall, text: Written) -> float:
    """Largest difference of a share of weight between a generated text and one pass over it, without a cache."""
    model = call.model
    device = device_of(model)
    is_pair = bool(model.config.is_encoder_decoder)
    read = torch.tensor([text.whole[:-1]], device=device)
    given = torch.tensor([text.source], device=device) if is_pair else read[:, : text.given]
    observer = GenerationObserver(call.sites, Prompts(given, None), is_pair=is_pair)
    observer.prompt = text.given
    inputs = {"input_ids": given, "decoder_input_ids": read} if is_pair else {"input_ids": read}
    with watching(model, observer, weights_suffice=True), observer.reading(model):
        model(**inputs, use_cache=False)
    rows = rows_of(observer)
    steps = len(text.new)
    whole = rows.picked(torch.zeros(steps, dtype=torch.int64))
    named = [text.spans[0].index(name) for name in observer.spans]
    away = [0.0]
    for name in _SHARES:
        own = text.measured[name][..., named] if name == SPANS else text.measured[name]
        away.append(float(np.nanmax(np.abs(own - whole[name]))))
    return max(away)


if TYPE_CHECKING:
    Layer = tuple[str, int]  # name of a module, and which of its calls in a pass


@dataclass(eq=False)
class ReadPass:
    """What one forward pass read, and what was measured of the queries from which a token is chosen."""

    batch: int  # size of the pass
    queries: int
    start: int  # where the first measured query stands in the text, padding counted
    rows: int  # how many are measured; 0 in a part of the prompt
    ids: Tensor | None  # ``(batch, row)``: their tokens; None where the model was given embeddings
    layers: dict[Layer, dict[str, Tensor]] = field(default_factory=dict)  # statistics of each layer; see `measure_rows`
    calls: dict[str, int] = field(default_factory=dict)


class GenerationObserver:
    """Measures, in each pass of a `generate` call, the rows from which a token is chosen."""

    def __init__(self, sites: Mapping[Layer, Site], prompts: Prompts, *, is_pair: bool) -> None:
        self.sites, self.prompts, self.is_pair = sites, prompts, is_pair
        self.passes: list[ReadPass] = []
        self.prompt = None if is_pair or prompts.ids is None else prompts.ids.shape[1]
        self._now: ReadPass | None = None
        self._end = 0  # of what was read
        self._cache: Any = None
        self._marks: dict[tuple[bool, torch.device], KeyMarks] = {}  # by whether a layer looks across

    @property
    def spans(self) -> tuple[str, ...]:
        """Names of all spans."""
        first, rest = (SOURCE, (START, OWN)) if self.is_pair else (PROMPT, (OWN,))
        return (first, *self.prompts.names, *rest)

    def spans_of(self, kind: str) -> list[bool]:
        """Which of them the keys of a kind of layer may belong to."""
        of_given = [name not in {START, OWN} for name in self.spans]
        return [given == (kind == "cross") for given in of_given] if self.is_pair else [True] * len(of_given)

    def __call__(self, site: Site, call: AttentionCall) -> None:
        """Measure one call; the model goes on with its own output."""
        now = self._now
        if now is None or call.query.shape[0] != now.batch or call.query.shape[2] != now.queries:
            return  # of an encoder, or of what is no text
        layer = site.name, now.calls.get(site.name, 0)
        now.calls[site.name] = layer[1] + 1
        known = self.sites.get(layer)
        if known is None or not now.rows:
            return
        is_cross = known.kind == "cross"
        marks = self._marks_of(call, is_cross=is_cross)
        measured = measure_rows(call, now.queries - now.rows, now.start, marks, is_cross=is_cross)
        check_finite(
            f"layer {known.index} ({known.name})",
            measured["entropy"].transpose(1, 2),
            lambda text: f"sequence {text + 1}",
        )
        now.layers[layer] = measured

    @contextmanager
    def reading(self, model: PreTrainedModel) -> Generator[None]:
        """Know of each pass of a model what it reads."""
        known = inspect.signature(model.forward)

        def begin(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            arguments = dict(known.bind(*given, **named).arguments)
            self._begin(arguments | arguments.pop("kwargs", {}))

        def end(*_: Any) -> None:
            now, self._now = self._now, None
            if now is not None and now.rows:
                self.passes.append(now)

        with model.register_forward_pre_hook(begin, with_kwargs=True), model.register_forward_hook(end):
            yield

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        side = "decoder_" if self.is_pair else ""
        ids, states = arguments.get(f"{side}input_ids"), arguments.get(f"{side}inputs_embeds")
        read = ids if ids is not None else states
        if read is None:
            raise AttnscopeError("a pass reads neither token ids nor embeddings: which text it writes is not known")
        batch, queries = read.shape[:2]
        past = self._past(arguments.get("past_key_values"))
        end = past + queries
        self.prompt = end if self.prompt is None else self.prompt
        start = max(self.prompt - 1, past or self._end)
        rows = max(end - start, 0)
        self._end = end
        self._now = ReadPass(batch, queries, start, rows, None if ids is None else ids[:, queries - rows :])

    def _past(self, cache: Any) -> int:
        """How many tokens a cache holds; refused where it is not known how."""
        if cache is None:
            return 0
        held = getattr(cache, "self_attention_cache", cache)
        layers = getattr(held, "layers", [held])
        strange = [layer for layer in layers if type(layer).__module__.partition(".")[0] != "transformers"]
        if strange or not hasattr(held, "get_seq_length"):
            kind = type([*strange, held][0]).__name__
            raise AttnscopeError(
                f"the cache keeps keys in a {kind}, which is not of transformers, so it is not known where in the text "
                "they stand: generate with one of transformers' caches"
            )
        if self._cache is not None and cache is not self._cache:
            raise AttnscopeError(
                "the passes of generate() use more than one cache, so it is not known which of them write the text"
            )
        self._cache = cache
        return cached_tokens(held)

    def _marks_of(self, call: AttentionCall, *, is_cross: bool) -> KeyMarks:
        device = call.query.device
        if (is_cross, device) not in self._marks:
            batch, names = len(call.query), self.prompts.names
            padding = self.prompts.padding(batch)
            if is_cross:
                columns, beyond = _padded(self.prompts.columns(batch, call.key.shape[2]), 0, 2), -1
            elif self.is_pair:
                columns, beyond = (
                    _padded(torch.ones(batch, self.prompt or 0, 1, dtype=torch.float32), 1 + len(names), 1),
                    2 + len(names),
                )
                padding = torch.zeros_like(padding)
            else:
                columns, beyond = _padded(self.prompts.columns(batch, self.prompt or 0), 0, 1), 1 + len(names)
            self._marks[is_cross, device] = KeyMarks(padding.to(device), columns.to(device), beyond)
        return self._marks[is_cross, device]


def _padded(columns: Tensor, before: int, behind: int) -> Tensor:
    return torch.nn.functional.pad(columns, (before, behind))
