"""The same model with weights that know nothing: what any head of such a shape gives."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from attnscope._arguments import typed
from attnscope._caller import own_random_numbers
from attnscope.capture import quiet
from attnscope.checks import shortly
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from transformers import PreTrainedModel

_MATRIX = 2

#: By name: what the weights are, in words.
CONTROLS = {
    "initialised": "drawn anew, as before training",
    "shuffled": "those of the model, each matrix in a random order",
}


@typed
def choose_controls(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Validate the names of controls; None means all, ``"none"`` none.

    Raises
    ------
    AttnscopeError
        If there is no control of that name: all are named.

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


@typed
@contextmanager
def control(model: PreTrainedModel, name: str, seed: int) -> Generator[None]:
    """Within, a model has weights that know nothing; afterwards it has its own again, untouched.

    What was found out about the model, such as how its attention is captured, holds for these weights too.

    Parameters
    ----------
    model
        The model.
    name
        ``initialised`` or ``shuffled``.
    seed
        Seed of the random number generator.

    Raises
    ------
    AttnscopeError
        If the weights are rounded to whole numbers.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9))
    >>> weight = model.get_parameter("embeddings.word_embeddings.weight")
    >>> before = weight.detach().clone()
    >>> with control(model, "shuffled", 0):
    ...     torch.equal(before, weight), torch.equal(before.flatten().sort().values, weight.flatten().sort().values)
    (False, True)
    >>> torch.equal(before, weight)
    True
    """
    own = {key: parameter.data for key, parameter in model.named_parameters()}
    if any(type(values) is not torch.Tensor for values in own.values()):
        raise AttnscopeError("weights rounded to whole numbers cannot be drawn anew")
    with own_random_numbers(), quiet():
        torch.manual_seed(seed)
        other = _drawn_anew(model) if name == "initialised" else {key: _in_disorder(own[key]) for key in own}
    try:
        for key, parameter in model.named_parameters():
            parameter.data = other[key].to(
                own[key]
            )  # not in place: graphs that hold the old values stay valid
        yield
    finally:
        for key, parameter in model.named_parameters():
            parameter.data = own[key]


def _drawn_anew(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    fresh = type(model)(copy.deepcopy(model.config))
    return {key: parameter.data for key, parameter in fresh.named_parameters()}


def _in_disorder(values: torch.Tensor) -> torch.Tensor:
    if values.ndim < _MATRIX:
        return values
    order = torch.randperm(values.numel()).to(values.device)
    return values.flatten()[order].view_as(values)
