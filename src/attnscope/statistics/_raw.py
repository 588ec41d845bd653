"""Raw weights of chosen heads over one text, image or sound."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope._arguments import typed
from attnscope.attention import AttentionCall, attend_in_full, output_of
from attnscope.capture import (
    LoadedModel,
    Loading,
    Site,
    borrowed,
    decoder_start,
    device_of,
    forward,
    layer_coordinates,
    load_model,
    sense_of,
    watching,
)
from attnscope.checks import check_whole
from attnscope.corpus import (
    EncodedTexts,
    LinePairs,
    WordedWindows,
    in_words,
    texts_and_targets,
    windows_of,
    word_rule_of,
)
from attnscope.errors import AttnscopeError
from attnscope.statistics._asked import Asked
from attnscope.statistics._first import first_of
from attnscope.statistics._scan_texts import window_length
from attnscope.statistics._words import WordReading
from attnscope.store import padded_heads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnscope.capture import Model, Processor, Tokenizer
    from attnscope.corpus import Sources, Texts, Window, Words

LIMIT = 1 << 30  # bytes of the weights asked for


@typed
def weights(
    model: Model | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    layer: int | None = None,
    head: int | None = None,
    tokenizer: Processor = None,
    window: int | None = None,
    words: Words | None = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> xr.DataArray:
    """Attention weights as a matrix: for a close look at some heads over one text, image or sound.

    Parameters
    ----------
    model, tokenizer, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    texts
        One text, or its token ids; of a long one the first window is taken. Or one image, sound or text with images,
        in the forms that `attnscope.scan` takes.
    targets
        What the decoder of an encoder-decoder reads; by default what the encoder reads. Of a sound its transcript; by
        default the one beside it.
    layer, head
        Which layer and head; by default all. Attention calls are counted from 0.
    window
        Tokens of the window; by default what the model takes.
    words
        Weights from word to word: see `attnscope.scan`.

    Returns
    -------
    xarray.DataArray
        A, ``(layer, head, query, key)``, float32, without the dimension of what was chosen; coordinates ``query_token``
        and ``key_token``: of images ``r0c0`` for the patch in row 0 and column 0, of sounds the second at which a frame
        begins. Rows add up to 1 (less, where a head has a learned sink).

    Raises
    ------
    AttnscopeError
        If several texts are given, there is no such layer or head, its layer attends in windows of an image, or the
        weights take more than 1 GiB.

    Examples
    --------
    >>> matrix = weights("bundled", "The tide comes in twice a day.", layer=0, head=3)
    >>> matrix.dims, matrix.key_token.values[:3].tolist()
    (('query', 'key'), ['<s>', ' The', ' t'])
    >>> int(matrix[2].argmax("key")), round(float(matrix[2].sum()), 5)
    (1, 1.0)
    """
    check_whole(0, layer=layer, head=head)
    by_layer: dict[int, tuple[Site, np.ndarray]] = {}

    def observe(site: Site, call: AttentionCall, merging: WordReading | None = None) -> Tensor:
        if layer is not None and site.index != layer:
            return output_of(call)
        _check(site, call, head, len(by_layer))
        output = output_of(call)
        matrix = attend_in_full(call)[1] if merging is None else merging.weights(site, call)
        own = matrix[0] if head is None else matrix[0, head : head + 1]
        by_layer[site.index] = (site, own.float().cpu().numpy())
        return output

    given = "bundled" if model is None else model
    sense = None if texts is None else sense_of(given, texts, revision=revision)
    if sense is None:
        loaded = load_model(  # it refuses what reads no text
            model,
            tokenizer=cast("Tokenizer", tokenizer),
            revision=revision,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        )
        read = _watch_text(loaded, texts, targets, window, words, observe)
    else:
        if window is not None or words is not None:
            raise AttnscopeError(
                "window and words are of texts, and these are not plain texts: leave them out"
            )
        if len(sense) > 1:
            raise _several(f"{len(sense)} images, videos, sounds or texts with images")
        loading = Loading(revision, device, dtype, trust_remote_code)
        asked = Asked(limit=1, processor=tokenizer, loading=loading)
        read = first_of(given, sense, asked, targets).watch_first(observe)
    if layer is not None and not by_layer:
        raise AttnscopeError(
            f"there is no attention layer {layer}: give a smaller number; they are counted from 0"
        )
    return _labelled(
        [by_layer[index] for index in sorted(by_layer)],
        read,
        read.target or read,
        one_layer=layer is not None,
        head=head,
    )


def _check(site: Site, call: AttentionCall, head: int | None, layers: int) -> None:
    """Refuse a head that is not there, weights that take too much room, and layers that attend piece by piece."""
    batch, heads, queries = call.query.shape[:3]
    keys = call.key.shape[2]
    if batch != 1:
        raise AttnscopeError(
            f"layer {site.index} ({site.name}) attends in {batch} windows of {queries} places, so that there is no one "
            "matrix: choose another layer; attnscope.scan measures such layers by their rows"
        )
    if head is not None and head >= heads:
        raise AttnscopeError(f"there is no head {head} in layer {site.index}: it has {heads}, counted from 0")
    needed = (layers + 1) * (1 if head is not None else heads) * queries * keys * 4
    if needed > LIMIT or heads * queries * keys * 4 > LIMIT:
        raise AttnscopeError(
            f"the weights of {queries} tokens take more than {LIMIT >> 30} GiB: choose a layer and a head, or a "
            "smaller window; attnscope.scan measures long texts without their matrix"
        )


def _watch_text(
    loaded: LoadedModel,
    texts: Sources,
    targets: Sources,
    window: int | None,
    words: Words | None,
    observe: Callable[[Site, AttentionCall, WordReading | None], Tensor],
) -> Window:
    """Run the first window of a text with an observer; it is returned, by words where these were asked for."""
    first = first_window(loaded, texts, targets, window_length(loaded, window))
    merging = None
    if words is not None:
        first = next(iter(WordedWindows([first], word_rule_of(words))))
        merging = WordReading.of([first], device_of(loaded.model))
    beside = first.target or first
    inputs = {"input_ids": torch.tensor([list(first.ids)], device=device_of(loaded.model))}
    if loaded.model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([list(beside.ids)], device=device_of(loaded.model))
    with (
        borrowed(loaded.model),
        torch.no_grad(),
        watching(loaded.model, lambda site, call: observe(site, call, merging)),
    ):
        forward(loaded.model, inputs, lambda _: first.source)
    return in_words(first)


def first_window(loaded: LoadedModel, texts: Sources, targets: Sources, length: int) -> Window:
    """The first window of the texts, with what a decoder reads beside it."""
    corpus, other = texts_and_targets(
        texts, targets, by_line=targets is not None, blank_lines=targets is not None
    )
    if texts is not None:
        _refuse_several(corpus)
    if other is None or isinstance(corpus, EncodedTexts):
        return next(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=1), 1))
    pairs = LinePairs(corpus, other, loaded.tokenizer, decoder_start(loaded.model), length=length, limit=1)
    pairs.check()
    return next(iter(pairs))


def _refuse_several(corpus: Texts) -> None:
    """Refuse more than one text; what can be read only once is not looked at."""
    if isinstance(corpus, EncodedTexts):
        if len(corpus.rows) > 1:
            raise _several(f"{len(corpus.rows)} rows of token ids")
    elif not corpus.streams:
        filled = (text for text in corpus if text.content.strip())
        if len(list(islice(filled, 2))) > 1:
            raise _several("several texts")


def _several(found: str) -> AttnscopeError:
    return AttnscopeError(
        f"found {found}; expected one: choose it, or measure all of them with attnscope.scan"
    )


def _labelled(
    layers: Sequence[tuple[Site, np.ndarray]],
    read: Window,
    beside: Window,
    *,
    one_layer: bool,
    head: int | None,
) -> xr.DataArray:
    shapes = {matrix.shape[1:] for _, matrix in layers}
    if len(shapes) > 1:
        raise AttnscopeError(
            "the layers have matrices of several sizes, as encoder and decoder have: choose one (layer=), or leave out "
            "targets"
        )
    ((rows, columns),) = shapes
    sites = [site for site, _ in layers]
    kind = sites[0].kind
    on_decoder = beside is not read and kind != "self"
    queries = beside if on_decoder else read
    keys = beside if on_decoder and kind != "cross" else read
    array = xr.DataArray(
        padded_heads([matrix for _, matrix in layers]),
        dims=("layer", "head", "query", "key"),
        coords={
            **layer_coordinates(sites),
            "query_token": ("query", _names(queries, rows)),
            "key_token": ("key", _names(keys, columns)),
        },
        name="weights",
        attrs={"long_name": "Attention weight", "units": "share"},
    )
    array = array.assign_coords(head=np.arange(array.sizes["head"]) if head is None else [head])
    chosen = ({"layer": 0} if one_layer else {}) | ({} if head is None else {"head": 0})
    return array.isel(chosen)


def _names(window: Window, count: int) -> np.ndarray:
    """Of the tokens; their numbers where a layer attends over other places than these (pooled patches)."""
    names = window.tokens if len(window.tokens) == count else map(str, range(count))
    return np.array(list(names), dtype=object)
