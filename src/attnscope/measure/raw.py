"""Raw weights of chosen heads over one text, image or sound, and the attention that each token receives."""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.forward import forward
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.verify import verify
from attnscope.capture.watch import Observer, Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure, output_of
from attnscope.kernels.full import attend_in_full
from attnscope.kernels.sums import column_sums
from attnscope.measure.passes import WindowBatch
from attnscope.measure.sample import WordBatch
from attnscope.measure.texts import first_windows
from attnscope.opened import Opened
from attnscope.read.encoded import EncodedTexts, Sources
from attnscope.read.windows import Window
from attnscope.store.arrays import padded_heads
from attnscope.support.errors import AttnscopeError

LIMIT = 1 << 30  # bytes of weights


@dataclass
class ChosenHeads:
    """Values of the chosen heads from one pass: of a layer and a head, or of all."""

    layer: int | None
    head: int | None
    by_cache: bool = False  # key-value heads instead, each with the sum over the query heads that share it
    values: dict[int, tuple[Site, np.ndarray]] = field(default_factory=dict)  # by layer, ``(head, ...)``

    def has(self, site: Site, call: AttentionCall) -> bool:
        """Whether the layer is chosen; rejects a head that it does not have."""
        if self.layer is not None and site.index != self.layer:
            return False
        heads = call.key.shape[1] if self.by_cache else call.query.shape[1]
        if self.head is not None and self.head >= heads:
            raise AttnscopeError(f"there is no head {self.head} in layer {site.index}: choose from 0 to {heads - 1}")
        return True

    def add(self, site: Site, values: Tensor) -> None:
        """Add the values of all heads of a layer."""
        chosen = values if self.head is None else values[self.head : self.head + 1]
        self.values[site.index] = site, chosen.cpu().numpy()

    @property
    def layers(self) -> list[tuple[Site, np.ndarray]]:
        """The layers in order."""
        if self.layer is not None and not self.values:
            raise AttnscopeError(
                f"there is no attention layer {self.layer}: choose a lower number; layers count from 0"
            )
        return [self.values[index] for index in sorted(self.values)]

    def add_weights(self, site: Site, call: AttentionCall, words: WordBatch | None = None) -> Tensor:
        """Add the weights of a layer, if it is chosen, from word to word if asked; returns the output of the call."""
        output = output_of(call)
        if self.has(site, call):
            _check(site, call, self.head, len(self.values))
            self.add(site, (attend_in_full(call)[1] if words is None else words.weights(site, call))[0].float())
        return output

    def add_received(self, site: Site, call: AttentionCall, last: int | None = None) -> Tensor:
        """Add the sums over all or the last queries of a layer, if it is chosen; returns the output of the call."""
        output, rows = measure(call, Need())
        if self.has(site, call):
            sums = column_sums(call, rows.log_sum_exp, last=last)[0]
            self.add(site, sums.unflatten(0, (-1, call.group)).sum(1) if self.by_cache else sums)
        return output

    def weights(self, window: Window) -> xr.DataArray:
        """The weights that were added, with the names of the tokens of a window."""
        shapes = {matrix.shape[1:] for _, matrix in self.layers}
        if len(shapes) > 1:
            raise AttnscopeError(
                "the layers have matrices of several sizes (encoder and decoder): choose one (layer=), or leave out "
                "targets"
            )
        ((rows, columns),) = shapes
        kind, target = self.layers[0][0].kind, window.target or window
        queries, keys = target if kind != "self" else window, target if kind == "causal" else window
        named = {"query_token": ("query", _names(queries, rows)), "key_token": ("key", _names(keys, columns))}
        return self.labelled("weights", ("query", "key"), named, {"long_name": "Attention weight", "units": "share"})

    def received(self, window: Window, *, has_decoder: bool) -> xr.DataArray:
        """The sums over queries that were added, with the names of the tokens of a window."""
        target, sides = window.target or window, {site.kind == "causal" and has_decoder for site, _ in self.layers}
        if len({sums.shape[1] for _, sums in self.layers}) > 1 or (len(sides) > 1 and target is not window):
            raise AttnscopeError("the layers of this encoder-decoder have keys of two texts: choose one (layer=)")
        tokens = np.array((target if sides == {True} else window).tokens, dtype=object)
        words = {"long_name": "Sum of the weights on each key", "units": "queries"}
        return self.labelled("received", ("key",), {"key_token": ("key", tokens)}, words)

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
    verify(loaded.model, inputs, text=window.source, weights_suffice=True)
    with watching(loaded.model, observe, weights_suffice=True):
        forward(loaded.model, inputs, lambda _: window.source, with_head=False)


def first_window(session: Opened, targets: Sources, window: int | None) -> Window:
    """The first window of the texts, with the decoder's input."""
    by_line = targets is not None
    corpus, other = session.read(targets, by_line=by_line, blank_lines=by_line, with_inputs=True)
    if session.texts is not None:  # one text; streams are not checked, as they can be read only once
        if isinstance(corpus, EncodedTexts):
            if len(corpus.rows) > 1:
                raise several(f"{len(corpus.rows)} rows of token ids")
        elif not corpus.streams and len(list(islice((text for text in corpus if text.content.strip()), 2))) > 1:
            raise several("several texts")
    return first_windows(session.model, corpus, other, length=session.length(window), limit=1)[0]


def several(inputs: str) -> AttnscopeError:
    return AttnscopeError(f"found {inputs}; expected one: choose one, or measure all with attnscope.scan")


def _names(window: Window, count: int) -> np.ndarray:
    """Names of the tokens; numbers for a layer over other positions (pooled patches)."""
    return np.array(list(window.tokens if len(window.tokens) == count else map(str, range(count))), dtype=object)
