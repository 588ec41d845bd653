"""Before a run: check that padding changes nothing, so that a text has the same numbers whatever its batch mates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.attention import output_of
from attnscope.capture._heuristics import main_output
from attnscope.capture._verify import TOLERANCE
from attnscope.capture._watching import watching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel


@torch.no_grad()
def padding_difference(
    model: PreTrainedModel, together: dict[str, Tensor], alone: Sequence[dict[str, Tensor]]
) -> float:
    """Largest difference between texts in one padded batch and each alone, in the model's tolerance.

    More than 1 says that padding, or another text of the batch, reaches the numbers of a text.

    Parameters
    ----------
    model
        In eval mode.
    together
        Arguments of its forward pass for all texts side by side, the shorter ones padded on the right.
    alone
        The same for each text by itself, without padding.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=8)
    >>> ids, mask = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> alone = [{"input_ids": ids[:1]}, {"input_ids": ids[1:, :2]}]
    >>> together = {"input_ids": ids, "attention_mask": mask}
    >>> padding_difference(BertModel(config).eval(), together, alone) < 1
    True
    """
    with watching(model, lambda _, call: output_of(call), weights_suffice=True):
        batch = main_output(model(**together))
        single = [main_output(model(**inputs)) for inputs in alone]
    largest = 0.0
    for row, expected in enumerate(single):
        length = expected.shape[1] if expected.ndim > 2 else 1  # noqa: PLR2004 (batch, position, ...), or one for a text
        own = batch[row, :length] if expected.ndim > 2 else batch[row : row + 1]  # noqa: PLR2004
        difference = (own.double() - expected[0].double()).abs().max()
        scale = TOLERANCE.get(expected.dtype, 1e-4) * max(1e-6, float(expected.double().abs().max()))
        largest = max(largest, float(difference.nan_to_num(torch.inf)) / scale)
    return largest
