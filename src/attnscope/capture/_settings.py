"""What config.json says, checked before transformers reads it and makes lists, or stumbles, or looks elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from attnscope.capture._heuristics import counts_layers, counts_something_listed
from attnscope.errors import AttnscopeError

_MOST_COUNTED = 50_000  # layers or labels: of each a config makes a list before the model is built
_LARGEST = 2**63  # whole number that PyTorch takes


def check_settings(config: dict[str, Any], source: str) -> None:
    """Refuse a config with numbers that no model has, without a kind, or that takes part of itself from elsewhere.

    Raises
    ------
    AttnscopeError
        If it is such a one: names the setting.

    Examples
    --------
    >>> check_settings({"encoder": {"num_layers": 10**12}}, "my-model")
    Traceback (most recent call last):
    attnscope.errors.AttnscopeError: config.json of my-model says num_layers 1000000000000: expected 0 to 50,000. ...
    """
    if "configuration_files" in config:
        raise AttnscopeError(
            f"config.json of {source} names other files to be read in its place (configuration_files): "
            "put the content of the right one into config.json"
        )
    for name, value in every_setting(config):
        expected = _expected(name, value)
        if expected is not None:
            raise AttnscopeError(
                f"config.json of {source} says {name[:100]} {str(value)[:30]}: expected {expected}. "
                "Is it the right config.json?"
            )


def every_setting(config: Any) -> Iterator[tuple[str, Any]]:
    """Names and values, however deep.

    Examples
    --------
    >>> list(every_setting({"parts": [{"width": 3}]}))
    [('parts', [{'width': 3}]), ('width', 3)]
    """
    parts: list[Any] = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            yield from ((str(name), value) for name, value in part.items())
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)


def _expected(name: str, value: Any) -> str | None:
    """What a setting should have been; None where it may be what it is."""
    if name == "model_type" and not isinstance(value, str):
        return "a name"
    if name in {"dtype", "torch_dtype"} and isinstance(value, str):
        return None if isinstance(getattr(torch, value, None), torch.dtype) else "a type such as float32"
    if name == "backbone" and "/" in str(value):
        return "no other repository"
    counted = counts_something_listed(name)
    if isinstance(value, int) or (counted and isinstance(value, float)):
        most = _MOST_COUNTED if counted else _LARGEST
        least = 0 if counts_layers(name) else -most
        return None if least <= value <= most else f"{least:,} to {most:,}"
    return None
