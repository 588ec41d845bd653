"""What a saved model says of itself, before it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers

from attnscope.capture._repository import Repository

if TYPE_CHECKING:
    from collections.abc import Mapping


def saved_config(source: object, revision: str | None = None) -> dict[str, Any]:
    """The config of a model that lies in a folder or on the hub; nothing of the bundled one, which reads text.

    Examples
    --------
    >>> saved_config("bundled")
    {}
    """
    return {} if source == "bundled" else Repository.of(str(source), revision).read("config.json") or {}


def main_inputs(config: Mapping[str, Any]) -> set[str]:
    """What the classes that a config names read: the names of their first arguments.

    Examples
    --------
    >>> main_inputs({"architectures": ["ViTModel", "NoSuchModel"]})
    {'pixel_values'}
    """
    named = (getattr(transformers, str(name), None) for name in config.get("architectures") or ())
    return {getattr(module, "main_input_name", "") for module in named} - {""}
