"""A model ready to be watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to be watched."""

    model: PreTrainedModel  # on its device
    tokenizer: Any  # None where none is needed
    name: str  # the folder's or repository's name
    identity: dict[str, str]  # what the model is: the SHA-256 of all that it was loaded from, or the hub's commit
