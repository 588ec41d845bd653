"""Gradients of predictions by the vectors of the tokens that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.capture import Site, forward, watching
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._calls import attended
from attnscope.faithfulness._embeddings import embedding_leaves
from attnscope.faithfulness._limits import check_matrices
from attnscope.faithfulness._predictions import log_probabilities

if TYPE_CHECKING:
    from attnscope.faithfulness.weights._read_text import ReadText


def token_gradients(
    text: ReadText, places: Int[Tensor, " prediction"]
) -> Float[np.ndarray, "prediction token"]:
    """Norm of the gradient of the likeliest outcome's log probability by each token's vector, source before target.

    One forward pass, and a backward pass a prediction.

    Raises
    ------
    AttnscopeError
        If no table is seen in which token ids are looked up, or the text is too long for a backward pass.

    Examples
    --------
    >>> from attnscope.faithfulness._given import given_texts
    >>> from attnscope.faithfulness.weights._read_text import ReadText
    >>> given = given_texts(texts="The tide is out.")
    >>> text = ReadText(given.model, given.windows[0], 0, given.mask_id)
    >>> token_gradients(text, text.positions).shape
    (1, 9)
    """

    def observe(_: Site, call: AttentionCall) -> Tensor:
        return attended(call)[0]

    check_matrices(text.calls, text.name, in_a_graph=True)
    with (
        torch.enable_grad(),
        embedding_leaves(text.model, text.inputs) as leaves,
        watching(text.model, observe),
    ):
        output = forward(text.model, text.inputs, lambda _: text.name)
        best = log_probabilities(output, places)[0].amax(-1)
    if len(leaves) < len(text.inputs):
        raise AttnscopeError(
            f"{type(text.model).__name__} looks its token ids up in no table that was seen, so that there is no "
            "gradient by its tokens: choose another test"
        )
    gradients: list[np.ndarray] = []
    for score in best:
        slopes = torch.autograd.grad(
            score, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        gradients.append(torch.cat([slope[0].norm(dim=-1) for slope in slopes]).double().cpu().numpy())
    return np.stack(gradients)
