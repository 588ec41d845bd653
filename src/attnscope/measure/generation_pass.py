"""One `generate` call of a model, watched from beginning to end: the row of the pass behind each new token."""

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
    """One generated sequence and its measurements."""

    # token ids without padding: the decoder's prompt, its output, and the encoder's input, if there is one
    prompt: list[int]
    new: list[int]
    source: list[int]
    given: int  # length of the decoder's prompt, which may be embeddings
    number: int  # number of the prompt among those of its call
    sites: Sequence[Site]  # one for each layer
    # names of the spans, and the possible spans of each layer's keys, ``(layer, span)``
    spans: tuple[tuple[str, ...], np.ndarray]
    measured: Mapping[str, np.ndarray]  # ``(step, layer, head[, span or bin])``; uniform attention has one head

    @property
    def whole(self) -> list[int]:
        """The decoder's prompt and output; -1 for embeddings."""
        return [*([-1] * (self.given - len(self.prompt))), *self.prompt, *self.new]


def texts_of(
    observer: GenerationObserver, sequences: Tensor, beams: Tensor | None, ends: Sequence[int], pad: int | None
) -> list[Written]:
    """A record of each sequence that `generate` returned."""
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
    """The measurements of one sequence, with the weights predicted from offsets alone."""
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
    """The measured rows of all passes, concatenated; see `rows_of`."""

    prompt: int
    sites: list[Site]
    layers: list[dict[str, Tensor]]  # (batch, head, row) of all passes
    ids: Tensor  # (batch, row), -1 if unknown
    of_position: dict[int, int]  # from a position in the text to the last row there

    def columns(self, steps: int) -> Tensor:
        """The row that predicted each token: that of the token before it."""
        positions = range(self.prompt - 1, self.prompt - 1 + steps)
        missing = [position for position in positions if position not in self.of_position]
        if missing:
            raise AttnscopeError(
                f"found no pass of generate() over token {missing[0] + 1} of the text: the measured passes belong to "
                "another text"
            )
        return torch.tensor([self.of_position[position] for position in positions], dtype=torch.int64)

    def check(self, chosen: Tensor, new: Tensor) -> None:
        """Reject passes over other tokens than those of the text."""
        read = self.ids[chosen, self.columns(len(chosen))][1:]
        if bool(((read != new[:-1]) & (read >= 0)).any()):
            raise AttnscopeError(
                "the passes of generate() read other tokens than it returns, so the rows of the text are unknown"
            )

    def picked(self, chosen: Tensor) -> dict[str, np.ndarray]:
        """The rows of one sequence: ``(step, layer, head[, span])``; NaN for heads that a layer lacks."""
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
        raise AttnscopeError("captured no pass of generate(), so nothing was measured")
    known = list(passes[0].layers)
    if not known or any(list(each.layers) != known or each.batch != passes[0].batch for each in passes):
        raise AttnscopeError(
            "the passes of generate() differ in their layers or sequences, so the rows of the text are unknown"
        )
    of_position: dict[int, int] = {}
    row = 0
    for each in passes:
        of_position |= {each.start + number: row + number for number in range(each.rows)}
        row += each.rows
    layers = [
        {name: torch.cat([each.layers[layer][name] for each in passes], 2).cpu() for name in passes[0].layers[layer]}
        for layer in known
    ]
    ids = [torch.full((each.batch, each.rows), -1) if each.ids is None else each.ids.cpu() for each in passes]
    sites = [observer.sites[layer] for layer in known]
    return MeasuredRows(observer.prompt, sites, layers, torch.cat(ids, 1), of_position)


def _length(new: Tensor, ends: Sequence[int], pad: int | None) -> int:
    """The number of new tokens up to the end of the text, without padding."""
    last = torch.isin(new, torch.tensor(list(ends), dtype=new.dtype)).nonzero()
    if len(last):
        return int(last[0]) + 1
    written = (new != pad).nonzero() if pad is not None else new
    return len(new) if pad is None else int(written[-1]) + 1 if len(written) else len(new)


_TRIED = 32  # tokens of the prompt for the check of the capture
_CANNOT = {
    "guidance_scale": "the model alternates between two texts",
    "assistant_early_exit": "the model drafts with some of its own layers",
    "custom_generate": "the input of each pass is unknown",
    "output_attentions": "the capture returns no weights to generate()",
}


@dataclass(frozen=True, eq=False)
class GenerationCall:
    """One ``model.generate(...)``: the model, its own method, and its arguments."""

    model: PreTrainedModel
    generate: Callable[..., Any]
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    def run(self, spans: GivenSpans | None) -> tuple[Any, list[Written]]:
        """Generate and measure each new token: the model's output, and a record of each sequence."""
        self._check()
        prompts = Prompts(self._ids, self._mask, spans)
        observer = GenerationObserver(self.sites, prompts, is_pair=self._is_pair)
        named: dict[str, Any] = dict(self.named)
        options = {"return_dict_in_generate": True, "disable_compile": True}  # compiled calls cannot be captured
        if named.get("generation_config") is None:
            named |= options
        else:
            named["generation_config"] = copy.deepcopy(named["generation_config"])
            named["generation_config"].update(**options)
        with watching(self.model, observer, weights_suffice=True), observer.reading(self.model):
            output = self.generate(*self.positional, **named)
        beams = getattr(output, "beam_indices", None)
        pad = self._setting("pad_token_id")
        texts = texts_of(observer, output.sequences, beams, self._ends, pad if isinstance(pad, int) else None)
        return output if self._setting("return_dict_in_generate") else output.sequences, texts

    def _check(self) -> None:
        name = type(self.model).__name__
        if _own_method(type(self.model)) is not transformers.GenerationMixin.__dict__["generate"]:
            raise AttnscopeError(f"{name} has its own generate(), and the input of each pass is unknown")
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
                "found a prompt with padding on the right: pad on the left (tokenizer.padding_side = 'left')"
            )

    @property
    def _is_pair(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    def _setting(self, name: str) -> Any:
        """The value for this call: its argument, else the model's configuration."""
        for holder in (self.named, self.named.get("generation_config"), self.model.generation_config):
            value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
            if value is not None:
                return value
        return None

    @cached_property
    def _main(self) -> Tensor:
        """The model's input: ids, embeddings, or the encoder's input."""
        usual = ("input_ids", "inputs_embeds", self.model.main_input_name)
        known = [self.positional[0] if self.positional else self.named.get("inputs"), *map(self.named.get, usual)]
        main = next((value for value in known if isinstance(value, Tensor)), None)
        if main is None:
            raise AttnscopeError("generate() has no input that can be watched: give input_ids")
        return main

    @property
    def _ids(self) -> Tensor | None:
        return None if self._main.is_floating_point() or self._main.ndim != 2 else self._main  # noqa: PLR2004

    @cached_property
    def _mask(self) -> Tensor | None:
        """The padding of the prompts: the argument, else as transformers infers it."""
        mask = self.named.get("attention_mask")
        if mask is not None or self._ids is None or self._is_pair:
            return mask
        pad, ends = self._setting("pad_token_id"), self._ends
        return None if pad is None or pad in ends else (self._ids != pad).long()

    @property
    def _ends(self) -> list[int]:
        """Tokens at the end of a text."""
        ends = self._setting("eos_token_id")
        return [] if ends is None else [int(end) for end in torch.as_tensor(ends).flatten()]

    @cached_property
    def sites(self) -> dict[tuple[str, int], Site]:
        """The causal and cross-attention layers, checked on the prompt's beginning."""
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
        captured = verify(self.model, inputs, text="the prompt", weights_suffice=True)
        if self._is_pair and capture_of(self.model) != "registry":
            raise AttnscopeError(_by_weights(self.model))
        calls: dict[str, int] = {}
        sites: dict[tuple[str, int], Site] = {}
        for site in captured:
            number = calls[site.name] = calls.get(site.name, -1) + 1
            if site.kind != "self":
                sites[site.name, number] = site
        if not sites:
            raise AttnscopeError(f"{type(self.model).__name__} has no causal layer: generate() needs a causal model")
        return sites


def _own_method(kind: type) -> Any:
    """The `generate` of a class, its own or inherited."""
    return next((base.__dict__["generate"] for base in kind.__mro__ if "generate" in base.__dict__), None)


def _by_weights(model: PreTrainedModel) -> str:
    return (
        f"{type(model).__name__} does not use transformers' attention registry, and generate() calls its encoder and "
        "decoder separately: it cannot be watched"
    )


_SHARES = (SPANS, "max_weight", "first_token")


@torch.no_grad()
def full_pass_difference(call: GenerationCall, text: Written) -> float:
    """Largest difference of a share of weight between generation and one pass over the text without a cache."""
    model = call.model
    device = device_of(model)
    is_pair = bool(model.config.is_encoder_decoder)
    whole_text = torch.tensor([text.whole[:-1]], device=device)
    prompt = torch.tensor([text.source], device=device) if is_pair else whole_text[:, : text.given]
    observer = GenerationObserver(call.sites, Prompts(prompt, None), is_pair=is_pair)
    observer.prompt = text.given
    inputs = {"input_ids": prompt, "decoder_input_ids": whole_text} if is_pair else {"input_ids": whole_text}
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
    Layer = tuple[str, int]  # name of a module, and the number of its call in a pass


@dataclass(eq=False)
class ReadPass:
    """The input of one forward pass, and the measurements of the queries that predict a token."""

    batch: int  # size of the pass
    queries: int
    start: int  # position of the first measured query in the text, with padding
    rows: int  # number of measured queries; 0 in a part of the prompt
    ids: Tensor | None  # ``(batch, row)``: their tokens; None for embeddings
    layers: dict[Layer, dict[str, Tensor]] = field(default_factory=dict)  # statistics of each layer; see `measure_rows`
    calls: dict[str, int] = field(default_factory=dict)


class GenerationObserver:
    """Measures, in each pass of a `generate` call, the rows that predict a token."""

    def __init__(self, sites: Mapping[Layer, Site], prompts: Prompts, *, is_pair: bool) -> None:
        self.sites, self.prompts, self.is_pair = sites, prompts, is_pair
        self.passes: list[ReadPass] = []
        self.prompt = None if is_pair or prompts.ids is None else prompts.ids.shape[1]
        self._now: ReadPass | None = None
        self._end = 0  # of the input so far
        self._cache: Any = None
        self._marks: dict[tuple[bool, torch.device], KeyMarks] = {}  # by whether it is cross-attention

    @property
    def spans(self) -> tuple[str, ...]:
        """Names of all spans."""
        first, rest = (SOURCE, (START, OWN)) if self.is_pair else (PROMPT, (OWN,))
        return (first, *self.prompts.names, *rest)

    def spans_of(self, kind: str) -> list[bool]:
        """Which spans the keys of a type of layer may belong to."""
        of_prompt = [name not in {START, OWN} for name in self.spans]
        return [own == (kind == "cross") for own in of_prompt] if self.is_pair else [True] * len(of_prompt)

    def __call__(self, site: Site, call: AttentionCall) -> None:
        """Measure one call; the model continues with its own output."""
        now = self._now
        if now is None or call.query.shape[0] != now.batch or call.query.shape[2] != now.queries:
            return  # an encoder's, or not over text
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
        """Record the input of each pass of a model."""
        known = inspect.signature(model.forward)

        def begin(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            arguments = dict(known.bind(*positional, **named).arguments)
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
            raise AttnscopeError("found a pass without token ids or embeddings, so its text is unknown")
        batch, queries = read.shape[:2]
        past = self._past(arguments.get("past_key_values"))
        end = past + queries
        self.prompt = end if self.prompt is None else self.prompt
        start = max(self.prompt - 1, past or self._end)
        rows = max(end - start, 0)
        self._end = end
        self._now = ReadPass(batch, queries, start, rows, None if ids is None else ids[:, queries - rows :])

    def _past(self, cache: Any) -> int:
        """The number of tokens in a cache of transformers."""
        if cache is None:
            return 0
        own = getattr(cache, "self_attention_cache", cache)
        layers = getattr(own, "layers", [own])
        strange = [layer for layer in layers if type(layer).__module__.partition(".")[0] != "transformers"]
        if strange or not hasattr(own, "get_seq_length"):
            kind = type([*strange, own][0]).__name__
            raise AttnscopeError(
                f"the cache stores keys in a {kind} from outside transformers, so their positions are unknown: use one "
                "of transformers' caches"
            )
        if self._cache is not None and cache is not self._cache:
            raise AttnscopeError("the passes of generate() use several caches, so the rows of the text are unknown")
        self._cache = cache
        return cached_tokens(own)

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
