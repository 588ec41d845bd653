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
    """The summands of a block's output.

    Attributes
    ----------
    attention
        ``(query, key, width)``: what each key gives through all heads.
    residual
        ``(query, width)``: what the residual connection keeps of the query's own state.
    constant
        ``(query, width)``: what biases give, of no token.

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> parts = block_parts(np.eye(2)[None], np.ones((1, 2, 1)), np.ones((1, 1, 3)), x)
    >>> bool((parts.total == x + 1).all())
    True
    """

    attention: Float[np.ndarray, "query key width"]
    residual: Float[np.ndarray, "query width"]
    constant: Float[np.ndarray, "query width"]

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
    r"""Split the output of an attention block exactly.

    The attention layer gives :math:`o_i = \sum_j\sum_h \alpha^h_{ij} f_h(x_j) + b_O`, the block
    :math:`\mathrm{LN}(o_i + x_i)` (``norm="layer"``: BERT), :math:`o_i + x_i` (no `norm`: GPT-2, Llama) or
    :math:`\mathrm{LN}(o_i) + x_i` (``place="attention"``: Gemma 2). Given the standard deviation
    :math:`s_i` of what it reads, LN is linear in each summand: :math:`\gamma\odot(z - \bar z)/s_i`, and :math:`\beta`
    is a summand of its own. RMSNorm does not centre, and divides by the root mean square.

    Parameters
    ----------
    weights, values, output
        A, :math:`x W_V + b_V` and W_O of every head.
    residual
        :math:`x_i`, which the residual connection adds.
    bias
        b_O.
    norm
        Which normalisation there is.
    place
        Whether it normalises the sum with the residual, or what attention gives alone.
    gain, shift, epsilon
        :math:`\gamma`, :math:`\beta` and the small number of the normalisation.

    Raises
    ------
    AttnscopeError
        If the arrays do not belong together, or are not what they should be.

    References
    ----------
    Kobayashi, Kuribayashi, Yokoi and Inui (2021), Incorporating Residual and Normalization Layers into Analysis of
    Masked Language Models, EMNLP 2021, section 3.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, x = rng.dirichlet(np.ones(4), (2, 4)), rng.normal(size=(4, 6))
    >>> V, W_O = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 3, 6))
    >>> parts = block_parts(A, V, W_O, x, norm="layer", epsilon=0.0)
    >>> made = x + np.einsum("hqk,hkr,hrw->qw", A, V, W_O)
    >>> centred = made - made.mean(1, keepdims=True)
    >>> bool(np.allclose(parts.total, centred / made.std(1, keepdims=True)))
    True
    """
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
        raise AttnscopeError(
            "found a gain or shift and no norm: say norm='layer' or norm='rms', or leave them out"
        )
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
    r"""Size of what each token gives to a block's output, and how much the block mixes.

    Parameters
    ----------
    parts
        See `block_parts`.
    same_tokens
        Whether queries and keys are the same tokens, so that the residual is of the query's own token; in
        cross-attention they are not, and it is set beside all keys.

    Returns
    -------
    xarray.Dataset
        ``norms`` (query, key), in units of the hidden states, the residual within the diagonal where `same_tokens`;
        ``residual`` (query), its own norm; ``mixing_ratio`` (query),
        :math:`\lVert\text{mix}\rVert/(\lVert\text{mix}\rVert+\lVert\text{keep}\rVert)`: mix is the sum of what other
        tokens give, keep what the token itself does. Biases are of no token and in neither.

    Raises
    ------
    AttnscopeError
        If there are more queries than keys, or fewer, and they are said to be the same.

    References
    ----------
    Kobayashi et al. (2021), equation 11.

    Examples
    --------
    Weights on the token itself mix nothing:

    >>> parts = block_parts(np.eye(2)[None], np.ones((1, 2, 1)), np.ones((1, 1, 3)), np.ones((2, 3)))
    >>> block_norms(parts).mixing_ratio.values.tolist()
    [0.0, 0.0]
    """
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
            "norms": labelled(
                "query key", np.linalg.norm(each, axis=-1), "norm of what a token gives", "activation"
            ),
            "residual": labelled(
                "query",
                np.linalg.norm(parts.residual, axis=-1),
                "norm of what the residual gives",
                "activation",
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
