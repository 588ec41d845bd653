"""The same model with weights that know nothing: what any head of such a shape gives."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from attnscope._caller import own_random_numbers
from attnscope.capture import device_of, quiet
from attnscope.checks import shortly
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

#: By name: what the weights are, in words.
CONTROLS = {
    "initialised": "drawn anew, as before training",
    "shuffled": "those of the model, each matrix in a random order",
}


def choose_controls(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of controls; None means all, ``"none"`` none.

    Examples
    --------
    >>> choose_controls("shuffled"), choose_controls("none")
    (('shuffled',), ())
    """
    if names is None:
        return tuple(CONTROLS)
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    if asked == ["none"]:
        return ()
    unknown = [name for name in asked if name not in CONTROLS]
    if unknown:
        raise AttnscopeError(
            f"there is no control {shortly(unknown[0])}: choose from {', '.join(CONTROLS)}, or none"
        )
    return tuple(name for name in CONTROLS if name in asked)


def control(model: PreTrainedModel, name: str, seed: int) -> PreTrainedModel:
    """A model of the same config, in eval mode, with other weights; the one that is given stays as it is.

    Parameters
    ----------
    model
        The model.
    name
        ``initialised`` or ``shuffled``.
    seed
        Seed of the random number generator.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9))
    >>> weight = "embeddings.word_embeddings.weight"
    >>> other = control(model, "shuffled", 0).get_parameter(weight)
    >>> own = model.get_parameter(weight)
    >>> torch.equal(own, other), torch.equal(own.flatten().sort().values, other.flatten().sort().values)
    (False, True)
    """
    with own_random_numbers(), quiet():
        torch.manual_seed(seed)
        if name == "initialised":
            fresh: Any = type(model)(copy.deepcopy(model.config))
            return fresh.to(device=device_of(model), dtype=model.dtype).eval()
        other = copy.deepcopy(model).eval()
        with torch.no_grad():
            for parameter in other.parameters():
                if parameter.ndim > 1:
                    order = torch.randperm(parameter.numel()).to(parameter.device)
                    parameter.copy_(parameter.flatten()[order].view_as(parameter))
    return other
