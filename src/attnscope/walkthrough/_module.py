"""A module that is one head, such as a first lesson's `SelfAttention`: followed from X to its own output."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import permutations, product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope._numbers import count
from attnscope.capture import TOLERANCE
from attnscope.errors import AttnscopeError, explaining
from attnscope.walkthrough._compute import HeadInputs, check_number, difference, follow, with_matrices
from attnscope.walkthrough._read import MOST_TOKENS
from attnscope.walkthrough._result import Walk

_INSTEAD = "For attention of another form, pass its weights to attnscope.measure_weights"
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@torch.no_grad()
def walk_module(module: nn.Module, x: Tensor, *, token: int | str | None = None) -> Walk:
    """Follow a module of one head: three linear layers of X, products, softmax, weighted sum, causal or not.

    Which layer makes the queries, the keys and the values is found by computing the module's own output.
    """
    name = type(module).__name__
    if x.ndim not in {2, 3} or not x.is_floating_point() or not x.numel():
        raise AttnscopeError(
            f"X has the shape {tuple(x.shape)} and type {str(x.dtype).removeprefix('torch.')}; expected real numbers, "
            "(text, token, width)"
        )
    width, tokens = x.shape[-1], x.shape[-2]
    if tokens > MOST_TOKENS:
        raise AttnscopeError(f"X has {tokens} tokens; a walk takes at most {MOST_TOKENS}")
    layers, returned = _run(module, x)
    own = _own(name, returned, x)
    X = _numbers(x)
    if len(layers) != len("QKV"):
        raise AttnscopeError(
            f"{name} calls {count(len(layers), 'linear layer')} on X; expected three, for queries, keys and values. "
            f"{_INSTEAD}"
        )
    names = tuple(f"x{str(number).translate(_LOWERED)}" for number in range(1, tokens + 1))
    number = tokens - 1 if token is None else token
    if not isinstance(number, int):
        if not (number.isascii() and number.isdecimal()):
            raise AttnscopeError(f"query_token is {number!r:.40}: the tokens of X go by position, from 0")
        number = int(number)
    check_number("token", number, tokens)
    matrices, scale, causal = _parts(name, X, layers, own, TOLERANCE.get(x.dtype, 1e-4))
    arrays = _followed(X, matrices, scale, causal=causal).assign(with_matrices(X, X, matrices))
    return Walk(
        model=f"{name}({width})",
        module="",
        layer=0,
        head=0,
        heads=1,
        kv_heads=1,
        kinds=("causal" if causal else "self",),
        form="bilinear",
        reason="",
        scale=scale,
        softcap=None,
        tokens=names,
        keys=names,
        token=number,
        arrays=arrays,
        errors={name: difference(arrays[name].values, array) for name, array in own.items()},
        texts=len(x) if x.ndim == 3 else 1,  # noqa: PLR2004
    )


def _run(module: nn.Module, x: Tensor) -> tuple[list[nn.Linear], Any]:
    """The linear layers that are called on X, in order, and what the module returns."""
    layers: list[nn.Linear] = []

    def note(layer: nn.Module, given: tuple[Any, ...], _: Any) -> None:
        if isinstance(layer, nn.Linear) and given and given[0].shape == x.shape and torch.equal(given[0], x):
            layers.append(layer)

    with ExitStack() as hooks:
        for part in module.modules():
            if isinstance(part, nn.Linear):
                hooks.callback(part.register_forward_hook(note).remove)
        with explaining(
            f"{type(module).__name__} does not take X of shape {tuple(x.shape)}", "Try another shape"
        ):
            return layers, module(x)


def _own(name: str, returned: Any, x: Tensor) -> dict[str, np.ndarray]:
    """Output of the first text, and its weights where the module returns them."""
    several = returned if isinstance(returned, tuple | list) else (returned,)
    output, *rest = several or (None,)
    if not isinstance(output, Tensor) or output.shape[:-1] != x.shape[:-1]:
        raise AttnscopeError(
            f"{name} returns no output of shape {(*x.shape[:-1], 'width')} (or that and its weights). {_INSTEAD}"
        )
    own = {"head_output": _numbers(output)}
    if rest and isinstance(rest[0], Tensor) and rest[0].shape == (*x.shape[:-1], x.shape[-2]):
        own = {"weights": _numbers(rest[0]), **own}
    return own


def _parts(
    name: str, X: np.ndarray, layers: list[nn.Linear], own: dict[str, np.ndarray], limit: float
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], float, bool]:
    """Matrices by symbol, scale, and whether it is causal: those that give the module's own numbers."""
    for order, causal, divided in product(permutations(layers), (False, True), (True, False)):
        query, key, value = order
        if (query.out_features, value.out_features) != (key.out_features, own["head_output"].shape[-1]):
            continue
        scale = query.out_features**-0.5 if divided else 1.0
        matrices = {symbol: _affine(layer) for symbol, layer in zip("QKV", order, strict=True)}
        arrays = _followed(X, matrices, scale, causal=causal)
        if all(difference(arrays[part].values, array) <= limit for part, array in own.items()):
            return matrices, scale, causal
    raise AttnscopeError(
        f"{name} computes something else than softmax(Q Kᵀ / √d_k) V of its three linear layers, with or without a "
        f"causal mask (call .eval() where it has dropout). {_INSTEAD}"
    )


def _affine(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    bias: Any = layer.bias
    return (
        layer.weight.double().cpu().numpy().T,
        np.zeros(layer.out_features) if bias is None else bias.double().cpu().numpy(),
    )


def _followed(
    X: np.ndarray, matrices: dict[str, tuple[np.ndarray, np.ndarray]], scale: float, *, causal: bool
) -> Any:
    Q, K, V = (X @ matrix + bias for matrix, bias in matrices.values())
    allowed = np.tril(np.ones((len(X), len(X)), dtype=bool)) if causal else None
    return follow(HeadInputs(Q, K, V, scale, allowed))


def _numbers(tensor: Tensor) -> np.ndarray:
    """Of the first text, float64."""
    return (tensor[0] if tensor.ndim == 3 else tensor).double().cpu().numpy().copy()  # noqa: PLR2004
