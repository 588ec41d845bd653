"""The published models, and how they are recognised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.checks import shortly
from attnscope.errors import AttnscopeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROBERTA, GPT2 = "roberta-base", "gpt2"


@dataclass(frozen=True)
class Shape:
    """How a published model is recognised: its names on the hub, classes, and sizes in its config."""

    hub: tuple[str, ...]
    classes: tuple[str, ...]
    sizes: Mapping[str, int]


SHAPES = {
    ROBERTA: Shape(
        ("roberta-base", "FacebookAI/roberta-base"),
        ("RobertaForMaskedLM",),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 514,
            "vocab_size": 50265,
        },
    ),
    GPT2: Shape(
        ("gpt2", "openai-community/gpt2"),
        ("GPT2LMHeadModel", "GPT2Model"),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 1024,
            "vocab_size": 50257,
        },
    ),
}


def is_shaped_like(model: PreTrainedModel, name: str) -> bool:
    """Whether a model has the class and sizes of a published one, ``"roberta-base"`` or ``"gpt2"``.

    Parameters
    ----------
    model
        Any model.
    name
        Name of the published one.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> is_shaped_like(GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1)), "gpt2")
    False
    """
    sizes = SHAPES[name].sizes.items()
    return type(model).__name__ in SHAPES[name].classes and all(
        getattr(model.config, size, None) == wanted for size, wanted in sizes
    )


def published_name(hub_name: str, identity: Mapping[str, str]) -> str | None:
    """Which published model this is, if the hub says so: a folder may hold any weights of the shape.

    Parameters
    ----------
    hub_name, identity
        As `attnscope.capture.LoadedModel` has them.

    Examples
    --------
    >>> published_name("openai-community/gpt2", {"revision": "607a30d"})
    'gpt2'
    >>> published_name("gpt2", {"sha256": "fdbd04ef"}) is None
    True
    """
    if "revision" not in identity:
        return None
    return next((name for name, shape in SHAPES.items() if hub_name in shape.hub), None)


def check_published(name: str | None) -> None:
    """Refuse names of models that nothing was published of.

    Raises
    ------
    AttnscopeError
        If the name is not of a published model; None is of none, and passes.

    Examples
    --------
    >>> check_published("bert")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: published_as (--published-as) is 'bert': expected roberta-base or gpt2
    """
    if name is not None and name not in SHAPES:
        raise AttnscopeError(
            f"published_as (--published-as) is {shortly(name)}: expected {' or '.join(SHAPES)}"
        )
