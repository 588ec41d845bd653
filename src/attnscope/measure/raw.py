"""Raw weights of chosen heads over one text, image or sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.nn.functional import pad

from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import decoder_start, forward
from attnscope.capture.load import Loading, load_model
from attnscope.capture.loaded import LoadedModel
from attnscope.capture.modalities import modality_of
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.placement import device_of
from attnscope.capture.reading import ModelOptions
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.kernels.call import AttentionCall, call_of_weights
from attnscope.kernels.engines import attend_in_full, output_of
from attnscope.measure.collected import MeasuredPass, collected
from attnscope.measure.observer import WindowBatch
from attnscope.measure.passes import Marks, measure_call
from attnscope.measure.quantities import choose
from attnscope.measure.questions import BAND, ScanSettings
from attnscope.measure.sample import WordBatch
from attnscope.measure.scan import READERS
from attnscope.measure.windows import window_length
from attnscope.read.encoded import EncodedTexts, texts_and_targets, windows_of
from attnscope.read.pairs import LinePairs
from attnscope.read.sounds import Sounds
from attnscope.read.words import WordedWindows, in_words, word_rule_of
from attnscope.store.arrays import padded_heads
from attnscope.support.arguments import validated
from attnscope.support.checks import check_kind, check_whole
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Processor, Tokenizer
    from attnscope.capture.watch import Observer
    from attnscope.read.encoded import Sources, Texts
    from attnscope.read.windows import Window
    from attnscope.read.words import Words

LIMIT = 1 << 30  # bytes of the weights asked for


@validated
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
    **options: Unpack[ModelOptions],
) -> xr.DataArray:
    """Attention weights as a matrix: for a close look at some heads over one text, image or sound.

    Parameters
    ----------
    model, tokenizer
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
    heads = ChosenHeads(layer, head)

    def observe(site: Site, call: AttentionCall, merging: WordBatch | None = None) -> Tensor:
        output = output_of(call)
        if heads.has(site, call):
            _check(site, call, head, len(heads.found))
            matrix = attend_in_full(call)[1] if merging is None else merging.weights(site, call)
            heads.add(site, matrix[0].float())
        return output

    given = "bundled" if model is None else model
    sense = None if texts is None else modality_of(given, texts, revision=options["revision"])
    if sense is None:
        loaded = load_model(model, tokenizer=cast("Tokenizer", tokenizer), **options)  # it refuses what reads no text
        read = first_window(loaded, texts, targets, window_length(loaded, window))
        merging = None
        if words is not None:
            read = next(iter(WordedWindows([read], word_rule_of(words))))
            merging = WordBatch.of([read], device_of(loaded.model))
        observe_window(loaded, read, lambda site, call: observe(site, call, merging))
        read = in_words(read)
    else:
        if window is not None or words is not None:
            raise AttnscopeError("window and words are of texts, and these are not plain texts: leave them out")
        if len(sense) > 1:
            raise _several(f"{len(sense)} images, videos, sounds or texts with images")
        if targets is not None and not isinstance(sense, Sounds):
            raise AttnscopeError("targets are of texts and sounds, and these are neither: leave them out")
        loading = Loading(**options)
        asked = ScanSettings(limit=1, processor=tokenizer, loading=loading, targets=targets, statistics=("entropy",))
        read = READERS[type(sense)](given, sense, asked).observe_first(observe)
    shapes = {matrix.shape[1:] for _, matrix in heads.layers}
    if len(shapes) > 1:
        raise AttnscopeError(
            "the layers have matrices of several sizes, as encoder and decoder have: choose one (layer=), or leave out "
            "targets"
        )
    ((rows, columns),) = shapes
    kind, beside = heads.layers[0][0].kind, read.target or read
    queries, keys = beside if kind != "self" else read, beside if kind == "causal" else read
    named = {"query_token": ("query", _names(queries, rows)), "key_token": ("key", _names(keys, columns))}
    words_of = {"long_name": "Attention weight", "units": "share"}
    return heads.labelled("weights", ("query", "key"), named, words_of)


@dataclass
class ChosenHeads:
    """What one pass gives of the heads that were chosen: of a layer and a head, or of all."""

    layer: int | None
    head: int | None
    found: dict[int, tuple[Site, np.ndarray]] = field(default_factory=dict)  # by layer, ``(head, ...)``

    def __post_init__(self) -> None:
        check_whole(0, layer=self.layer, head=self.head)

    def has(self, site: Site, call: AttentionCall) -> bool:
        """Whether the layer is among them; a head that it does not have is rejected."""
        if self.layer is not None and site.index != self.layer:
            return False
        heads = call.query.shape[1]
        if self.head is not None and self.head >= heads:
            raise AttnscopeError(f"there is no head {self.head} in layer {site.index}: it has {heads}, counted from 0")
        return True

    def add(self, site: Site, values: Tensor) -> None:
        """What a layer gives, of all its heads."""
        own = values if self.head is None else values[self.head : self.head + 1]
        self.found[site.index] = site, own.cpu().numpy()

    @property
    def layers(self) -> list[tuple[Site, np.ndarray]]:
        """The layers in their order."""
        if self.layer is not None and not self.found:
            raise AttnscopeError(
                f"there is no attention layer {self.layer}: give a smaller number; they are counted from 0"
            )
        return [self.found[index] for index in sorted(self.found)]

    def labelled(self, name: str, dims: tuple[str, ...], coords: dict[str, Any], attrs: dict[str, str]) -> xr.DataArray:
        """All of it as one array, without the dimension of what was chosen."""
        sites, values = zip(*self.layers, strict=True)
        array = xr.DataArray(
            padded_heads(list(values)),
            dims=("layer", "head", *dims),
            coords={**layer_coordinates(sites), **coords},
            name=name,
            attrs=attrs,
        )
        array = array.assign_coords(head=np.arange(array.sizes["head"]) if self.head is None else [self.head])
        chosen = ({} if self.layer is None else {"layer": 0}) | ({} if self.head is None else {"head": 0})
        return array.isel(chosen)


def _check(site: Site, call: AttentionCall, head: int | None, layers: int) -> None:
    """Reject weights that take too much room, and layers that attend piece by piece."""
    batch, heads, queries = call.query.shape[:3]
    keys = call.key.shape[2]
    if batch != 1:
        raise AttnscopeError(
            f"layer {site.index} ({site.name}) attends in {batch} windows of {queries} places, so that there is no one "
            "matrix: choose another layer; attnscope.scan measures such layers by their rows"
        )
    needed = (layers + 1) * (1 if head is not None else heads) * queries * keys * 4
    if needed > LIMIT or heads * queries * keys * 4 > LIMIT:
        raise AttnscopeError(
            f"the weights of {queries} tokens take more than {LIMIT >> 30} GiB: choose a layer and a head, or a "
            "smaller window; attnscope.scan measures long texts without their matrix"
        )


@torch.no_grad()
def observe_window(loaded: LoadedModel, window: Window, observe: Observer) -> None:
    """Run one window with an observer."""
    inputs = WindowBatch.of([window], 0, device_of(loaded.model)).inputs(loaded.model)
    with borrowed(loaded.model), watching(loaded.model, observe):
        forward(loaded.model, inputs, lambda _: window.source)


def first_window(loaded: LoadedModel, texts: Sources, targets: Sources, length: int) -> Window:
    """The first window of the texts, with what a decoder reads beside it."""
    corpus, other = texts_and_targets(
        texts, targets, by_line=targets is not None, blank_lines=targets is not None, with_inputs=True
    )
    if texts is not None:
        _reject_several(corpus)
    if other is None or isinstance(corpus, EncodedTexts):
        return next(islice(windows_of(corpus, loaded.tokenizer, length=length, limit=1), 1))
    pairs = LinePairs(corpus, other, loaded.tokenizer, decoder_start(loaded.model), length=length, limit=1)
    pairs.check()
    return next(iter(pairs))


def _reject_several(corpus: Texts) -> None:
    """Refuse more than one text; what can be read only once is not looked at."""
    if isinstance(corpus, EncodedTexts):
        if len(corpus.rows) > 1:
            raise _several(f"{len(corpus.rows)} rows of token ids")
    elif not corpus.streams:
        filled = (text for text in corpus if text.content.strip())
        if len(list(islice(filled, 2))) > 1:
            raise _several("several texts")


def _several(found: str) -> AttnscopeError:
    return AttnscopeError(f"found {found}; expected one: choose it, or measure all of them with attnscope.scan")


def _names(window: Window, count: int) -> np.ndarray:
    """Of the tokens; their numbers where a layer attends over other places than these (pooled patches)."""
    names = window.tokens if len(window.tokens) == count else map(str, range(count))
    return np.array(list(names), dtype=object)


if TYPE_CHECKING:
    Weights = Float[Tensor, "batch head query key"] | Float[np.ndarray, "batch head query key"]
    Mask = Sequence[Sequence[int]] | Tensor | np.ndarray

_FOUR, _FIVE = 4, 5  # batch, head, query, key; a layer before them
#: What rounding may add to a row's 1, or take from 0, in each type.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@validated
@torch.no_grad()
def measure_weights(
    weights: Weights | Sequence[Weights] | Sequence[Sequence[Weights]],
    *,
    statistics: Sequence[str] | str | None = None,
    tokens: Sequence[Sequence[str]] | None = None,
    lengths: Sequence[int] | None = None,
    mask: Mask | None = None,
    special: Sequence[Sequence[bool]] | None = None,
    causal: bool | None = None,
    band: int = BAND,
) -> xr.Dataset:
    """Measure attention weights that one has already, as `attnscope.scan` measures a model's.

    Parameters
    ----------
    weights
        A tuple or list over layers of ``(batch, head, query, key)``, torch or NumPy, as ``output_attentions=True``
        gives them and BertViz takes them; layers may have other numbers of heads. Or one array, layers first.
        Rows sum to 1; where they sum to less, the rest counts as lying on no token (a learned sink). A tuple over
        steps of a tuple over layers, as ``generate(output_attentions=True)`` gives without beams, is read as one pass
        over the whole text. A single query next to several keys is the last token.
    statistics, band
        See `attnscope.scan`. There is no ``offsets`` here: a wider band, or ``offset_sum``, has them.
    tokens
        The tokens of each text, as strings. They give `lengths`, and stand in ``token (text, position)`` of the result.
    lengths
        Real tokens of each text, padding on the right not counted; by default all are real.
    mask
        In place of `lengths`: ``(text, position)``, 1 on real tokens and 0 on padding, as a model takes its
        ``attention_mask``; padding may be on either side. For steps of ``generate``, that of the prompts.
    special
        For each text, which of its tokens are special; by default none is.
    causal
        Whether queries attend to no later key; by default a layer is causal if none does. With ``True``, fewer queries
        than keys are the last tokens. Otherwise a layer with several queries, and keys of another number, is of the
        kind ``cross``; so is one with a single query if this is ``False``.

    Returns
    -------
    xarray.Dataset
        As `attnscope.scan` gives it. Equal weights, the null, lie on the keys to which any head of the layer gives any
        weight.

    Raises
    ------
    AttnscopeError
        If shapes do not agree, a weight is negative or not finite, a row sums to more than 1, weight lies on padding
        or, though `causal`, to the right; or if texts seem to be padded on the left, and there is no `mask`.

    Examples
    --------
    >>> previous = torch.eye(6)[[0, 0, 1, 2, 3, 4]]  # each token looks at the one before
    >>> statistics = measure_weights([previous.expand(1, 2, 6, 6)], band=2)
    >>> statistics.profile.sel(offset=-1).values.tolist(), statistics.layer_kind.item()
    ([[[1.0, 1.0]]], 'causal')
    """
    names = choose(statistics)
    is_steps = _is_steps(weights)
    layers = _in_one_pass(weights) if is_steps else [_placed(layer, causal) for layer in _layers(weights)]
    texts = layers[0].weights.shape[0]
    longest = max(max(layer.weights.shape[2:]) for layer in layers)
    check_whole(1, max(BAND, longest - 1), band=band)
    real = _real(mask, lengths, tokens, texts, longest, more=is_steps)
    marked = _special(special, real)
    _check_alike(layers, whole=mask is not None)
    if mask is None and lengths is None and tokens is None:
        _reject_left_padding(layers)
    run = MeasuredPass()
    for index, layer in enumerate(layers):
        own = layer.weights
        where = f"layer {index} of the weights"
        queries, keys = (real[:, :count].to(own.device) for count in own.shape[2:])
        if layer.is_cross:
            queries = torch.ones_like(queries)
        queries = queries & (torch.arange(own.shape[2], device=own.device) >= layer.first)
        wide = own.detach().double().where(queries[:, None, :, None], 0.0)
        slack = _ROUNDING.get(own.dtype, _ROUNDING[torch.float64])
        mass = _checked(where, wide, slack, keys)
        kind = "cross" if layer.is_cross else _kind(where, wide, causal, slack)
        shares = wide / torch.where(mass > 0, mass, 1.0)[..., None]
        mass = torch.where((mass - 1).abs() <= slack, (mass > 0).double(), mass)
        mark = marked[:, : own.shape[3]].to(own.device)
        reach = max(own.shape[2:]) - 1
        _, measured = measure_call(call_of_weights(shares), names, band, reach, Marks(queries, keys, mark), mass)
        measured = {name: value.cpu() for name, value in measured.items()}
        run.add(Site(index, f"layer {index}", kind), measured, queries, reach)
    results = collected([run], names, band).assign_attrs(capture="weights")
    return results if tokens is None else results.assign_coords(token=(("window", "position"), _padded(tokens)))


@dataclass(frozen=True)
class _Layer:
    """Weights of a layer; the number of rows at the beginning that are not given; and whether it is cross-attention."""

    weights: Tensor
    first: int
    is_cross: bool


def _placed(layer: Tensor, causal: bool | None) -> _Layer:
    """One layer; rows of the last tokens alone stand at the end of a square."""
    queries, keys = layer.shape[2:]
    if queries < keys and (causal or (causal is None and queries == 1)):
        return _Layer(pad(layer, (0, 0, keys - queries, 0)), keys - queries, is_cross=False)
    return _Layer(layer, 0, is_cross=queries != keys)


def _is_steps(weights: Any) -> bool:
    """Whether these are steps of ``generate``, each with its layers; a single one is a list of layers."""
    return isinstance(weights, list | tuple) and any(isinstance(step, list | tuple) for step in weights)


def _in_one_pass(steps: Any) -> list[_Layer]:
    """The rows of all steps, layer by layer."""
    layers = [_layers(step) for step in steps]
    if len({len(step) for step in layers}) != 1:
        raise AttnscopeError(
            f"the steps have {[len(step) for step in layers]!s:.80} layers; expected as many in each, as "
            "generate(output_attentions=True) gives them"
        )
    if len(layers) == 1:
        return [_placed(layer, None) for layer in layers[0]]
    return [_of_steps(index, own) for index, own in enumerate(zip(*layers, strict=True))]


def _of_steps(index: int, own: Sequence[Tensor]) -> _Layer:
    keys, begun = [step.shape[3] for step in own], own[0].shape[2]
    grows = all(step.shape[3] - before == step.shape[2] for before, step in zip(keys, own[1:], strict=False))
    if len({step.shape[:2] for step in own}) != 1 or not (grows or len(set(keys)) == 1):
        raise AttnscopeError(
            f"layer {index}: the steps have the shapes {[tuple(step.shape) for step in own]!s:.120}; expected the same "
            "texts and heads, and a key more for each new query (or always as many)"
        )
    whole = torch.cat([pad(step, (0, keys[-1] - step.shape[3])) for step in own], 2)
    rows = whole.shape[2]
    if grows:
        return _Layer(pad(whole, (0, 0, keys[-1] - rows, 0)), keys[-1] - rows, is_cross=False)
    if rows <= keys[-1] and not bool(whole[:, :, begun:].triu(begun + 1).any()):  # a cache of a fixed length
        return _Layer(whole[..., :rows], 0, is_cross=False)
    return _Layer(whole, 0, is_cross=True)


def _check_alike(layers: Sequence[_Layer], *, whole: bool) -> None:
    """Reject layers of other texts or lengths than the first: it is not known which tokens they have."""
    known: int | None = None
    texts = len(layers[0].weights)
    for index, layer in enumerate(layers):
        if len(layer.weights) != texts:
            raise AttnscopeError(
                f"layer {index} of the weights has {len(layer.weights)} texts, layer 0 has {texts}: expected as many"
            )
        keys = layer.weights.shape[3]
        if layer.is_cross and not whole:
            continue
        if known is not None and keys != known:
            raise AttnscopeError(
                f"layer {index} of the weights has {keys} keys, a layer before it {known}: expected as many in each "
                "layer of self-attention. Measure them one by one"
            )
        known = keys


def _reject_left_padding(layers: Sequence[_Layer]) -> None:
    """Reject texts whose first tokens get no weight in any layer, but for rows of padding: zeros, or the same for
    all.
    """
    firsts: list[Tensor] = []
    for layer in layers:
        own = layer.weights
        if layer.is_cross or own.shape[3] == 1:
            continue
        is_padding = (own == own[..., :1]).all(-1).all(1)  # (text, query)
        given = (own != 0).any(1) & ~is_padding[..., None]
        missing = (given.any(1).cumsum(1) == 0).sum(1)  # keys at the beginning that get nothing
        firsts.append(missing.where(~is_padding.all(1), 0).cpu())
    if firsts and int((least := torch.stack(firsts).amin(0)).amax()):
        text = int(least.argmax())
        raise AttnscopeError(
            f"text {text + 1}: its first {int(least[text])} tokens get no weight, as padding on the left does. Give "
            "mask (1 on real tokens, 0 on padding)"
        )


def _layers(weights: Any) -> list[Tensor]:
    """Tensors (batch, head, query, key), one a layer."""
    if isinstance(weights, torch.Tensor | np.ndarray):
        if weights.ndim != _FIVE:
            raise AttnscopeError(
                f"one array of weights has the shape {tuple(weights.shape)}; expected (layer, batch, head, query, "
                "key), or a list over layers of (batch, head, query, key)"
            )
        weights = list(weights)
    check_kind("a list over layers of (batch, head, query, key)", list, tuple, weights=weights)
    tensors: list[Tensor] = []
    for index, layer in enumerate(cast("Sequence[Any]", weights)):
        check_kind("a torch tensor or a NumPy array", torch.Tensor, np.ndarray, **{f"layer {index}": layer})
        tensor = torch.as_tensor(layer)
        if tensor.ndim != _FOUR or 0 in tensor.shape or not tensor.is_floating_point():
            raise AttnscopeError(
                f"layer {index} of the weights has the shape {tuple(tensor.shape)} in {tensor.dtype}; expected "
                "(batch, head, query, key) of real numbers, none of them 0 long"
            )
        tensors.append(tensor)
    if not tensors:
        raise AttnscopeError("the weights hold no layer; expected at least one (batch, head, query, key)")
    return tensors


def _real(
    mask: Mask | None,
    lengths: Sequence[int] | None,
    tokens: Sequence[Sequence[str]] | None,
    texts: int,
    longest: int,
    *,
    more: bool,
) -> Tensor:
    """``(text, position)``: which tokens are real. A mask of prompts alone goes on with `more` real tokens."""
    if tokens is not None:
        counted = [len(text) for text in tokens]
        if lengths is not None and list(lengths) != counted:
            raise AttnscopeError("lengths and tokens do not agree: give one of them")
        lengths = counted
    if mask is not None:
        real = torch.as_tensor(mask).cpu()
        width = real.shape[-1] if real.ndim else 0
        fits = real.ndim == 2 and len(real) == texts and (width == longest or (more and width < longest))  # noqa: PLR2004
        if not fits or not bool(((real == 0) | (real == 1)).all()) or not bool(real.any(1).all()):
            raise AttnscopeError(
                f"mask has the shape {tuple(real.shape)}; expected ({texts}, {longest}), 1 on real tokens and 0 on "
                "padding, and a real token in each text"
            )
        real = pad(real.bool(), (0, longest - width), value=True)
        if lengths is not None and real.sum(1).tolist() != list(lengths):
            raise AttnscopeError("mask does not agree with the lengths or tokens: give one of them")
        return real
    given = [longest] * texts if lengths is None else [int(length) for length in lengths]
    if len(given) != texts or not all(1 <= length <= longest for length in given):
        raise AttnscopeError(
            f"the lengths of texts are {given}; expected {texts} numbers from 1 to {longest}, the weights' own sizes"
        )
    return torch.arange(longest) < torch.tensor(given)[:, None]


def _special(special: Sequence[Sequence[bool]] | None, real: Tensor) -> Tensor:
    """``(text, position)``: which tokens are special."""
    whole = torch.zeros_like(real)
    if special is None:
        return whole
    marked = [[bool(mark) for mark in text] for text in special]
    lengths = real.sum(1).tolist()
    if [len(text) for text in marked] != lengths:
        raise AttnscopeError(
            f"special marks {[len(text) for text in marked]} tokens of the texts; expected one for each of {lengths}"
        )
    whole[real] = torch.tensor([mark for text in marked for mark in text], dtype=torch.bool)
    return whole


def _checked(where: str, real: Tensor, slack: float, keys: Tensor) -> Tensor:
    """Sums of the rows, once they are known to be weights; those of padding are 0."""
    if not bool(real.isfinite().all()):
        raise AttnscopeError(f"{where} holds NaN or infinity: expected weights from 0 to 1")
    if float(real.amin()) < 0:
        raise AttnscopeError(f"{where} holds {float(real.amin()):.4g}: expected weights from 0 to 1, after the softmax")
    mass = real.sum(-1)
    if float(mass.amax()) > 1 + slack:
        raise AttnscopeError(
            f"{where} has a row that sums to {float(mass.amax()):.4f}: expected 1 or less. Are the dimensions "
            "(batch, head, query, key), the softmax over keys?"
        )
    beyond = float(real.where(~keys[:, None, None], 0.0).amax())
    if beyond > slack:
        raise AttnscopeError(
            f"{where} puts {beyond:.4f} on padding: is it masked, and on the right (else give mask, not lengths)?"
        )
    return mass


def _kind(where: str, weights: Tensor, causal: bool | None, slack: float) -> str:
    queries = weights.shape[2]
    future = float(weights.triu(1).amax())
    if causal and future > slack:
        raise AttnscopeError(f"{where} puts {future:.4f} on a later token: it is not causal")
    return "causal" if causal or (causal is None and future == 0 and queries > 1) else "self"


def _padded(tokens: Sequence[Sequence[str]]) -> np.ndarray:
    whole = np.full((len(tokens), max(map(len, tokens))), "", dtype=object)
    for text, own in enumerate(tokens):
        whole[text, : len(own)] = list(own)
    return whole
