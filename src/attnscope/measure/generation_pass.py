"""One `generate` call of a model, watched from beginning to end: the row of the pass behind each new token."""

import copy
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
import xarray as xr
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.forward import check_finite, decoder_start
from attnscope.capture.functional import cache_of, cached_tokens
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import capture_of, watching
from attnscope.kernels.call import AttentionCall
from attnscope.measure.generation_rows import (
    BINS,
    DOUBLINGS,
    OWN,
    PATCHES,
    POSITIONS,
    PROMPT,
    RANGES,
    SOURCE,
    SPANS,
    START,
    GivenSpans,
    KeyMarks,
    Prompts,
    by_positions,
    measure_rows,
)
from attnscope.measure.passes import HostOffloader, stacked
from attnscope.measure.quantities import EQUAL, Wording, wording
from attnscope.store.arrays import stacked as stacked_along
from attnscope.support.errors import AttnscopeError

#: The first of the measured bins of each doubling.
_PARTS = [[first for first, _ in RANGES].index(first) for first, _ in DOUBLINGS]
#: Name and unit of variables that a scan does not have.
_WORDS = {
    SPANS: Wording("Weight on each span", "share"),
    f"{EQUAL}{SPANS}": Wording("Weight on each span, under uniform attention", "share"),
    f"{EQUAL}mean_offset": Wording("Mean offset (negative is left), under uniform attention", "tokens"),
    POSITIONS: Wording("Weight on each span predicted from offsets alone", "share"),
    BINS: Wording("Weight in each bin of offsets", "share"),
    PATCHES: Wording("Weight on each patch of the images", "share"),
    "top_key": Wording("Position of the key with the largest weight", "tokens"),
}


@dataclass(eq=False)
class MeasuredPass:
    """The input of one forward pass, and the measurements of the queries that predict a token."""

    batch: int  # size of the pass
    queries: int
    start: int  # position of the first measured query in the text, with padding
    rows: int  # number of measured queries; 0 in a part of the prompt
    ids: Tensor | None  # ``(batch, row)``: their tokens; None for embeddings
    measured: HostOffloader = field(default_factory=HostOffloader)  # statistics of each layer; see `measure_rows`
    calls: dict[str, int] = field(default_factory=dict)  # of each module

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """``(batch, layer, head, row, ...)`` each; without heads for uniform attention."""
        return stacked(self.measured.layers())

    def of_text(self, text: int, position: int) -> dict[str, np.ndarray]:
        """The row of a text at a position, ``(layer, head, ...)``."""
        row = position - self.start
        return {
            name: values[text, :, row] if name.startswith(EQUAL) else values[text, :, :, row]
            for name, values in self.arrays.items()
        }


Layer = tuple[str, int]  # name of a module, and the number of its call in a pass


class GenerationObserver:
    """Measures, in each pass of a `generate` call, the rows that predict a token."""

    def __init__(
        self, sites: Mapping[Layer, Site], prompts: Prompts, *, is_pair: bool, patches: Sequence[int] = ()
    ) -> None:
        self.sites, self.prompts, self.is_pair = sites, prompts, is_pair
        self.patches = torch.tensor(patches) if len(patches) else None
        self.spans = [SOURCE, *prompts.names, START, OWN] if is_pair else [PROMPT, *prompts.names, OWN]
        self.passes: list[MeasuredPass] = []
        self.prompt = None if is_pair or prompts.ids is None else prompts.ids.shape[1]  # its length
        self._now: MeasuredPass | None = None
        self._end = 0  # of the input so far
        self._cache: Any = None
        self._marks: dict[tuple[bool, torch.device], KeyMarks] = {}  # by whether it is cross-attention

    def __call__(self, site: Site, call: AttentionCall) -> None:
        """Measure one call; the model continues with its own output."""
        now = self._now
        if now is None or call.query.shape[0] != now.batch or call.query.shape[2] != now.queries:
            return  # an encoder's, or not over text
        layer = site.name, now.calls.get(site.name, 0)
        now.calls[site.name] = layer[1] + 1
        layer_site = self.sites.get(layer)
        if layer_site is None or not now.rows:
            return
        is_cross = layer_site.kind == "cross"
        device = call.query.device
        if (is_cross, device) not in self._marks:
            length = call.key.shape[2] if is_cross else self.prompt or 0
            marks = self.prompts.marks(now.batch, length, self._side(layer_site.kind))
            patches = None if self.patches is None else self.patches.to(device)
            self._marks[is_cross, device] = KeyMarks(marks.padding.to(device), marks.spans.to(device), patches)
        marks = self._marks[is_cross, device]
        measured = measure_rows(call, now.queries - now.rows, now.start, marks, is_cross=is_cross)
        states = measured["entropy"].transpose(1, 2)
        check_finite(f"layer {layer_site.index} ({layer_site.name})", states, lambda text: f"sequence {text + 1}")
        now.measured.add(layer_site.index, measured)

    def _side(self, kind: str) -> str:
        return "text" if not self.is_pair else "source" if kind == "cross" else "target"

    @contextmanager
    def reading(self, model: PreTrainedModel, after_pass: Callable[[int], None] = lambda _: None) -> Generator[None]:
        """Record the input of each pass of a model, and count the passes."""
        signature = inspect.signature(model.forward)

        def begin(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            arguments = dict(signature.bind(*positional, **named).arguments)
            self._begin(arguments | arguments.pop("kwargs", {}))

        def end(*_: Any) -> None:
            now, self._now = self._now, None
            if now is not None and now.rows:
                self.passes.append(now)
                after_pass(len(self.passes))

        with model.register_forward_pre_hook(begin, with_kwargs=True), model.register_forward_hook(end):
            yield

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        side = "decoder_" if self.is_pair else ""
        ids, states = arguments.get(f"{side}input_ids"), arguments.get(f"{side}inputs_embeds")
        read = ids if ids is not None else states
        if read is None:
            raise AttnscopeError("found a pass without token ids or embeddings, so its text is unknown")
        batch, queries = read.shape[:2]
        past = self._past(cache_of(arguments))
        end = past + queries
        self.prompt = end if self.prompt is None else self.prompt
        start = max(self.prompt - 1, past or self._end)
        rows = max(end - start, 0)
        self._end = end
        self._now = MeasuredPass(batch, queries, start, rows, None if ids is None else ids[:, queries - rows :].cpu())

    def _past(self, cache: Any) -> int:
        """The number of tokens in a cache of transformers."""
        if cache is None:
            return 0
        decoder_cache = getattr(cache, "self_attention_cache", cache)
        layers = getattr(decoder_cache, "layers", [decoder_cache])
        strange = [layer for layer in layers if type(layer).__module__.partition(".")[0] != "transformers"]
        if strange or not hasattr(decoder_cache, "get_seq_length"):
            kind = type([*strange, decoder_cache][0]).__name__
            raise AttnscopeError(
                f"the cache stores keys in a {kind} from outside transformers, so their positions are unknown: use one "
                "of transformers' caches"
            )
        if self._cache is not None and cache is not self._cache:
            raise AttnscopeError("the passes of generate() use several caches, so the rows of the text are unknown")
        self._cache = cache
        return cached_tokens(decoder_cache)

    @cached_property
    def of_position(self) -> dict[int, MeasuredPass]:
        """The last pass over each position of the text."""
        if not self.passes or self.prompt is None:
            raise AttnscopeError("captured no pass of generate(), so nothing was measured")
        first = self.passes[0]
        if not first.measured or any(
            each.measured.keys() != first.measured.keys() or each.batch != first.batch for each in self.passes
        ):
            raise AttnscopeError(
                "the passes of generate() differ in their layers or sequences, so the rows of the text are unknown"
            )
        return {each.start + row: each for each in self.passes for row in range(each.rows)}

    def rows(self, chosen: Sequence[int], new: Sequence[int]) -> dict[str, np.ndarray]:
        """The row before each token of a text, ``(step, layer, head, ...)``; `chosen` are the sequences behind them."""
        steps: list[dict[str, np.ndarray]] = []
        for position, (text, before) in enumerate(zip(chosen, [-1, *new], strict=False), (self.prompt or 0) - 1):
            run = self.of_position.get(position)
            if run is None:
                raise AttnscopeError(
                    f"found no pass of generate() over token {position + 1} of the text: the measured passes belong to "
                    "another text"
                )
            if run.ids is not None and before not in {-1, int(run.ids[text, position - run.start])}:
                raise AttnscopeError(
                    "the passes of generate() read other tokens than it returns, so the rows of the text are unknown"
                )
            steps.append(run.of_text(text, position))
        return {name: np.stack([step[name] for step in steps]) for name in steps[0]}

    def text(self, number: int, sequences: int, prompt: list[int], chosen: Sequence[int], new: list[int]) -> xr.Dataset:
        """One of the generated sequences: its tokens, and the measurements of each new one."""
        measured, length = self.rows(chosen, new), self.prompt or 0
        first = self.passes[0]
        marks, row = self.prompts.marks(first.batch, length, self._side("causal")), number * first.batch // sequences
        padding = int(marks.padding[row])
        prompt_number = number * self.prompts.count // sequences
        columns = marks.columns(length - padding + len(new), padding)[row].numpy()
        measured[POSITIONS] = by_positions(measured, columns, length - padding)
        measured[BINS] = np.add.reduceat(measured[BINS], _PARTS, axis=-1)
        data: dict[str, Any] = {}
        for name, values in measured.items():
            of_head = () if name.startswith(EQUAL) else ("head",)
            along = {BINS: ("offset_bin",), PATCHES: ("patch",)}.get(name, ("span",) if name.endswith(SPANS) else ())
            data[name] = (("step", "layer", *of_head, *along), values, (_WORDS.get(name) or wording(name)).attributes)
        whole = [*[-1] * (length - padding - len(prompt)), *prompt, *new]  # embeddings have no ids
        source = self.prompts.tokens(prompt_number) if self.is_pair else []
        data |= {
            "prompt_length": ((), length - padding, {"units": "tokens"}),
            "length": ((), len(new), {"units": "tokens"}),
            "text_token_id": ("text_position", whole),
            **({"source_token_id": ("source_position", source)} if source else {}),
            "prompt": ((), prompt_number),
            "token_id": ("step", new),
            "position": ("step", np.arange(len(whole) - len(new), len(whole)) - 1),
        }
        sites = sorted(self.sites.values(), key=lambda site: site.index)
        coords = {
            "step": np.arange(len(new)),
            **layer_coordinates(site for site in sites if site.index in first.measured),
            "head": np.arange(measured["entropy"].shape[2]),
            "span": np.array(self.spans, dtype=object),
            "offset_bin": [last for _, last in DOUBLINGS],
            "bin_first": ("offset_bin", [first for first, _ in DOUBLINGS]),
        }
        if PATCHES in data:
            coords["patch"] = np.arange(data[PATCHES][1].shape[-1])
        return xr.Dataset(data, coords)


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
    decoder: PreTrainedModel | None = None  # the part of a vision-language model that reads the text with its images
    decoder_sites: Sequence[Site] = ()  # its layers
    patches: Sequence[int] = ()  # tokens whose weights are kept one by one
    after_pass: Callable[[int], None] = lambda _: None  # called with the number of passes

    @property
    def _watched(self) -> PreTrainedModel:
        return self.model if self.decoder is None else self.decoder

    def run(self, spans: GivenSpans | None) -> tuple[Any, list[xr.Dataset]]:
        """Generate and measure each new token: the model's output, and each sequence."""
        self._check()
        prompts = Prompts(self._ids, self._mask, spans)
        observer = GenerationObserver(self.sites, prompts, is_pair=self._is_pair, patches=self.patches)
        named: dict[str, Any] = dict(self.named)
        options = {"return_dict_in_generate": True, "disable_compile": True}  # compiled calls cannot be captured
        if named.get("generation_config") is None:
            named |= options
        else:
            named["generation_config"] = copy.deepcopy(named["generation_config"])
            named["generation_config"].update(**options)
        with watching(self._watched, observer, weights_suffice=True), observer.reading(self._watched, self.after_pass):
            output = self.generate(*self.positional, **named)
        texts = self._texts(observer, output.sequences.tolist(), getattr(output, "beam_indices", None))
        return output if self._setting("return_dict_in_generate") else output.sequences, texts

    def _texts(
        self, observer: GenerationObserver, sequences: list[list[int]], beams: Tensor | None
    ) -> list[xr.Dataset]:
        """Each sequence that `generate` returned, without the padding around it."""
        length = (observer.prompt or 0) if self._is_pair or self._ids is not None else 0
        pad = self._setting("pad_token_id") if len(sequences) > 1 else None
        texts: list[xr.Dataset] = []
        for number, sequence in enumerate(sequences):
            new, prompt_number = sequence[length:], number * observer.prompts.count // len(sequences)
            if beams is None:
                chosen = [number] * _length(new, self._ends, pad)
            else:
                chosen = [beam for beam in beams[number].tolist() if beam >= 0]
            prompt = sequence[:length] if self._is_pair else observer.prompts.tokens(prompt_number)
            texts.append(observer.text(number, len(sequences), prompt, chosen, new[: len(chosen)]))
        return texts

    def _check(self) -> None:
        name = type(self.model).__name__
        model_class: Any = type(self.model)
        if model_class.generate is not transformers.GenerationMixin.__dict__["generate"]:
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
        candidates = [self.positional[0] if self.positional else self.named.get("inputs"), *map(self.named.get, usual)]
        main = next((value for value in candidates if isinstance(value, Tensor)), None)
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
        pad = self._setting("pad_token_id")
        return None if pad is None or pad in self._ends else (self._ids != pad).long()

    @property
    def _ends(self) -> list[int]:
        """Tokens at the end of a text."""
        ends = self._setting("eos_token_id")
        return [] if ends is None else [int(end) for end in torch.as_tensor(ends).flatten()]

    @cached_property
    def sites(self) -> dict[tuple[str, int], Site]:
        """The causal and cross-attention layers, checked on the prompt's beginning."""
        name, device = type(self.model).__name__, device_of(self.model)
        if self.decoder is not None:  # checked with images before
            return _numbered([replace(site, kind="causal") for site in self.decoder_sites])
        if self._ids is not None:
            first = self._ids[0] if self._mask is None else self._ids[0][self._mask[0] > 0]
            inputs = {"input_ids": first[:_TRIED].repeat(2 if len(first) == 1 else 1)[None]}
        elif self._is_pair:
            inputs = {self.model.main_input_name: self._main[:1]}
        else:
            inputs = {"inputs_embeds": self._main[:1, :_TRIED]}
        inputs = {argument: value.to(device) for argument, value in inputs.items()}
        if self._is_pair:
            start = decoder_start(self.model)([0, *self._ends[:1]])
            inputs["decoder_input_ids"] = torch.full((1, 2), start, device=device)
        captured = verify(self.model, inputs, text="the prompt", weights_suffice=True)
        if self._is_pair and capture_of(self.model) != "registry":
            raise AttnscopeError(
                f"{name} does not use transformers' attention registry, and generate() calls its encoder and decoder "
                "separately: it cannot be watched"
            )
        sites = _numbered(captured)
        if not sites:
            raise AttnscopeError(f"{name} has no causal layer: generate() needs a causal model")
        return sites

    @torch.no_grad()
    def full_pass_difference(self, text: xr.Dataset) -> float:
        """Largest difference of a share of weight between generation and one pass over the text without a cache."""
        device, new = device_of(self.model), text.token_id.values.tolist()
        whole = torch.from_numpy(text.text_token_id.values[None, :-1]).to(device)
        length = int(text.prompt_length)
        prompt = torch.from_numpy(text.source_token_id.values[None]).to(device) if self._is_pair else whole[:, :length]
        observer = GenerationObserver(self.sites, Prompts(prompt, None), is_pair=self._is_pair)
        observer.prompt = length
        inputs = {"input_ids": prompt, "decoder_input_ids": whole} if self._is_pair else {"input_ids": whole}
        if self.decoder is not None:
            inputs = with_new_tokens(
                {name: value for name, value in self.named.items() if isinstance(value, Tensor)}, whole
            )
        with watching(self._watched, observer, weights_suffice=True), observer.reading(self._watched):
            self.model(**inputs, use_cache=False)
        rows = observer.rows([0] * len(new), new)
        generated = text.sel(span=observer.spans)
        return max(
            float(np.nanmax(np.abs(generated[name] - rows[name]))) for name in (SPANS, "max_weight", "first_token")
        )


def with_new_tokens(arguments: Mapping[str, Any], ids: Tensor) -> dict[str, Any]:
    """The arguments of a pass over a prompt with images, for one over the prompt and new tokens of text."""
    prompt = arguments["input_ids"].shape
    longer: dict[str, Any] = {}
    for name, value in arguments.items():
        is_of_tokens = isinstance(value, Tensor) and value.shape == prompt
        fill = 1 if name == "attention_mask" else 0
        new = ids.shape[1] - prompt[1]
        longer[name] = torch.nn.functional.pad(value, (0, new), value=fill) if is_of_tokens else value
    return longer | {"input_ids": ids.to(arguments["input_ids"].device)}


def _numbered(captured: Sequence[Site]) -> dict[Layer, Site]:
    """The causal and cross-attention layers by module and number of its call."""
    calls: dict[str, int] = {}
    sites: dict[Layer, Site] = {}
    for site in captured:
        number = calls[site.name] = calls.get(site.name, -1) + 1
        if site.kind != "self":
            sites[site.name, number] = site
    return sites


def _length(new: Sequence[int], ends: Sequence[int], pad: int | None) -> int:
    """The number of new tokens up to the end of the text, without padding."""
    last = next((number for number, token in enumerate(new, 1) if token in ends), None)
    return last or max((number for number, token in enumerate(new, 1) if token != pad), default=len(new))


def together(
    texts: Sequence[xr.Dataset],
    shown: Callable[[Sequence[int]], Sequence[str]] | None = None,
    spans: Sequence[str] = (),
    **least: int,
) -> xr.Dataset:
    """Generated sequences as one Dataset; `shown` gives the displayed tokens, `least` the sizes to pad it to."""
    first = texts[0]
    if any(text.layer_name.values.tolist() != first.layer_name.values.tolist() for text in texts):
        raise AttnscopeError("generate() calls differ in their layers: use a new `watch` for each")
    each = [text.span.values.tolist() for text in texts]
    last = [name for name in each[0] if name in {START, OWN}]
    named = dict.fromkeys([each[0][0], *spans, *(name for names in each for name in names)])
    sizes = {
        name: max(least.get(name, 0), *(text.sizes[name] for text in texts))
        for name in ("step", "head", "patch", "text_position", "source_position")
        if name in first.sizes
    }
    positions = [name for name in sizes if name.endswith("_position")]
    at = {name: np.arange(size) for name, size in sizes.items()}
    at["span"] = np.array([*(name for name in named if name not in last), *last], dtype=object)
    padding = dict.fromkeys(("token_id", "position", "text_token_id", "source_token_id"), -1)
    padded: list[xr.Dataset] = []
    for text in texts:
        numbered = text.assign_coords({name: np.arange(text.sizes[name]) for name in positions})
        for side in [name.removesuffix("_position") for name in positions]:
            if shown is None:
                break
            ids = text[f"{side}_token_id"].values
            tokens = np.full(len(ids), "", dtype=object)
            tokens[ids >= 0] = shown(ids[ids >= 0].tolist())
            numbered[f"{side}_token"] = f"{side}_position", tokens
        padded.append(numbered.reindex(at, fill_value=padding | {"text_token": "", "source_token": ""}))
    whole = stacked_along(padded, "sequence", np.arange(len(texts)))
    near = next(number for number, (_, last) in enumerate(DOUBLINGS) if -last < sizes["text_position"])
    whole = whole.isel(offset_bin=slice(near, None)).drop_vars(positions)
    return whole.set_coords(["prompt", "token_id", "position"])
