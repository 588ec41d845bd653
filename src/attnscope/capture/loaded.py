"""A model ready to be watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to be watched.

    Attributes
    ----------
    model
        On its device. In eval mode if it was loaded; one that was given is as it was.
    tokenizer
        A fast tokenizer (with character offsets), or None where none was asked for.
    name
        The folder's or repository's name.
    identity
        What the model is: the SHA-256 of all that it was loaded from, or the hub's commit.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> loaded = load_model("bundled", device="cpu")
    >>> loaded.name, loaded.model.training, list(loaded.identity)
    ('small-mlm', False, ['sha256'])
    """

    model: PreTrainedModel
    tokenizer: Any
    name: str
    identity: dict[str, str]
