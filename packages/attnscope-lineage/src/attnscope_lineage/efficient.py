"""Attention without an n x n matrix: windows and blocks, which are exact, and a kernel, which is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from attnscope.kernels.reference import check_operands, masked_softmax
from attnscope.support.errors import AttnscopeError

_LEAST_BLOCK = 32  # smaller matrix products do not pay
_LINEAR_BLOCK = 64  # size of the blocks inside which causal linear attention compares all pairs


def sliding_window_attention(
    query: Float[Tensor, "*batch query width"],
    key: Float[Tensor, "*batch key key_width"],
    value: Float[Tensor, "*batch value value_width"],
    *,
    left: int,
    right: int = 0,
    scale: float | None = None,
) -> Float[Tensor, "*batch query value_width"]:
    r"""Attention of query i to the keys ``i - left .. i + right`` only.

    Exactly `attend` with `window_mask`, in :math:`O(n (left + right))` time and memory: queries are cut into
    blocks as long as the window, and each block is compared only with keys that one of its queries may attend to
    (Beltagy et al. 2020, "Longformer", section 3.1). The weight beyond the window is lost.

    Parameters
    ----------
    query, key, value
        Shapes ``(..., query, width)``, ``(..., key, width)`` and ``(..., key, value_width)``.
    left, right
        Number of tokens before and after itself that a query attends to.
    scale
        Factor of the scores; ``1 / sqrt(width)`` where it is None.

    Returns
    -------
    Tensor
        ``(..., query, value_width)``; 0 where a query has no key.

    Raises
    ------
    AttnscopeError
        If `left` or `right` is negative, or sizes do not fit, as in `attend`.
    """
    check_operands(query, key, value)
    if left < 0 or right < 0:
        raise AttnscopeError(
            f"found a window from {left} tokens before to {right} after; expected two numbers of 0 or more"
        )
    cut = _Neighbourhoods(query.shape[-2], key.shape[-2], max(left + right, _LEAST_BLOCK), left, right, query.device)
    allowed = cut.exists & (cut.offset >= -left) & (cut.offset <= right)
    scores = _scale(query, scale) * cut.rows(query) @ cut.around(key).transpose(-2, -1)
    return cut.join(masked_softmax(scores, allowed) @ cut.around(value))


def block_sparse_attention(
    query: Float[Tensor, "*batch token width"],
    key: Float[Tensor, "*batch key key_width"],
    value: Float[Tensor, "*batch value value_width"],
    *,
    block: int,
    neighbours: int = 1,
    global_tokens: Sequence[int] = (0,),
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch token value_width"]:
    r"""Attention of each block of tokens to its neighbouring blocks, and of all tokens to a few global tokens.

    A token attends to its own block, `neighbours` blocks on either side and the global tokens; a global token attends
    to all tokens (Beltagy et al. 2020, "Longformer"; Zaheer et al. 2020, "BigBird", without its random blocks).
    Exactly `attend` with `block_sparse_mask`, in :math:`O(n\,(block\,(2\,neighbours+1) + g))` time and memory for
    g global tokens.

    Parameters
    ----------
    query, key, value
        Shapes ``(..., token, width)`` and ``(..., token, value_width)``.
    block
        Tokens of a block.
    neighbours
        Number of neighbouring blocks on either side.
    global_tokens
        Positions of the global tokens, counted from 0; may be empty.
    causal
        Whether no token may attend to later ones, global tokens included.
    scale
        Factor of the scores; ``1 / sqrt(width)`` where it is None.

    Raises
    ------
    AttnscopeError
        If `block` is below 1, `neighbours` below 0, a global token is outside the text, or sizes do not fit, as in
        `attend`; there must be as many queries as keys.
    """
    check_operands(query, key, value)
    length = query.shape[-2]
    if length != key.shape[-2]:
        raise AttnscopeError(
            f"found {length} queries and {key.shape[-2]} keys; blocks are cut from one text: give as many of each"
        )
    chosen = _global_positions(length, block, neighbours, global_tokens, query.device)
    reach = block * neighbours
    cut = _Neighbourhoods(length, length, block, reach, reach, query.device)
    everywhere = torch.zeros(length, dtype=torch.bool, device=query.device)
    everywhere[chosen] = True
    here = cut.exists & ~cut.around_positions(everywhere)  # global keys have columns of their own
    local = here & (cut.offset <= 0) if causal else here.expand(-1, block, -1)
    allowed = torch.cat([local, ~((chosen > cut.positions[..., None]) & causal)], dim=-1)
    scale = _scale(query, scale)
    rows = scale * cut.rows(query)
    scores = [rows @ cut.around(key).transpose(-2, -1), rows @ key[..., None, chosen, :].transpose(-2, -1)]
    weights = masked_softmax(torch.cat(scores, dim=-1), allowed)
    count = cut.offset.shape[-1]
    output = cut.join(weights[..., :count] @ cut.around(value) + weights[..., count:] @ value[..., None, chosen, :])
    seen = torch.arange(length, device=query.device) <= chosen[:, None] if causal else None
    of_global = masked_softmax(scale * query[..., chosen, :] @ key.transpose(-2, -1), seen) @ value
    return output.index_copy(-2, chosen, of_global)


def block_sparse_mask(
    length: int,
    *,
    block: int,
    neighbours: int = 1,
    global_tokens: Sequence[int] = (0,),
    causal: bool = False,
    device: torch.device | str = "cpu",
) -> Bool[Tensor, "token token"]:
    """Mask of `block_sparse_attention`, ``(query, key)``, True where the query may attend to the key.

    Parameters
    ----------
    length
        Tokens of the text.
    block
        Tokens of a block.
    neighbours
        Blocks on each side to which a query attends, in addition to its own.
    global_tokens
        Positions that attend to all tokens, and to which all attend.
    causal
        Whether keys after the query are excluded.
    device
        Device of the mask.
    """
    chosen = _global_positions(length, block, neighbours, global_tokens, device)
    blocks = torch.arange(length, device=device) // block
    allowed = (blocks - blocks[:, None]).abs() <= neighbours
    allowed[chosen] = True
    allowed[:, chosen] = True
    return allowed.tril() if causal else allowed


def linear_attention(
    query: Float[Tensor, "*batch query width"],
    key: Float[Tensor, "*batch key key_width"],
    value: Float[Tensor, "*batch value value_width"],
    *,
    causal: bool = False,
) -> Float[Tensor, "*batch query value_width"]:
    r"""Attention by a kernel: weights are :math:`\phi(q_i)\cdot\phi(k_j)` over their sum.

    Here :math:`\phi(x) = \mathrm{elu}(x) + 1`. Sums over keys are taken once for all queries, so time and memory are
    :math:`O(n)` (Katharopoulos et al. 2020, "Transformers are RNNs", equations 4 to 9). **It is a different
    function, not an approximation of softmax attention with a bound**: the product of two features cannot be as sharp
    as an exponential. If it replaces softmax in the bundled model, which was not trained with it, the error of the
    output is nearly as large as the output: 0.89 times its norm at the median head, 0.58 at best, 0.98 at worst (means
    over 24 windows of 128 tokens of the bundled text, `attnscope_lineage.forms.compare_call`). A model that is to use
    it must be trained with it.

    Parameters
    ----------
    query, key, value
        Shapes ``(..., query, width)``, ``(..., key, width)`` and ``(..., key, value_width)``.
    causal
        Whether query i attends to keys 0 to i only; then there must be as many queries as keys.

    Returns
    -------
    Tensor
        ``(..., query, value_width)``; each row is an average of values.

    Raises
    ------
    AttnscopeError
        If it is causal and queries and keys differ in number, or sizes do not fit, as in `attend`.
    """
    check_operands(query, key, value)
    query, key = F.elu(query) + 1, F.elu(key) + 1
    ones = value.new_ones(*value.shape[:-1], 1)  # its sum is the denominator
    value = torch.cat([value, ones], dim=-1)
    if not causal:
        mixed = query @ (key.transpose(-2, -1) @ value)
    elif query.shape[-2] == key.shape[-2]:
        mixed = _causal_linear(query, key, value)
    else:
        raise AttnscopeError(
            f"found {query.shape[-2]} queries and {key.shape[-2]} keys; causal linear attention expects as many of each"
        )
    total = mixed[..., -1:]
    return mixed[..., :-1] / torch.where(total > 0, total, 1.0)  # elu(x) + 1 is 0 where x is very negative


def _causal_linear(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Sum ``(query_i . key_j) value_j`` over ``j <= i``: within a block one by one, before it by running sums."""
    length = query.shape[-2]
    padding = -length % _LINEAR_BLOCK
    query, key, value = (
        F.pad(states, (0, 0, 0, padding)).unflatten(-2, (-1, _LINEAR_BLOCK)) for states in (query, key, value)
    )
    of_block = key.transpose(-2, -1) @ value
    before = of_block.cumsum(-3) - of_block
    return (query @ before + ((query @ key.transpose(-2, -1)).tril() @ value)).flatten(-3, -2)[..., :length, :]


def _scale(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _global_positions(
    length: int, block: int, neighbours: int, wanted: Sequence[int], device: torch.device | str
) -> Int[Tensor, " token"]:
    if block < 1 or neighbours < 0:
        raise AttnscopeError(
            f"found blocks of {block} tokens and {neighbours} neighbours; expected at least 1 token and 0 neighbours"
        )
    outside = [position for position in wanted if not 0 <= position < length]
    if outside:
        raise AttnscopeError(f"there is no token {outside[0]} to be global: positions go from 0 to {length - 1}")
    return torch.tensor(sorted(set(wanted)), dtype=torch.int64, device=device)


@dataclass(frozen=True, eq=False)
class _Neighbourhoods:
    """Queries in blocks, and for each block the keys from `before` its first query to `after` its last."""

    queries: int
    keys: int
    block: int
    before: int
    after: int
    device: torch.device

    @property
    def blocks(self) -> int:
        return -(-self.queries // self.block)

    @property
    def positions(self) -> Int[Tensor, "blocks block"]:
        """Positions of the queries; the last block may extend beyond them."""
        return torch.arange(self.blocks * self.block, device=self.device).view(-1, self.block)

    @property
    def offset(self) -> Int[Tensor, "block reach"]:
        """Key minus query, the same in each block."""
        row = torch.arange(self.block, device=self.device)
        return torch.arange(self.block + self.before + self.after, device=self.device) - self.before - row[:, None]

    @property
    def exists(self) -> Bool[Tensor, "blocks 1 reach"]:
        """Whether the key exists."""
        return self.around_positions(torch.ones(self.keys, dtype=torch.bool, device=self.device))

    def around_positions(self, marks: Bool[Tensor, " key"]) -> Bool[Tensor, "blocks 1 reach"]:
        """One boolean a key, in the range of each block; False where there is no key."""
        return self.around(marks[:, None]).transpose(-2, -1)

    def rows(self, x: Float[Tensor, "*batch query width"]) -> Float[Tensor, "*batch blocks block width"]:
        """Cut the queries into blocks."""
        return F.pad(x, (0, 0, 0, self.blocks * self.block - self.queries)).unflatten(-2, (self.blocks, self.block))

    def around(self, x: Tensor) -> Tensor:
        """The keys of each block, ``(..., blocks, reach, width)``, a view of a padded copy of ``(..., key, width)``."""
        end = self.blocks * self.block + self.after
        padded = F.pad(x[..., :end, :], (0, 0, self.before, max(0, end - self.keys)))
        return padded.unfold(-2, self.block + self.before + self.after, self.block).transpose(-2, -1)

    def join(self, x: Float[Tensor, "*batch blocks block width"]) -> Float[Tensor, "*batch query width"]:
        """Put the blocks together again."""
        return x.flatten(-3, -2)[..., : self.queries, :]
