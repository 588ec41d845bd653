"""What the layers that attend are called in a model of which other layers do not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = 4  # layers, before the rest is left out


def numbering_note(names: Sequence[str]) -> str:
    """Say which of the model's layers are counted, where only some attend (Jamba, Qwen3-Next, LFM2); else nothing.

    Parameters
    ----------
    names
        Modules in the order of their attention calls.

    Examples
    --------
    >>> numbering_note(["model.layers.3.self_attn", "model.layers.7.self_attn"])
    'Layers are counted by attention: 0 is model.layers.3, 1 is model.layers.7.'
    >>> numbering_note(["h.0.attn", "h.1.attn"])
    ''
    """
    matches = [re.match(r"(.*?\.)?(\d+)(?=\.|$)", name) for name in names]
    stacks = {re.sub(r"\d+", "#", name) for name in names}
    own = [int(match[2]) for match in matches if match is not None]
    if len(stacks) != 1 or len(own) != len(names) or own == list(range(len(own))) or own != sorted(set(own)):
        return ""
    said = [f"{number} is {match[0]}" for number, match in enumerate(matches) if match is not None]
    rest = ", and so on" if len(said) > _NAMED else ""
    return f"Layers are counted by attention: {', '.join(said[:_NAMED])}{rest}."
