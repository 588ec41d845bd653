"""Raw weights of chosen heads over one text, image or sound, and the attention that each token receives."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, borrowed
from attnscope.capture.forward import forward
from attnscope.capture.modalities import modality_of, reject_modalities
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.parameters import Loading, ScanSettings
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure, output_of
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.sums import column_sums
from attnscope.measure.passes import WindowBatch
from attnscope.measure.sample import WordBatch
from attnscope.measure.scan import READERS
from attnscope.measure.texts import first_windows
from attnscope.opened import Opened
from attnscope.options import ModelOptions, TextModelOptions
from attnscope.read.encoded import EncodedTexts
from attnscope.read.sounds import Sounds
from attnscope.read.words import WordedWindows, in_words, word_rule_of
from attnscope.store.arrays import padded_heads
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Processor
    from attnscope.capture.watch import Observer
    from attnscope.read.encoded import Sources
    from attnscope.read.windows import Window
    from attnscope.read.words import Words


LIMIT = 1 << 30  # bytes of weights


def weights(
    model: Model | None,
    texts: Sources,
    *,
    targets: Sources,
    layer: int | None,
    head: int | None,
    tokenizer: Processor,
    window: int | None,
    words: Words | None,
    **options: Unpack[ModelOptions],
) -> xr.DataArray:
    """The work of `attnscope.weights`."""
    heads = ChosenHeads(layer, head)

    def observe(site: Site, call: AttentionCall, merging: WordBatch | None = None) -> Tensor:
        output = output_of(call)
        if heads.has(site, call):
            _check(site, call, head, len(heads.values))
            heads.add(site, (attend_in_full(call)[1] if merging is None else merging.weights(site, call))[0].float())
        return output

    source = "bundled" if model is None else model
    modality = None if texts is None else modality_of(source, texts, revision=options["revision"])
    if modality is None:
        session = Opened.of(model, texts)
        loaded = session.load({"tokenizer": tokenizer, **options}, heads=[(layer, head)])
        first = first_window(session, targets, window)
        merging = None
        if words is not None:
            first = next(iter(WordedWindows([first], word_rule_of(words))))
            merging = WordBatch.of([first], device_of(loaded.model))
        observe_window(loaded, first, lambda site, call: observe(site, call, merging))
        first = in_words(first)
    else:
        if window is not None or words is not None:
            raise AttnscopeError("window and words need plain texts: leave them out")
        if len(modality) > 1:
            raise _several(f"{len(modality)} images, videos, sounds or texts with images")
        if targets is not None and not isinstance(modality, Sounds):
            raise AttnscopeError("targets need texts or sounds: leave them out")
        loading = Loading(**options)
        settings = ScanSettings(limit=1, processor=tokenizer, loading=loading, targets=targets, statistics=("entropy",))
        first = READERS[type(modality)](source, modality, settings).observe_first(observe)
    shapes = {matrix.shape[1:] for _, matrix in heads.layers}
    if len(shapes) > 1:
        raise AttnscopeError(
            "the layers have matrices of several sizes (encoder and decoder): choose one (layer=), or leave out targets"
        )
    ((rows, columns),) = shapes
    kind, target = heads.layers[0][0].kind, first.target or first
    queries, keys = target if kind != "self" else first, target if kind == "causal" else first
    named = {"query_token": ("query", _names(queries, rows)), "key_token": ("key", _names(keys, columns))}
    return heads.labelled("weights", ("query", "key"), named, {"long_name": "Attention weight", "units": "share"})


@dataclass
class ChosenHeads:
    """Values of the chosen heads from one pass: of a layer and a head, or of all."""

    layer: int | None
    head: int | None
    values: dict[int, tuple[Site, np.ndarray]] = field(default_factory=dict)  # by layer, ``(head, ...)``

    def __post_init__(self) -> None:
        check_whole(0, layer=self.layer, head=self.head)

    def has(self, site: Site, call: AttentionCall) -> bool:
        """Whether the layer is chosen; rejects a head that it does not have."""
        if self.layer is not None and site.index != self.layer:
            return False
        heads = call.query.shape[1]
        if self.head is not None and self.head >= heads:
            raise AttnscopeError(f"there is no head {self.head} in layer {site.index}: choose from 0 to {heads - 1}")
        return True

    def add(self, site: Site, values: Tensor) -> None:
        """Add the values of all heads of a layer."""
        own = values if self.head is None else values[self.head : self.head + 1]
        self.values[site.index] = site, own.cpu().numpy()

    @property
    def layers(self) -> list[tuple[Site, np.ndarray]]:
        """The layers in order."""
        if self.layer is not None and not self.values:
            raise AttnscopeError(f"there is no attention layer {self.layer}: choose a smaller number, from 0")
        return [self.values[index] for index in sorted(self.values)]

    def labelled(self, name: str, dims: tuple[str, ...], coords: dict[str, Any], attrs: dict[str, str]) -> xr.DataArray:
        """One array, without the dimensions of a chosen layer or head."""
        sites, values = zip(*self.layers, strict=True)
        whole, coords = padded_heads(list(values)), {**layer_coordinates(sites), **coords}
        array = xr.DataArray(whole, coords, ("layer", "head", *dims), name, attrs)
        array = array.assign_coords(head=np.arange(array.sizes["head"]) if self.head is None else [self.head])
        return array.isel(({} if self.layer is None else {"layer": 0}) | ({} if self.head is None else {"head": 0}))


def _check(site: Site, call: AttentionCall, head: int | None, layers: int) -> None:
    """Reject weights that need too much memory, and layers that attend in pieces."""
    batch, heads, queries = call.query.shape[:3]
    keys = call.key.shape[2]
    if batch != 1:
        raise AttnscopeError(
            f"layer {site.index} ({site.name}) attends in {batch} windows of {queries} positions and has no single "
            "matrix: choose another layer, or use attnscope.scan"
        )
    needed = (layers + 1) * (1 if head is not None else heads) * queries * keys * 4
    if needed > LIMIT or heads * queries * keys * 4 > LIMIT:
        raise AttnscopeError(
            f"the weights of {queries} tokens need more than {LIMIT >> 30} GiB: choose a layer and a head or a smaller "
            "window, or use attnscope.scan, which stores no matrix"
        )


@torch.no_grad()
def observe_window(loaded: LoadedModel, window: Window, observe: Observer) -> None:
    """Check the captured attention on one window, and run it with an observer."""
    inputs = WindowBatch.of([window], 0, device_of(loaded.model)).inputs(loaded.model)
    with borrowed(loaded.model):
        verify(loaded.model, inputs, text=window.source, weights_suffice=True)
        with watching(loaded.model, observe, weights_suffice=True):
            forward(loaded.model, inputs, lambda _: window.source)


def first_window(session: Opened, targets: Sources, window: int | None) -> Window:
    """The first window of the texts, with the decoder's input."""
    by_line = targets is not None
    corpus, other = session.read(targets, by_line=by_line, blank_lines=by_line, with_inputs=True)
    if session.texts is not None:  # one text; streams are not checked, as they can be read only once
        if isinstance(corpus, EncodedTexts):
            if len(corpus.rows) > 1:
                raise _several(f"{len(corpus.rows)} rows of token ids")
        elif not corpus.streams and len(list(islice((text for text in corpus if text.content.strip()), 2))) > 1:
            raise _several("several texts")
    return first_windows(session.model, corpus, other, length=session.length(window), limit=1)[0]


def _several(inputs: str) -> AttnscopeError:
    return AttnscopeError(f"found {inputs}; expected one: choose one, or measure all with attnscope.scan")


def _names(window: Window, count: int) -> np.ndarray:
    """Names of the tokens; numbers for a layer over other positions (pooled patches)."""
    return np.array(list(window.tokens if len(window.tokens) == count else map(str, range(count))), dtype=object)


@torch.no_grad()
def received(
    model: Model | None,
    texts: Sources,
    *,
    targets: Sources,
    layer: int | None,
    head: int | None,
    observation: int | None,
    window: int | None,
    progress: Tell | None,
    **options: Unpack[TextModelOptions],
) -> xr.DataArray:
    """The work of `attnscope.received`."""
    heads = ChosenHeads(layer, head)
    reject_modalities("received", MODEL if model is None else model, texts, revision=options["revision"])
    check_whole(1, observation=observation)
    tell = progress or no_progress
    tell(Progress("loading the model", 0.0))
    session = Opened.of(model, texts)
    loaded = session.load(options, heads=[(layer, head)])
    tell(Progress("received", 0.5))
    first = first_window(session, targets, window)

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, rows = measure(call, Need())
        if heads.has(site, call):
            heads.add(site, column_sums(call, rows.log_sum_exp, last=observation)[0])
        return output

    observe_window(loaded, first, observe)
    tell(Progress("received", 1.0))
    target, has_decoder = first.target or first, bool(loaded.model.config.is_encoder_decoder)
    sides = {site.kind == "causal" and has_decoder for site, _ in heads.layers}
    if len({sums.shape[1] for _, sums in heads.layers}) > 1 or (len(sides) > 1 and target is not first):
        raise AttnscopeError("the layers of this encoder-decoder have keys of two texts: choose one (layer=)")
    tokens = np.array((target if sides == {True} else first).tokens, dtype=object)
    words = {"long_name": "Sum of the weights on each key", "units": "queries"}
    return heads.labelled("received", ("key",), {"key_token": ("key", tokens)}, words)
