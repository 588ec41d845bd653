"""What each token gives to the output of an attention block: heads, residual connection and normalisation."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from jaxtyping import Float

from attnscope.explanation.arrays.checks import labelled
from attnscope.intervention.arrays.changes import non_negative
from attnscope.support.checks import agree, check_real, finite
from attnscope.support.errors import AttnscopeError

Norm = Literal["layer", "rms"]
Place = Literal["sum", "attention"]


@dataclass(frozen=True, eq=False)
class BlockParts:
    """The summands of a block's output."""

    attention: Float[np.ndarray, "query key width"]  # ``(query, key, width)``: what each key gives through all heads
    # ``(query, width)``: what the residual connection keeps of the query's own state
    residual: Float[np.ndarray, "query width"]
    constant: Float[np.ndarray, "query width"]  # ``(query, width)``: what biases give, of no token

    @property
    def total(self) -> Float[np.ndarray, "query width"]:
        """The block's output."""
        return self.attention.sum(1) + self.residual + self.constant

    @property
    def merged(self) -> Float[np.ndarray, "query key width"]:
        """What each token gives, where queries and keys are the same tokens: the residual is of the query itself."""
        both = self.attention.copy()
        index = np.arange(len(both))
        both[index, index] += self.residual
        return both


def block_parts(
    weights: Float[np.ndarray, "head query key"],
    values: Float[np.ndarray, "value_head value_key value_r"],
    output: Float[np.ndarray, "output_head r width"],
    residual: Float[np.ndarray, "residual_query residual_width"],
    *,
    bias: Float[np.ndarray, " width"] | None = None,
    norm: Norm | None = None,
    place: Place = "sum",
    gain: Float[np.ndarray, " width"] | None = None,
    shift: Float[np.ndarray, " width"] | None = None,
    epsilon: float = 1e-5,
) -> BlockParts:
    r"""Split the output of an attention block exactly."""
    weights, values = non_negative("weights", weights), finite("values", values)
    output, residual = finite("W_O", output), finite("the residual", residual)
    _check_sizes(weights, values, output, residual)
    check_real(0.0, epsilon=epsilon)
    width = output.shape[2]
    given = {"bias": bias, "gain": gain, "shift": shift}
    for name, given_part in given.items():
        if given_part is not None:
            agree("columns", name, len(finite(name, given_part)), "W_O", width)
    if norm is None and (gain is not None or shift is not None):
        raise AttnscopeError("found a gain or shift and no norm: say norm='layer' or norm='rms', or leave them out")
    through = np.einsum("hqk,hkr,hrw->qkw", weights, values, output, optimize=True)
    constant = np.zeros((len(residual), width)) + (0.0 if bias is None else bias)
    if norm is None:
        return BlockParts(through, residual, constant)
    read = through.sum(1) + constant + (residual if place == "sum" else 0.0)
    size = np.sqrt(((_centred(read, norm)) ** 2).mean(1) + epsilon)

    def linear(part: np.ndarray) -> np.ndarray:
        divided = _centred(part, norm) / size.reshape(-1, *[1] * (part.ndim - 1))
        return divided if gain is None else divided * gain

    return BlockParts(
        linear(through),
        linear(residual) if place == "sum" else residual,
        linear(constant) + (0.0 if shift is None else shift),
    )


def block_norms(parts: BlockParts, *, same_tokens: bool = True) -> xr.Dataset:
    r"""Size of what each token gives to a block's output, and how much the block mixes."""
    if same_tokens:
        agree("tokens", "the queries", parts.attention.shape[0], "the keys", parts.attention.shape[1])
    each = parts.merged if same_tokens else parts.attention
    index = np.arange(len(each))
    keep = each[index, index] if same_tokens else parts.residual
    mix = each.sum(1) - (keep if same_tokens else 0.0)
    sizes = [np.linalg.norm(part, axis=-1) for part in (mix, keep)]
    with np.errstate(invalid="ignore"):
        ratio = sizes[0] / (sizes[0] + sizes[1])
    return xr.Dataset(
        {
            "norms": labelled("query key", np.linalg.norm(each, axis=-1), "norm of what a token gives", "activation"),
            "residual": labelled(
                "query", np.linalg.norm(parts.residual, axis=-1), "norm of what the residual gives", "activation"
            ),
            "mixing_ratio": labelled("query", ratio, "what other tokens give, of all", "share"),
        }
    )


def _centred(part: np.ndarray, norm: Norm) -> np.ndarray:
    return part - part.mean(-1, keepdims=True) if norm == "layer" else part


def _check_sizes(weights: np.ndarray, values: np.ndarray, output: np.ndarray, residual: np.ndarray) -> None:
    agree("heads", "weights", len(weights), "values", len(values))
    agree("heads", "weights", len(weights), "W_O", len(output))
    agree("keys", "weights", weights.shape[2], "values", values.shape[1])
    agree("columns", "values", values.shape[2], "rows of W_O", output.shape[1])
    agree("queries", "weights", weights.shape[1], "the residual", len(residual))
    agree("columns", "W_O", output.shape[2], "the residual", residual.shape[1])
