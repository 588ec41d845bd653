"""One head of any model over one sentence, computed step by step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from scipy.special import entr
from torch import Tensor, nn
from transformers import PreTrainedModel

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.forward import decoder_start
from attnscope.capture.load import Model
from attnscope.capture.modalities import Sense
from attnscope.capture.verify import TOLERANCE, position_table_length, verify
from attnscope.capture.watch import Site
from attnscope.explanation.inputs import watching_inputs
from attnscope.explanation.projections import Projections, projections
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.kernels.heads import SelfAttention
from attnscope.kernels.masks import forbids
from attnscope.kernels.positions import Rotation, rotation_rates, sinusoidal_table
from attnscope.kernels.reference import masked_softmax
from attnscope.measure.reader import scan_settings
from attnscope.measure.scan import READERS
from attnscope.options import SEEDS
from attnscope.read.texts import Corpus
from attnscope.read.windows import TargetTokenizer, Window, Windows, shifted
from attnscope.support.checks import check_whole
from attnscope.support.errors import AttnscopeError, explaining, out_of_memory, reason_of
from attnscope.support.numbers import count
from attnscope.support.state import own_random_numbers
from attnscope_lineage.forms import compare_call
from attnscope_lineage.translation import translate_lines

if TYPE_CHECKING:
    from attnscope_lineage.recurrent_walk import RecurrentWalk

SENTENCE = "The animal didn't cross the street because it was too tired."
FOLLOWED = "it"  # in that sentence
BUNDLED_LAYER = 1  # its heads are soft
MOST_TOKENS = 1024  # far more than a reader needs

Matrices = dict[str, tuple[np.ndarray, np.ndarray]]  # matrix and bias by "Q", "K", "V"


def walk_sense(
    model: Model, sense: Sense, targets: str | None, at: tuple[int, int], token: int | str | None, options: Any
) -> Walk:
    """`walk` of an image or sound."""
    if len(sense) > 1:
        raise AttnscopeError(f"found {len(sense)} {sense.called}; expected one")
    settings = scan_settings(options, limit=1, targets=targets, statistics=("entropy",))
    reader = READERS[type(sense)](model, sense, settings)
    read = reader.read([next(iter(reader.items()))], [0])
    inputs = read.batch.inputs(reader.model)
    walked = walk_inputs(reader.model, inputs, layer=at[0], head=at[1], name=reader.loaded.name)
    first = read.windows[0]
    source, target = _Side(f"the {sense.called}", "", first), _Side("the target", targets or "", first.target or first)
    queries, keys = target if walked.kind != "self" else source, target if walked.kind == "causal" else source
    if len(walked.tokens) != len(queries.window):  # pooled patches
        return replace(walked, token=check_number("token", int(token or 0), len(walked.tokens)), reads=sense.called)
    names = {"tokens": queries.window.tokens, "keys": keys.window.tokens, "target": target.text}
    return replace(walked, **names, token=queries.position(token), reads=sense.called)


def shortest_of(sentences: Sequence[str], tokenizer: Any) -> tuple[str, Window]:
    """The shortest of several sentences, and the longest in tokens."""
    windows = [_window("a sentence", sentence, tokenizer, MOST_TOKENS) for sentence in sentences]
    lengths = [len(window) for window in windows]
    if min(lengths) == max(lengths):
        raise AttnscopeError(f"all sentences have {lengths[0]} tokens; expected different lengths, for padding")
    return sentences[lengths.index(min(lengths))], windows[lengths.index(max(lengths))]


def with_padding(walk: Walk, source: _Side, length: int) -> tuple[Walk, _Side]:
    """A walk of the shorter sentence of a batch, with its padding, and what it would weigh without the mask."""
    window = source.window
    more = length - len(window)
    padded = replace(window, shown=(*window.tokens, *["<pad>"] * more), special=(*window.special, *[True] * more))
    padded = replace(padded, ids=window.ids + (0,) * more, spans=(*window.spans, *[(0, 0)] * more))
    walk, source = replace(walk, texts=2), replace(source, window=padded)
    if len(walk.keys) != length:  # a decoder's own tokens
        return walk, source
    padding, bare = np.arange(length) >= len(window), walk["allowed"].copy()
    bare[:, padding] = True
    if walk.kind == "causal":
        bare &= np.tril(bare)
    bias = walk["bias"] if "bias" in walk else None  # noqa: SIM401 it has no get
    unpadded = follow(walk["Q"], walk["K"], walk["V"], walk.scale, bare, bias, walk.softcap)
    arrays = walk.arrays.assign(padding=("key", padding), padded_weights=unpadded["weights"])
    return replace(walk, arrays=arrays), source


NO_FORMS = (
    "the sparse and linear forms are for self-attention without bias, soft cap and padding: choose another layer or "
    "model, or leave out --forms"
)


def with_forms(walk: Walk) -> Walk:
    """A walk with sparse and linear forms of attention over its queries, keys and values."""
    if walk.kind == "cross" or walk.softcap is not None or {"bias", "padding"} & set(walk.arrays):
        raise AttnscopeError(NO_FORMS)
    query, key, value = (torch.from_numpy(walk[symbol])[None, None] for symbol in "QKV")
    mask = torch.from_numpy(walk["allowed"])[None, None]
    return replace(walk, forms=compare_call(AttentionCall(query, key, value, scale=walk.scale, mask=mask)))


def walk_translator(
    loaded: LoadedModel, text: str, target: str | None, at: tuple[int, int], token: int | str | None
) -> RecurrentWalk:
    from attnscope_lineage.recurrent_walk import walk_recurrent  # its steps are in words, which need this module

    for name, number in zip(("layer", "head"), at, strict=True):
        check_number(name, number, 1)
    source = _window("the sentence", text, loaded.tokenizer, MOST_TOKENS)
    side = None
    if target is not None:
        side = _Side(
            "the target", target, _window("the target", target, TargetTokenizer(loaded.tokenizer), MOST_TOKENS)
        )
    elif token is not None and not str(token).isdecimal():
        raise AttnscopeError(f"query_token is {token!r}; pass a position, or a target (--target) that contains it")
    position = None if token is None else int(token) if side is None else side.position(token)
    return walk_recurrent(loaded, source, None if side is None else side.window, position)


@torch.no_grad()
def walk_inputs(
    model: PreTrainedModel,
    inputs: dict[str, Any],
    *,
    layer: int = 0,
    head: int = 0,
    token: int = 0,
    name: str | None = None,
) -> Walk:
    """`walk` for the first input of a forward pass, by its arguments, of a model in eval mode; tokens are numbers."""
    if all(site.kind == "cross" for site in verify(model, inputs, text="the sentence")):
        raise AttnscopeError(
            f"{type(model).__name__} has no self-attention; walk needs a Transformer. Use scan (with --target) or "
            "align to see its attention"
        )
    layers = list(projections(model, inputs).items())
    site, projected = layers[check_number("layer", layer, len(layers))]
    captured: list[tuple[AttentionCall, Tensor, Tensor]] = []

    def observe(current: Site, call: AttentionCall, query_states: Tensor, key_states: Tensor) -> Tensor:
        if current == site:
            captured.append((call, query_states, key_states))
        return output_of(call)

    with watching_inputs(model, observe):
        model(**inputs)
    call, *states = captured[0]
    if len(call.query) != len(next(iter(inputs.values()))):
        raise AttnscopeError(f"layer {layer} attends in {len(call.query)} windows of an image: choose another layer")
    heads, queries = call.query.shape[1:3]
    check_number("head", head, heads)
    check_number("token", token, queries)
    arrays, errors, scale = _head_steps(call, states, projected, head)
    output = output_of(call)[0]
    errors["head_output"] = difference(arrays["head_output"].values, _numbers(output[head]))
    concatenated = _numbers(output.transpose(0, 1).flatten(1))
    arrays["concatenated"] = (("query", "all_heads"), concatenated)
    if projected.output is not None and projected.output_bias is not None:
        W_O = projected.output.reshape(concatenated.shape[1], -1)
        arrays = arrays.assign(
            W_O=(("all_heads", "model_width"), W_O),
            b_O=(("model_width",), projected.output_bias),
            result=(("query", "model_width"), concatenated @ W_O + projected.output_bias),
        )
        name_of = projected.names["output"]
        same = [other for other, of_other in layers if of_other.names.get("output") == name_of]
        own_result = _own_result(model, inputs, name_of, same.index(site))
        errors["result"] = difference(arrays["result"].values, own_result)
    limit = TOLERANCE.get(call.query.dtype, 1e-4)
    for array, error in errors.items():
        if not error <= limit:
            raise AttnscopeError(
                f"the steps and the model differ in {array} (relative difference {error:.0e}, allowed "
                f"{limit:.0e}): this form of attention is not supported. Try --dtype float32"
            )
    names = tuple(map(str, range(queries)))
    walked = Walk(
        model=name or type(model).__name__,
        module=site.name,
        layer=layer,
        kinds=tuple(site.kind for site, _ in layers),
        head=head,
        heads=heads,
        kv_heads=call.key.shape[1],
        form=projected.form,
        reason=projected.reason,
        scale=scale,
        softcap=call.softcap,
        tokens=names,
        keys=tuple(map(str, range(call.key.shape[2]))) if site.kind == "cross" else names,
        token=token,
        arrays=arrays,
        errors=errors,
    )
    if not walked.starts_stack or site.kind == "cross":
        return walked
    tables = (getattr(part, "weight", None) for part in model.modules())
    sinusoids = (_sinusoids(table, queries, walked["X"].shape[1]) for table in tables if isinstance(table, Tensor))
    waves = next(filter(None, sinusoids), None)
    if not waves:
        return walked
    arrays = arrays.assign(waves)
    return replace(walked, arrays=arrays, errors=errors | {"positions": _shift_error(arrays)})


def _head_steps(
    call: AttentionCall, states: list[Tensor], projected: Projections, head: int
) -> tuple[xr.Dataset, dict[str, float], float]:
    """Every step of one head, the errors of its Q, K and V, and the factor of its scores."""
    X = _numbers(states[0][0])
    memory = X if states[1] is states[0] else _numbers(states[1][0])
    kv_head = head // call.group  # the head of keys and values
    sides = {"Q": call.query[0, head], "K": call.key[0, kv_head], "V": call.value[0, kv_head]}
    vectors = {symbol: _numbers(side) for symbol, side in sides.items()}
    matrices: Matrices = {}
    if projected.form in {"bilinear", "rope"}:
        W_Q, b_Q, W_K, b_K = projected.of_head(head)
        matrices = {"Q": (W_Q, b_Q), "K": (W_K, b_K)}
    value, value_bias = projected.value, projected.value_bias
    if value is not None and value_bias is not None and value.shape[1] == memory.shape[1]:
        matrices["V"] = (value[kv_head], value_bias[kv_head])
    errors, scale, rotation = dict[str, float](), call.scale, projected.rotation
    for symbol, (matrix, bias) in matrices.items():
        computed = (X if symbol == "Q" else memory) @ matrix + bias
        factor = 1.0
        if symbol != "V":
            if rotation is not None:
                turn = Rotation(rotation.cos.cpu(), rotation.sin.cpu(), rotation.layout)
                computed = turn(torch.from_numpy(computed)).numpy()
            # some models divide the query, not the scores: the factor moves to the scale
            power = float((computed * computed).sum())
            factor = float((vectors[symbol] * computed).sum()) / power if power else 1.0
            factor = 1.0 if abs(factor - 1) < 1e-2 else factor  # noqa: PLR2004 no model has such a one; half types round
        errors[symbol] = difference(factor * computed, vectors[symbol])
        vectors[symbol], scale = computed, scale * factor
    allowed, bias = _mask_and_bias(call, head)
    sink = None if call.sinks is None else float(call.sinks[head])
    arrays = follow(**vectors, scale=scale, allowed=allowed, bias=bias, softcap=call.softcap, sink=sink)
    return arrays.assign(_with_matrices(X, memory, matrices)), errors, scale


def _mask_and_bias(call: AttentionCall, head: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The allowed keys of each query (by mask, causality and very low biases), and the other biases."""
    allowed = call.allowed(0, head).cpu().numpy()
    if call.bias is None:
        return allowed, None
    bias = call.bias[0, head if call.bias.shape[1] > 1 else 0].cpu()
    added = _numbers(bias.masked_fill(forbids(bias), 0.0).expand(allowed.shape))
    return allowed, added if added.any() else None


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy().copy()


def _own_result(model: PreTrainedModel, inputs: dict[str, Any], name: str, number: int) -> np.ndarray:
    """The output projection of the model on its own attention; a module may serve several layers."""
    outputs: list[Tensor] = []
    with model.get_submodule(name).register_forward_hook(lambda *arguments: outputs.append(arguments[2])):
        model(**inputs)
    whole = outputs[number].reshape(-1, outputs[number].shape[-1])
    return _numbers(whole[: len(whole) // len(next(iter(inputs.values())))])  # of the first input


@dataclass(frozen=True)
class _Side:
    """A text and its tokens."""

    name: str
    text: str
    window: Window

    def position(self, wanted: int | str | None) -> int:
        """Position of a token by number or by characters that it covers; by default the last token."""
        window = self.window
        if wanted is None:
            return max((i for i, special in enumerate(window.special) if not special), default=0)
        if isinstance(wanted, int) or wanted.isdecimal():
            return check_number("token", int(wanted), len(window))
        exact = [i for i, token in enumerate(window.tokens) if token.strip() == wanted.strip()]
        if exact:
            return exact[0]
        start = self.text.find(wanted)
        covering = [i for i, (first, last) in enumerate(window.spans) if first <= start < last]
        if start < 0 or not covering:
            tokens = " ".join(f"{i}:{token.strip()}" for i, token in enumerate(window.tokens[:40]))
            sentence = f"{self.name} has no token {wanted!r}: choose a position or text from"
            raise AttnscopeError(f"{sentence}\n{tokens}")
        return covering[0]


def read_texts(sentence: str, target: str | None, loaded: LoadedModel) -> tuple[_Side, _Side | None, bool]:
    """Sentence and, for an encoder-decoder, target in tokens; and whether the target is the model's own translation."""
    model, tokenizer = loaded.model, loaded.tokenizer
    most = min(MOST_TOKENS, position_table_length(model) or MOST_TOKENS)
    start = decoder_start(model) if target is not None or model.config.is_encoder_decoder else None
    source = _Side("the sentence", sentence, _window("the sentence", sentence, tokenizer, most))
    if start is None:
        return source, None, False
    text = _translation(loaded, sentence) if target is None else target
    window = shifted(_window("the target", text, TargetTokenizer(tokenizer), most), tokenizer, start)
    return source, _Side("the target", text, window), target is None


def _window(name: str, text: str, tokenizer: Any, most: int) -> Window:
    if not text.strip():
        raise AttnscopeError(f"{name} is empty; expected a sentence")
    (window,) = Windows(Corpus.from_sources([text]), tokenizer, length=max(len(text), most) * 4, limit=1)
    if len(window) > most:
        raise AttnscopeError(f"{name} has {len(window)} tokens; expected at most {most}: shorten it")
    if len(window) < 2:  # noqa: PLR2004
        raise AttnscopeError(f"{name} is a single token; expected two or more")
    return window


def _translation(loaded: LoadedModel, sentence: str) -> str:
    """The model's own greedy translation."""
    try:
        (text,) = translate_lines(loaded.model, loaded.tokenizer, [sentence], beams=1).texts
        if not text:
            raise AttnscopeError("its output is empty")  # noqa: TRY301 it is explained like the others
    except Exception as error:  # model families raise various errors if a head or a setting is missing
        raise out_of_memory(error) or AttnscopeError(
            f"{type(loaded.model).__name__} cannot translate the sentence ({reason_of(error)}): pass a target "
            "with --target"
        ) from error
    return text


class Followed:
    """Arrays by their symbols; printed, every step in words."""

    model: str
    tokens: tuple[str, ...]
    arrays: xr.Dataset

    def __getitem__(self, symbol: str) -> np.ndarray:
        """Return one array."""
        return self.arrays[symbol].values

    def __contains__(self, symbol: str) -> bool:
        """Whether there is such an array."""
        return symbol in self.arrays

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.model}, {len(self.tokens)} tokens: print() it for every step>"

    def __str__(self) -> str:
        return import_module("attnscope_lineage.page.walk").in_words(self)

    def _repr_html_(self) -> str:
        return import_module("attnscope_lineage.page.walk").framed(self)


@dataclass(frozen=True, eq=False, repr=False)
class Walk(Followed):
    """One head's attention over one sentence, step by step; float64, checked against the model's own numbers.

    Attributes
    ----------
    model, module
        Names of the model and of the attention module; the latter is empty for a module without a model around it.
    layer, head, heads, kv_heads
        Its layer and head, counted from 0; numbers of heads and of key-value heads.
    kinds
        ``"self"``, ``"causal"`` or ``"cross"``, of every layer.
    form, reason
        Form of the scores, and its reason: see `attnscope.explanation.projections.Projections`. With ``"rope"``, Q and
        K are rotated by their positions; with ``"normalised"`` or ``"unknown"``, they are the model's own.
    scale, softcap
        Factor of the scores, which become ``softcap * tanh(scores / softcap)`` unless it is None.
    tokens, keys, token
        Names of queries and keys; position of the query whose row is shown.
    arrays
        By symbol, with the dimensions ``query``, ``key`` and those of the matrices: ``X``, ``W_Q``, ``b_Q`` and so on
        (where they are known), ``Q``, ``K``, ``V``, ``products`` (Q Kᵀ), ``scaled``, ``scores`` (after soft cap and
        bias), ``allowed``, ``weights``, ``unscaled_weights`` (without the division), ``head_output``, ``concatenated``,
        ``result``. With sinusoids also ``positions`` and ``shift``, with padding ``padding`` (by key) and
        ``padded_weights`` (without its mask).
    errors
        Largest difference from the model's own numbers, as a share of the largest of these.
    texts
        Number of texts in the batch; the arrays are those of the first.
    target, translated
        Target text of an encoder-decoder, if known, and whether it is the model's own translation.
    forms
        Full, windowed, blocked and linear attention, from `attnscope_lineage.forms.compare_call`, if requested.
    drawn
        Whether it is the example of `walk_toy`.
    reads
        ``"images"``, ``"sounds"`` or another input; empty for text.
    """

    model: str
    scale: float
    tokens: tuple[str, ...]
    keys: tuple[str, ...]
    token: int
    arrays: xr.Dataset
    errors: dict[str, float]
    kinds: tuple[str, ...]
    module: str = ""
    layer: int = 0
    head: int = 0
    heads: int = 1
    kv_heads: int = 1
    form: str = "bilinear"
    reason: str = ""
    softcap: float | None = None
    texts: int = 1
    target: str = ""
    translated: bool = False
    forms: xr.Dataset | None = None
    drawn: bool = False
    reads: str = ""

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.kinds)

    @property
    def kind(self) -> str:
        """The kind of the layer."""
        return self.kinds[self.layer]

    @property
    def of_decoder(self) -> bool:
        """Whether the layer belongs to a decoder with an encoder."""
        return "cross" in self.kinds and self.kind != "self"

    @property
    def starts_stack(self) -> bool:
        """Whether the layer reads embeddings: the first of the encoder or decoder."""
        return self.layer == 0 or (self.of_decoder and self.kinds.index("causal") == self.layer)

    @property
    def is_toy(self) -> bool:
        """Whether it is a module without a model."""
        return not self.module


def entropy(weights: Float[np.ndarray, "*row key"]) -> Float[np.ndarray, "*row"]:
    """Entropy of each row in nats."""
    return entr(weights).sum(-1)


def follow(
    Q: Float[np.ndarray, "query r"],
    K: Float[np.ndarray, "key r"],
    V: Float[np.ndarray, "key value_width"],
    scale: float,
    allowed: Bool[np.ndarray, "query key"] | None = None,
    bias: Float[np.ndarray, "query key"] | None = None,
    softcap: float | None = None,
    sink: float | None = None,
) -> xr.Dataset:
    """The steps of one head one by one, float64; `Walk.arrays` has their names."""
    products = Q @ K.T
    allowed = np.ones(products.shape, dtype=bool) if allowed is None else allowed
    scaled = scale * products

    def scores_of(scaled: np.ndarray) -> np.ndarray:
        scores = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
        return scores if bias is None else scores + bias

    def softmax(scores: np.ndarray) -> np.ndarray:
        extra = None if sink is None else torch.tensor(sink, dtype=torch.float64)
        return masked_softmax(torch.from_numpy(scores), torch.from_numpy(allowed), extra).numpy()

    scores = scores_of(scaled)
    weights = softmax(scores)
    pair = ("query", "key")
    arrays = {
        "Q": (("query", "r"), Q),
        "K": (("key", "r"), K),
        "V": (("key", "value_width"), V),
        "products": (pair, products),
        "scaled": (pair, scaled),
        "scores": (pair, scores),
        "allowed": (pair, allowed),
        "weights": (pair, weights),
        "unscaled_weights": (pair, softmax(scores_of(products))),
        "head_output": (("query", "value_width"), weights @ V),
    }
    return xr.Dataset(arrays if bias is None else arrays | {"bias": (pair, bias)})


def _with_matrices(X: np.ndarray, memory: np.ndarray, matrices: Matrices) -> dict[str, Any]:
    """X, the input of keys and values, and the matrices and biases, as variables."""
    variables: dict[str, Any] = {"X": (("query", "width"), X)}
    if memory is not X:
        variables["memory"] = (("key", "key_width"), memory)
    for symbol, (matrix, bias) in matrices.items():
        width = "width" if symbol == "Q" or memory is X else "key_width"
        column = "value_width" if symbol == "V" else "r"
        variables[f"W_{symbol}"] = ((width, column), matrix)
        variables[f"b_{symbol}"] = ((column,), bias)
    return variables


def difference(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference, as a share of the largest of theirs."""
    return float(np.abs(mine - theirs).max()) / (float(np.abs(theirs).max()) or 1.0)


def check_number(what: str, number: int, count: int) -> int:
    """The number if there is such a layer, head or token."""
    if not 0 <= number < count:
        raise AttnscopeError(f"there is no {what} {number}: {what}s go from 0 to {count - 1}")
    return number


TOY = (("animal", "street", "it", "tired"), ("cat", "it", "<pad>", "<pad>"))
_WIDTH, _STRENGTH, _NOISE = 8, 3.0, 0.1
# columns in which sinusoids hardly change from token to token
_ANIMAL, _PLACE, _PRONOUN, _ADJECTIVE = 4, 5, 6, 7
_MEANINGS = {"animal": _ANIMAL, "cat": _ANIMAL, "street": _PLACE, "it": _PRONOUN, "tired": _ADJECTIVE}


@torch.no_grad()
def walk_toy(*, token: int | str = FOLLOWED, seed: int = 0, causal: bool = False, padding: bool = False) -> Walk:
    """Walk through `attnscope.kernels.heads.SelfAttention` of width 8, over two sentences whose weights are planted.

    "it" looks for an animal, an animal for an adjective; the values have rank 2. X is a word's vector, a sinusoid of
    its position, and noise of that seed. With `padding`, the second sentence is shown, and its padding is masked.
    """
    check_whole(0, SEEDS - 1, seed=seed)
    words = TOY[int(padding)]
    if isinstance(token, str) and not token.isdecimal() and token not in words:
        raise AttnscopeError(f"the toy has no token {token!r}: choose one of {', '.join(words)}, or 0 to 3")
    at = int(token) if isinstance(token, int) or token.isdecimal() else words.index(token)
    draw, tokens = torch.Generator().manual_seed(seed), len(words)
    table = sinusoidal_table(tokens, _WIDTH)
    x = table.float().repeat(len(TOY), 1, 1)
    for text, position in product(range(len(TOY)), range(tokens)):
        column = _MEANINGS.get(TOY[text][position])
        if column is not None:
            x[text, position] += _NOISE * torch.randn(_WIDTH, generator=draw)
            x[text, position, column] += 1
    with own_random_numbers():
        attention = SelfAttention(_WIDTH)
    query, key = (_NOISE * torch.randn(_WIDTH, _WIDTH, generator=draw) for _ in "QK")
    query[_PRONOUN, _ANIMAL] += _STRENGTH
    query[_ANIMAL, _ADJECTIVE] += _STRENGTH
    key[[_ANIMAL, _ADJECTIVE], [_ANIMAL, _ADJECTIVE]] += _STRENGTH
    value = torch.zeros(_WIDTH, 2)
    value[[_ANIMAL, _PLACE, _PRONOUN, _ADJECTIVE]] = torch.tensor([[2.0, 1], [3, 1], [2, 2], [1, 0]])
    value[3] = -value[[_PLACE, _ADJECTIVE]].sum(0)  # the cosines in their columns, which are nearly 1
    value = value @ (torch.randn(2, _WIDTH, generator=draw) * 8).round() / 8  # of rank 2 in float32 too
    for layer, matrix in zip((attention.W_q, attention.W_k, attention.W_v), (query, key, value), strict=True):
        layer.weight.copy_(matrix.T)
        layer.bias.zero_()
    allowed = torch.ones(len(TOY), tokens, tokens, dtype=torch.bool)
    padded = torch.tensor([[word == "<pad>" for word in sentence] for sentence in TOY])
    if causal:
        allowed = allowed.tril()
    bare = allowed[0].numpy()
    if padding:
        allowed &= ~padded[:, None]
    walked = walk_module(attention, x, token=at, mask=allowed, text=int(padding))
    arrays = walked.arrays.assign(_sinusoids(table, tokens, _WIDTH))
    if padding:
        unpadded = follow(walked["Q"], walked["K"], walked["V"], walked.scale, bare)
        arrays = arrays.assign(padding=("key", padded[1].numpy()), padded_weights=unpadded["weights"])
    kind = "causal" if causal else "self"
    errors = walked.errors | {"positions": _shift_error(arrays)}
    return replace(walked, tokens=words, keys=words, arrays=arrays, errors=errors, kinds=(kind,), drawn=True)


def layout_permutation(width: int) -> Int[Tensor, " width"]:
    """Columns of the ``"pairs"`` layout in the order of the ``"half"`` layout: ``half = pairs[..., permutation]``."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def sinusoidal_shift(shift: int, width: int) -> Float[Tensor, "width width"]:
    r"""Orthogonal matrix :math:`M_k` with :math:`\mathrm{PE}[p+k] = M_k\,\mathrm{PE}[p]` for every position p.

    Its blocks are :math:`\begin{pmatrix}\cos k\omega & \sin k\omega\\ -\sin k\omega & \cos k\omega\end{pmatrix}`
    (Vaswani et al. 2017, section 3.5: "for any fixed offset k").

    Parameters
    ----------
    shift
        k, tokens.
    width
        Even: a sine without its cosine cannot be turned.
    """
    angles = shift * rotation_rates(width // 2, width)
    turn = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], -1)
    return torch.block_diag(*turn.reshape(-1, 2, 2))


def _sinusoids(table: Tensor, tokens: int, width: int) -> dict[str, Any]:
    """The first rows of a table if they are sinusoids, and the matrix that shifts each row to the next."""
    if width % 2 or table.ndim != 2 or table.shape[1] != width or len(table) < tokens:  # noqa: PLR2004
        return {}
    for order in (torch.arange(width), layout_permutation(width)):
        if torch.allclose(table[:tokens].double().cpu(), sinusoidal_table(tokens, width)[:, order], atol=1e-5):
            return {
                "positions": (("position", "width"), _numbers(table[:tokens])),
                "shift": (("width", "to"), _numbers(sinusoidal_shift(1, width)[order][:, order])),
            }
    return {}


def _shift_error(arrays: xr.Dataset) -> float:
    """Largest difference of PE(p + k) from R(1)ᵏ PE(p), for every p and k."""
    table, shift = arrays["positions"].values, arrays["shift"].values
    turned, worst = table, 0.0
    for k in range(1, len(table)):
        turned = turned @ shift.T
        worst = max(worst, difference(turned[:-k], table[k:]))
    return worst


_INSTEAD = "For other forms of attention, pass the weights to attnscope.measure_weights"
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


Affine = tuple[np.ndarray, np.ndarray]  # a matrix, and the bias of its output


@dataclass(frozen=True)
class _Module:
    """Layers and output of a module of attention, for one text."""

    name: str
    readers: list[Affine]  # what reads X
    output: Affine | None  # what reads the outputs of the heads, one after another
    result: np.ndarray
    weights: np.ndarray | None  # ``(head, query, key)``
    heads: Sequence[int]  # numbers that it may have


@torch.no_grad()
def walk_module(
    module: nn.Module,
    x: Tensor,
    *,
    head: int = 0,
    token: int | str | None = None,
    mask: Tensor | None = None,
    text: int = 0,
) -> Walk:
    """Walk through a head of a module: linear layers, products, softmax, weighted sum, causal or not.

    A `mask` of shape ``(text, token, token)``, True where a query may attend, is the module's second argument.

    The layers of queries, keys and values, and the number of heads, are identified by reproducing the module's output.
    """
    name = type(module).__name__
    if x.ndim not in {2, 3} or not x.is_floating_point() or not x.numel():
        raise AttnscopeError(
            f"X has the shape {tuple(x.shape)} and type {str(x.dtype).removeprefix('torch.')}; expected real numbers, "
            "(text, token, width)"
        )
    tokens, width = x.shape[-2:]
    if tokens > MOST_TOKENS:
        raise AttnscopeError(f"X has {tokens} tokens; expected at most {MOST_TOKENS}")
    ran = _run_torch(module, x, text) if isinstance(module, nn.MultiheadAttention) else _run(module, x, mask, text)
    names = tuple(f"x{str(number).translate(_LOWERED)}" for number in range(1, tokens + 1))
    if isinstance(token, str) and not (token.isascii() and token.isdecimal()):
        raise AttnscopeError(f"query_token is {token!r:.40}; expected a position in X, from 0")
    number = check_number("token", tokens - 1 if token is None else int(token), tokens)
    masks = [None, np.tril(np.ones((tokens, tokens), dtype=bool))] if mask is None else [mask[text].numpy()]
    fitted = _fitted(ran, _of_text(x, text), masks, TOLERANCE.get(x.dtype, 1e-4))
    arrays = fitted.of_head(check_number("head", head, fitted.heads))
    return Walk(
        model=f"{name}({width})",
        kinds=("causal" if fitted.allowed is not None else "self",),
        scale=fitted.scale,
        tokens=names,
        keys=names,
        token=number,
        arrays=arrays,
        errors=fitted.errors,
        head=head,
        heads=fitted.heads,
        kv_heads=fitted.heads,
        texts=len(x) if x.ndim == 3 else 1,  # noqa: PLR2004
    )


def _run(module: nn.Module, x: Tensor, mask: Tensor | None, text: int) -> _Module:
    """Run a module, and note which linear layers read X and which one reads the outputs of its heads."""
    called: list[tuple[nn.Linear, bool]] = []

    def note(layer: nn.Module, inputs: tuple[Any, ...], _: Any) -> None:
        if isinstance(layer, nn.Linear) and inputs:
            called.append((layer, torch.equal(inputs[0], x)))

    name = type(module).__name__
    with ExitStack() as hooks:
        for part in module.modules():
            if isinstance(part, nn.Linear):
                hooks.callback(part.register_forward_hook(note).remove)
        with explaining(
            f"X of shape {tuple(x.shape)} makes {name!r} fail",
            "It must take X alone, of a shape that it knows",
            quoted=True,
        ):
            returned: Any = module(x) if mask is None else module(x, mask)
    output, *rest = (returned if isinstance(returned, tuple | list) else (returned,)) or (None,)
    if not isinstance(output, Tensor) or output.shape[:-1] != x.shape[:-1]:
        raise AttnscopeError(
            f"{name} returns no output of shape {(*x.shape[:-1], 'width')} (or that and its weights). {_INSTEAD}"
        )
    readers = [_affine(layer) for layer, reads_x in called if reads_x]
    others = [_affine(layer) for layer, reads_x in called if not reads_x]
    if len(readers) == 1 and readers[0][0].shape[1] % len("QKV") == 0:  # one layer for all three
        matrix, bias = readers[0]
        readers = list(zip(np.split(matrix, 3, 1), np.split(bias, 3), strict=True))
    if len(readers) != len("QKV") or len(others) > 1:
        raise AttnscopeError(
            f"{name} calls {count(len(readers), 'linear layer')} on X and {len(others)} on other states; expected "
            f"three on X, for queries, keys and values (or one for all), and at most one other. {_INSTEAD}"
        )
    weights = None
    square = (x.shape[-2], x.shape[-2])
    if rest and isinstance(rest[0], Tensor) and rest[0].shape[-2:] == square:
        one_head = rest[0].shape[:-2] == x.shape[:-2]
        several = rest[0].ndim == x.ndim + 1 and rest[0].shape[:-3] == x.shape[:-2]
        if one_head or several:
            of_text = rest[0][text] if x.ndim == 3 else rest[0]  # noqa: PLR2004
            weights = _numbers(of_text[None] if one_head else of_text)
    width = min(matrix.shape[1] for matrix, _ in readers)
    heads = [number for number in range(1, width + 1) if width % number == 0]
    if weights is not None and (len(weights) > 1 or not others):  # a mean over heads may be returned too
        heads = [len(weights)]
    return _Module(name, readers, others[0] if others else None, _of_text(output, text), weights, heads)


def _run_torch(module: nn.MultiheadAttention, x: Tensor, text: int) -> _Module:
    """Run PyTorch's module, whose matrices are no layers that are called."""
    name = type(module).__name__
    if module.bias_k is not None or module.add_zero_attn:
        raise AttnscopeError(f"{name} attends to keys of its own (add_bias_kv or add_zero_attn). {_INSTEAD}")
    batch_first = x.transpose(0, 1) if x.ndim == 3 and not module.batch_first else x  # noqa: PLR2004
    what = f"X of shape {tuple(x.shape)} makes {name!r} fail"
    with explaining(what, "Its last dimension must be embed_dim", quoted=True):
        output, weights = module(batch_first, batch_first, batch_first, average_attn_weights=False)
    output = output.transpose(0, 1) if batch_first is not x else output
    parts = module.in_proj_weight.chunk(3)  # one matrix, as queries, keys and values read X
    bias: Any = module.in_proj_bias
    biases = [torch.zeros(len(part)) for part in parts] if bias is None else bias.chunk(3)
    readers = [(_numbers(part).T, _numbers(bias)) for part, bias in zip(parts, biases, strict=True)]
    of_text = weights[text] if x.ndim == 3 else weights  # noqa: PLR2004
    heads = [module.num_heads]
    return _Module(name, readers, _affine(module.out_proj), _of_text(output, text), _numbers(of_text), heads)


@dataclass(frozen=True)
class _Fit:
    """The steps of all heads of a module that give its own numbers."""

    X: np.ndarray
    matrices: Matrices  # of all heads, one after another
    output: Affine | None
    steps: list[xr.Dataset]  # of each head
    scale: float
    allowed: np.ndarray | None
    errors: dict[str, float]

    @property
    def heads(self) -> int:
        return len(self.steps)

    def of_head(self, head: int) -> xr.Dataset:
        """The steps of one head, its own columns of the matrices, and what all heads together give."""
        columns: Matrices = {}
        for symbol, (matrix, bias) in self.matrices.items():
            columns[symbol] = np.split(matrix, self.heads, -1)[head], np.split(bias, self.heads)[head]
        arrays = self.steps[head].assign(_with_matrices(self.X, self.X, columns))
        if self.output is None and self.heads == 1:
            return arrays
        together = _concatenated(self.steps)
        arrays["concatenated"] = (("query", "all_heads"), together)
        if self.output is None:
            return arrays
        matrix, bias = self.output
        return arrays.assign(
            W_O=(("all_heads", "model_width"), matrix),
            b_O=(("model_width",), bias),
            result=(("query", "model_width"), together @ matrix + bias),
        )


def _concatenated(steps: Sequence[xr.Dataset]) -> np.ndarray:
    """Outputs of the heads, one after another."""
    return np.concatenate([arrays["head_output"].values for arrays in steps], -1)


def _fitted(module: _Module, X: np.ndarray, masks: Sequence[np.ndarray | None], limit: float) -> _Fit:
    """The steps that give the module's own numbers."""
    of_result = "head_output" if module.output is None and module.heads[0] == 1 else "result"

    def result_of(together: np.ndarray) -> np.ndarray:
        return together if module.output is None else together @ module.output[0] + module.output[1]

    for order, heads, allowed, divided in product(permutations(module.readers), module.heads, masks, (True, False)):
        (query, _), (key, _), (value, _) = order
        expected = module.result.shape[-1] if module.output is None else len(module.output[0])
        if query.shape[1] != key.shape[1] or value.shape[1] != expected or query.shape[1] % heads:
            continue
        scale = (query.shape[1] // heads) ** -0.5 if divided else 1.0
        all_heads = (X @ matrix + bias for matrix, bias in order)
        by_head = list(zip(*(np.split(values, heads, -1) for values in all_heads), strict=True))
        steps = [follow(Q, K, V, scale, allowed) for Q, K, V in by_head]
        errors = {of_result: difference(result_of(_concatenated(steps)), module.result)}
        weights = np.stack([arrays["weights"].values for arrays in steps])
        if module.weights is not None:
            mine = weights if len(module.weights) == heads else weights.mean(0, keepdims=True)
            errors["weights"] = difference(mine, module.weights)
        if max(errors.values()) <= limit:
            matrices = dict(zip("QKV", order, strict=True))
            return _Fit(X, matrices, module.output, steps, scale, allowed, errors)
        wrong = [_over_queries(scale * Q @ K.T, allowed) @ V for Q, K, V in by_head]
        if difference(result_of(np.concatenate(wrong, -1)), module.result) <= limit:
            raise AttnscopeError(
                f"the softmax of {module.name} is over the queries: the weights of each key sum to 1, not those of "
                "each query. Take it over the last dimension of the scores, softmax(-1)"
            )
    raise AttnscopeError(
        f"{module.name} does not compute softmax(Q Kᵀ / √d_k) V of its linear layers, in one head or several, with or "
        f"without a causal mask (call .eval() if it has dropout). {_INSTEAD}"
    )


def _over_queries(scores: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """A softmax over the wrong dimension."""
    masked = scores if allowed is None else np.where(allowed, scores, -np.inf)
    with np.errstate(invalid="ignore"):  # a key that no query may attend to
        exponentials = np.exp(masked - masked.max(0))
        return exponentials / exponentials.sum(0)


def _affine(layer: nn.Linear) -> Affine:
    bias: Any = layer.bias
    zeros = np.zeros(layer.out_features)
    return layer.weight.double().cpu().numpy().T, zeros if bias is None else bias.double().cpu().numpy()


def _of_text(tensor: Tensor, text: int) -> np.ndarray:
    return _numbers(tensor[text] if tensor.ndim == 3 else tensor)  # noqa: PLR2004
