"""Attention as a layer: one head as in a first lesson, and many heads as in the Transformer."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from attnscope.kernels.positions import Rotation
from attnscope.kernels.reference import attend, check_width
from attnscope.support.checks import check_least
from attnscope.support.errors import AttnscopeError


class SelfAttention(nn.Module):
    r"""One head over one text: :math:`\mathrm{softmax}(QK^T/\sqrt{d_k})\,V` (Vaswani et al. 2017, equation 1).

    :math:`Q = XW_Q`, :math:`K = XW_K` and :math:`V = XW_V` are made of the same :math:`X`. The scores are divided
    by the root of the head's width. Here that is the model's width, because there is one head; with more heads
    it is not, see `MultiHeadAttention`.

    Parameters
    ----------
    width
        Width D of the input and of the output.

    Raises
    ------
    AttnscopeError
        If the width is below 1, or that of an input is another.

    Examples
    --------
    >>> import torch
    >>> output, weights = SelfAttention(8)(torch.rand(2, 4, 8))
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 4, 8), (2, 4, 4))
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        check_least(1, width=width)
        self.W_q = nn.Linear(width, width)  # named as lessons name them, so that their state_dict loads
        self.W_k = nn.Linear(width, width)
        self.W_v = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "batch token width"], mask: Bool[Tensor, ...] | None = None
    ) -> tuple[Float[Tensor, "batch token width"], Float[Tensor, "batch token token"]]:
        """Output and weights; `mask` is True where a query may attend."""
        check_width("tokens", x, self.W_q.in_features)
        return attend(self.W_q(x), self.W_k(x), self.W_v(x), mask)


@runtime_checkable  # shapes and types are checked in tests
class KeyValueCache(Protocol):
    """A cache of the keys and values of earlier tokens, such as that of transformers."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append to the layer's keys and values, and return all of them."""
        ...

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys of the layer so far."""
        ...


class MultiHeadAttention(nn.Module):
    r"""Several heads side by side: :math:`\mathrm{concat}_h(\mathrm{softmax}(Q_hK_h^T/\sqrt{d_k})\,V_h)\,W_O`.

    Source: Vaswani et al. 2017, section 3.2.2. Self-attention attends to the states themselves, cross-attention
    to other ones (`key_value_states`). A subclass may compute attention differently by overriding `attend`.

    Parameters
    ----------
    width
        Width of the states and of the output.
    heads
        Number of heads.
    key_width, value_width
        :math:`d_k` and :math:`d_v` of one head; by default ``width / heads``.
    memory_width
        Width of the `key_value_states`, by default `width`.
    bias
        Whether the four projections have biases.
    dropout
        Share of the weights that is dropped in training.

    Raises
    ------
    AttnscopeError
        If the width is not a multiple of the heads and no head width is set, a size is below 1, or states have another
        width than the layer.

    Examples
    --------
    >>> import torch
    >>> attention = MultiHeadAttention(8, heads=2)
    >>> output, weights = attention(torch.rand(3, 5, 8))
    >>> tuple(output.shape), tuple(weights.shape)
    ((3, 5, 8), (3, 2, 5, 5))
    >>> tuple(attention(torch.rand(3, 5, 8), torch.rand(3, 7, 8))[1].shape)
    (3, 2, 5, 7)
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        memory_width: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        memory_width = width if memory_width is None else memory_width
        check_least(1, width=width, heads=heads, memory_width=memory_width)
        if width % heads and (key_width is None or value_width is None):
            raise AttnscopeError(
                f"width {width} cannot be shared by {heads} heads: choose a multiple, or give the heads' own widths"
            )
        self.heads = heads
        self.key_width = width // heads if key_width is None else key_width
        self.value_width = width // heads if value_width is None else value_width
        check_least(1, key_width=self.key_width, value_width=self.value_width)
        self.scaling = self.key_width**-0.5  # of a head, not of the model
        self.dropout = dropout
        self.q_proj = nn.Linear(width, heads * self.key_width, bias=bias)
        self.k_proj = nn.Linear(memory_width, heads * self.key_width, bias=bias)
        self.v_proj = nn.Linear(memory_width, heads * self.value_width, bias=bias)
        self.out_proj = nn.Linear(heads * self.value_width, width, bias=bias)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch query width"],
        key_value_states: Float[Tensor, "batch key memory_width"] | None = None,
        mask: Any = None,  # of another type where a subclass's `attend` takes one
        *,
        bias: Float[Tensor, ...] | None = None,
        rotation: Rotation | None = None,
        start: int = 0,
        cache: KeyValueCache | None = None,
        layer: int = 0,
    ) -> tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch head query key"] | None]:
        """Attend from each token of one sequence to those of another, or of the same, and mix the heads' outputs.

        Parameters
        ----------
        hidden_states
            Tokens from which queries are made.
        key_value_states
            Tokens from which keys and values are made, by default `hidden_states`.
        mask
            True where a query may attend, broadcastable to ``(batch, head, query, key)``.
        bias
            Added to the scores (ALiBi, T5).
        rotation
            RoPE, of queries and keys; `start` is the position of the first of them (keys of another text begin at 0).
        cache, layer
            Cache of earlier keys and values, and the index of this layer in it. Those of `key_value_states` are made at
            the first step alone, and need a cache of their own.

        Returns
        -------
        output : Tensor
            ``(batch, query, width)``.
        weights : Tensor or None
            ``(batch, head, query, key)``; None where attention is fused and never makes them.
        """
        check_width("states", hidden_states, self.q_proj.in_features)
        query = self._split(self.q_proj(hidden_states))
        memory = hidden_states if key_value_states is None else key_value_states
        if key_value_states is not None and cache is not None and cache.get_seq_length(layer):
            memory = memory[:, :0]  # another text does not grow: all of it is in the cache
        key, value = self.project(memory)
        if rotation is not None:
            query = rotation.at(query, start)
            key = rotation.at(key, start if key_value_states is None else 0)
        if cache is not None:
            key, value = cache.update(key, value, layer)
        output, weights = self.attend(query, key, value, mask, bias)
        return self.out_proj(output.transpose(1, 2).flatten(2)), weights

    def project(
        self, states: Float[Tensor, "batch key memory_width"]
    ) -> tuple[Float[Tensor, "batch head key key_width"], Float[Tensor, "batch head key value_width"]]:
        """Keys and values of the states that are attended to."""
        check_width("states to attend to", states, self.k_proj.in_features)
        return self._split(self.k_proj(states)), self._split(self.v_proj(states))

    def attend(
        self,
        query: Float[Tensor, "batch head query key_width"],
        key: Float[Tensor, "batch head key key_width"],
        value: Float[Tensor, "batch head key value_width"],
        mask: Tensor | None,
        bias: Float[Tensor, ...] | None,
    ) -> tuple[Float[Tensor, "batch head query value_width"], Float[Tensor, "batch head query key"] | None]:
        """Scores, softmax, weighted sum: written out, so that the weights are available."""
        _, weights = attend(query, key, value, mask, self.scaling, bias=bias)
        return F.dropout(weights, self.dropout, self.training) @ value, weights

    def _split(self, projected: Float[Tensor, "batch token all_heads"]) -> Float[Tensor, "batch head token width"]:
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
