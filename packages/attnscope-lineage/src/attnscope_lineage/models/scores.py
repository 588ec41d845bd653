"""Score functions compare a state with the keys that it may attend to: dot, scaled dot, bilinear, additive."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.kernels.reference import check_width
from attnscope.support.checks import check_least
from attnscope.support.errors import AttnscopeError


class ScoreTerms(NamedTuple):
    r"""Scores in the form of an attention call: :math:`\text{scale}\, q \cdot k + \text{bias}`."""

    query: Tensor  # ``(..., query, width)`` and ``(..., key, width)``
    key: Tensor
    scale: float  # factor of their inner products
    bias: Tensor | None  # ``(..., query, key)``; None where there is none


class Score(nn.Module):
    """Base of the score functions: keys are prepared once a text, then compared with each state.

    A score function of your own has `prepare`, and `compare` and `terms` where its scores are not inner products of
    states and prepared keys. `look` takes any of them.
    """

    def prepare(self, keys: Float[Tensor, "*batch key key_width"]) -> Float[Tensor, "*batch key width"]:
        """Compute the part that depends on the keys alone."""
        raise NotImplementedError

    def compare(
        self, query: Float[Tensor, "*batch query query_width"], prepared: Float[Tensor, "*batch key width"]
    ) -> Float[Tensor, "*batch query key"]:
        """Scores of states and prepared keys; by default their inner products."""
        check_width("states", query, prepared.shape[-1])
        return query @ prepared.transpose(-2, -1)

    def forward(
        self, query: Float[Tensor, "*batch query query_width"], keys: Float[Tensor, "*batch key key_width"]
    ) -> Float[Tensor, "*batch query key"]:
        """Scores before the softmax, ``(..., query, key)``."""
        return self.compare(query, self.prepare(keys))

    def terms(
        self, query: Float[Tensor, "*batch query query_width"], keys: Float[Tensor, "*batch key key_width"]
    ) -> ScoreTerms:
        """The same scores as products of queries and keys; by default states and prepared keys."""
        return ScoreTerms(query, self.prepare(keys), 1.0, None)


class DotScore(Score):
    r"""Inner product: :math:`\mathrm{score}(s, h) = s \cdot h` (Luong et al. 2015, "dot").

    It has no parameters, so states and annotations must be equally wide.

    Parameters
    ----------
    query_width, key_width
        Widths of s and of h.
    scale
        Factor; :math:`1/\sqrt{d}` makes it the scaled dot product (Vaswani et al. 2017), see `scaled_dot_score`.

    Raises
    ------
    AttnscopeError
        If the widths differ, or are below 1.
    """

    def __init__(self, query_width: int, key_width: int, *, scale: float = 1.0) -> None:
        super().__init__()
        check_least(1, query_width=query_width, key_width=key_width)
        if query_width != key_width:
            raise AttnscopeError(
                f"a dot product compares equal widths; found {query_width} and {key_width}: make them equal, or "
                "choose 'bilinear' or 'additive'"
            )
        self.width, self.scale = key_width, scale

    def prepare(self, keys: Float[Tensor, "*batch key width"]) -> Float[Tensor, "*batch key width"]:
        """Scale the keys once for all queries, by the scale of the scores."""
        check_width("keys", keys, self.width)
        return self.scale * keys

    def terms(self, query: Float[Tensor, "*batch query width"], keys: Float[Tensor, "*batch key width"]) -> ScoreTerms:
        """States and keys unchanged, and the scale."""
        return ScoreTerms(query, keys, self.scale, None)


def scaled_dot_score(query_width: int, key_width: int) -> DotScore:
    r"""Inner product over the root of the width: :math:`s \cdot h / \sqrt{d}` (Vaswani et al. 2017, equation 1).

    The inner product of two vectors with d independent coordinates of variance 1 has variance d; divided, 1.

    Parameters
    ----------
    query_width, key_width
        Columns of a query and of a key.
    """
    return DotScore(query_width, key_width, scale=query_width**-0.5)


class BilinearScore(Score):
    r"""A matrix between state and key: :math:`\mathrm{score}(s, h) = s^T W h` (Luong et al. 2015, "general").

    A Transformer's scores are of this form with :math:`W = W_Q W_K^T`, whose rank is that of a head.

    Parameters
    ----------
    query_width, key_width
        Widths of s and of h; W is ``(query_width, key_width)``.
    """

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        check_least(1, query_width=query_width, key_width=key_width)
        self.weight = nn.Linear(key_width, query_width, bias=False)

    def prepare(self, keys: Float[Tensor, "*batch key key_width"]) -> Float[Tensor, "*batch key query_width"]:
        """:math:`W h`."""
        check_width("keys", keys, self.weight.in_features)
        return self.weight(keys)


class AdditiveScore(Score):
    r"""A small network: :math:`\mathrm{score}(s, h) = v^T \tanh(W_1 s + W_2 h + b)` (Bahdanau et al. 2015, A.1.2).

    It does not factor into a query and a key: each pair costs `width` tanh. Their equation leaves out b and scores
    the state before the step, :math:`s_{t-1}`; our decoder scores :math:`s_t`, as that of Luong et al. (2015) does.

    Parameters
    ----------
    query_width, key_width
        Widths of s and of h.
    width
        Rows of :math:`W_1` and :math:`W_2`, length of v and b.
    """

    def __init__(self, query_width: int, key_width: int, width: int) -> None:
        super().__init__()
        check_least(1, query_width=query_width, key_width=key_width, width=width)
        self.query = nn.Linear(query_width, width)
        self.key = nn.Linear(key_width, width, bias=False)
        self.direction = nn.Linear(width, 1, bias=False)

    def prepare(self, keys: Float[Tensor, "*batch key key_width"]) -> Float[Tensor, "*batch key width"]:
        """:math:`W_2 h`."""
        check_width("keys", keys, self.key.in_features)
        return self.key(keys)

    def compare(
        self, query: Float[Tensor, "*batch query query_width"], prepared: Float[Tensor, "*batch key width"]
    ) -> Float[Tensor, "*batch query key"]:
        """Scores of states and prepared keys."""
        check_width("states", query, self.query.in_features)
        together = self.query(query).unsqueeze(-2) + prepared.unsqueeze(-3)  # (..., query, key, width)
        return self.direction(together.tanh()).squeeze(-1)

    def terms(
        self, query: Float[Tensor, "*batch query query_width"], keys: Float[Tensor, "*batch key key_width"]
    ) -> ScoreTerms:
        """No product gives these scores: queries and keys are zeros of width 1, and the bias is the scores."""
        prepared = self.prepare(keys)
        rows = [self.compare(row, prepared) for row in query.split(1, -2)]  # each holds `width` numbers a pair
        return ScoreTerms(torch.zeros_like(query[..., :1]), torch.zeros_like(keys[..., :1]), 1.0, torch.cat(rows, -2))


def look(
    score: Score,
    query: Float[Tensor, "batch query query_width"],
    prepared: Float[Tensor, "batch key width"],
    values: Float[Tensor, "batch key value_width"],
    mask: Bool[Tensor, "batch key"] | None = None,
) -> tuple[Float[Tensor, "batch query value_width"], Float[Tensor, "batch query key"]]:
    r"""Context of each state: :math:`c_t = \sum_i \alpha_{t,i} h_i` with :math:`\alpha_t` the softmax of its scores.

    Parameters
    ----------
    score
        A score function.
    query
        States :math:`s_t`.
    prepared
        ``score.prepare(annotations)``.
    values
        States to mix, usually the annotations :math:`h_i` themselves.
    mask
        True where there is a token, False for padding.

    Returns
    -------
    context : Tensor
        ``(batch, query, value_width)``.
    weights : Tensor
        ``(batch, query, key)``, rows sum to 1; padding has exactly 0, and a row without any token is all zeros.
    """
    scores = score.compare(query, prepared)
    mask = (torch.ones_like(prepared[..., 0], dtype=torch.bool) if mask is None else mask).unsqueeze(-2)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
    return weights @ values, weights
