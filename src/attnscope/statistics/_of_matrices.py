"""`measure_weights`: what a scan says, from matrices that one has already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from attnscope._arguments import typed
from attnscope.attention import call_of_weights
from attnscope.capture import Site
from attnscope.checks import check_kind, check_whole
from attnscope.errors import AttnscopeError
from attnscope.statistics._asked import BAND
from attnscope.statistics._catalogue import choose
from attnscope.statistics._collected import MeasuredPass, collected
from attnscope.statistics._pass import Marks, measure_call

if TYPE_CHECKING:
    import xarray as xr
    from jaxtyping import Float
    from torch import Tensor

    Weights = Float[Tensor, "batch head query key"] | Float[np.ndarray, "batch head query key"]

_FOUR, _FIVE = 4, 5  # batch, head, query, key; a layer before them
#: What rounding may add to a row's 1, or take from 0, in each type.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@typed
@torch.no_grad()
def measure_weights(
    weights: Weights | Sequence[Weights],
    *,
    statistics: Sequence[str] | str | None = None,
    tokens: Sequence[Sequence[str]] | None = None,
    lengths: Sequence[int] | None = None,
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
        Rows sum to 1; where they sum to less, the rest counts as lying on no token (a learned sink).
    statistics, band
        See `attnscope.scan`. There is no ``offsets`` here: a wider band, or ``offset_sum``, has them.
    tokens
        The tokens of each text, as strings. They give `lengths`, and stand in ``token (text, position)`` of the result.
    lengths
        Real tokens of each text, padding on the right not counted; by default all are real.
    special
        For each text, which of its tokens are special; by default none is.
    causal
        Whether queries may look to the right; by default a layer is causal if none does. A layer whose queries and keys
        are not of the same number is of the kind ``cross``.

    Returns
    -------
    xarray.Dataset
        As `attnscope.scan` gives it. Equal weights, the null, lie on the keys to which any head of the layer gives any
        weight.

    Raises
    ------
    AttnscopeError
        If shapes do not agree, a weight is negative or not finite, a row sums to more than 1, or weight lies on padding
        or, though `causal`, to the right.

    Examples
    --------
    >>> previous = torch.eye(6)[[0, 0, 1, 2, 3, 4]]  # each token looks at the one before
    >>> statistics = measure_weights([previous.expand(1, 2, 6, 6)], band=2)
    >>> statistics.profile.sel(offset=-1).values.tolist(), statistics.layer_kind.item()
    ([[[1.0, 1.0]]], 'causal')
    """
    names = choose(statistics)
    layers = _layers(weights)
    texts = layers[0].shape[0]
    longest = max(max(layer.shape[2:]) for layer in layers)
    check_whole(1, max(BAND, longest - 1), band=band)
    lengths = _lengths(lengths, tokens, texts, longest)
    marked = _special(special, lengths)
    run = MeasuredPass()
    for index, layer in enumerate(layers):
        where = f"layer {index} of the weights"
        if layer.shape[0] != texts:
            raise AttnscopeError(f"{where} has {layer.shape[0]} texts, layer 0 has {texts}: expected as many")
        wide = layer.detach().double()
        queries, keys = (_real(lengths, count, layer.device) for count in layer.shape[2:])
        if layer.shape[2] != layer.shape[3]:
            queries = torch.ones_like(queries)
        slack = _ROUNDING.get(layer.dtype, _ROUNDING[torch.float64])
        mass = _checked(where, wide, slack, queries, keys)
        kind = _kind(where, wide.where(queries[:, None, :, None], 0.0), causal, slack)
        shares = wide / torch.where(mass > 0, mass, 1.0)[..., None]
        mass = torch.where((mass - 1).abs() <= slack, (mass > 0).double(), mass)
        mark = _fitting(marked, layer.shape[3], layer.device)
        reach = max(layer.shape[2:]) - 1
        _, measured = measure_call(
            call_of_weights(shares), names, band, reach, Marks(queries, keys, mark), mass
        )
        measured = {name: value.cpu() for name, value in measured.items()}
        run.add(Site(index, f"layer {index}", kind), measured, queries, reach)
    results = collected([run], names, band).assign_attrs(capture="weights")
    return results if tokens is None else results.assign_coords(token=(("text", "position"), _padded(tokens)))


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


def _lengths(
    lengths: Sequence[int] | None, tokens: Sequence[Sequence[str]] | None, texts: int, longest: int
) -> list[int]:
    if tokens is not None:
        counted = [len(text) for text in tokens]
        if lengths is not None and list(lengths) != counted:
            raise AttnscopeError("lengths and tokens do not agree: give one of them")
        lengths = counted
    if lengths is None:
        return [longest] * texts
    given = [int(length) for length in lengths]
    if len(given) != texts or not all(1 <= length <= longest for length in given):
        raise AttnscopeError(
            f"the lengths of texts are {given}; expected {texts} numbers from 1 to {longest}, the weights' own sizes"
        )
    return given


def _special(special: Sequence[Sequence[bool]] | None, lengths: list[int]) -> list[list[bool]]:
    if special is None:
        return [[False] * length for length in lengths]
    marked = [[bool(mark) for mark in text] for text in special]
    if [len(text) for text in marked] != lengths:
        raise AttnscopeError(
            f"special marks {[len(text) for text in marked]} tokens of the texts; expected one for each of {lengths}"
        )
    return marked


def _real(lengths: list[int], places: int, device: torch.device) -> Tensor:
    return torch.arange(places, device=device) < torch.tensor(lengths, device=device)[:, None]


def _fitting(marked: list[list[bool]], places: int, device: torch.device) -> Tensor:
    """Marks of tokens as far as a layer has places."""
    whole = torch.zeros(len(marked), places, dtype=torch.bool, device=device)
    for text, marks in enumerate(marked):
        own = torch.tensor(marks[:places], dtype=torch.bool, device=device)
        whole[text, : len(own)] = own
    return whole


def _checked(where: str, weights: Tensor, slack: float, queries: Tensor, keys: Tensor) -> Tensor:
    """Sums of the rows, once they are known to be weights."""
    real = weights.where(queries[:, None, :, None], 0.0)
    if not bool(real.isfinite().all()):
        raise AttnscopeError(f"{where} holds NaN or infinity: expected weights from 0 to 1")
    if float(real.amin()) < 0:
        raise AttnscopeError(
            f"{where} holds {float(real.amin()):.4g}: expected weights from 0 to 1, after the softmax"
        )
    mass = real.sum(-1)
    if float(mass.amax()) > 1 + slack:
        raise AttnscopeError(
            f"{where} has a row that sums to {float(mass.amax()):.4f}: expected 1 or less. Are the dimensions "
            "(batch, head, query, key), the softmax over keys?"
        )
    beyond = float(real.where(~keys[:, None, None], 0.0).amax())
    if beyond > slack:
        raise AttnscopeError(
            f"{where} puts {beyond:.4f} on what lies beyond a text's length: is padding on the right, and masked?"
        )
    return mass


def _kind(where: str, weights: Tensor, causal: bool | None, slack: float) -> str:
    queries, keys = weights.shape[2:]
    if queries != keys:
        return "cross"
    future = float(weights.triu(1).amax())
    if causal and future > slack:
        raise AttnscopeError(f"{where} puts {future:.4f} on a later token: it is not causal")
    return "causal" if causal or (causal is None and future == 0 and queries > 1) else "self"


def _padded(tokens: Sequence[Sequence[str]]) -> np.ndarray:
    whole = np.full((len(tokens), max(map(len, tokens))), "", dtype=object)
    for text, own in enumerate(tokens):
        whole[text, : len(own)] = list(own)
    return whole
