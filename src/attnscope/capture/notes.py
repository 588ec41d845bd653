"""Names of attention calls in labelled arrays, and notes about the capture of a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnscope.capture.families import mixes_without_attention, takes_points
from attnscope.capture.verify import pooling_heads
from attnscope.capture.watch import Site, way_of
from attnscope.capture.watching import capture_of
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def layer_coordinates(sites: Iterable[Site]) -> dict[str, tuple[str, np.ndarray]]:
    """Coordinates over ``layer``: number of the call, ``layer_name`` (its module) and ``layer_kind``."""
    sites = list(sites)
    return {
        "layer": ("layer", np.array([site.index for site in sites])),
        "layer_name": ("layer", np.array([site.name for site in sites], dtype=object)),
        "layer_kind": ("layer", np.array([site.kind for site in sites], dtype=object)),
    }


def capture_notes(model: PreTrainedModel) -> dict[str, str]:
    """Attributes of a result about how its model was captured, and what was not measured; after `verify`."""
    name = type(model).__name__
    notes: dict[str, str] = {"capture": capture_of(model)}
    if notes["capture"] != "registry":
        notes["eager"] = (
            f"{name} does not use transformers' attention registry. Its weights come from its own eager attention, "
            "one layer at a time (slower)."
        )
    heads = pooling_heads(model)
    if heads:
        notes["pooling"] = (
            f"The pooling head ({heads[0]}, {type(model.get_submodule(heads[0])).__name__}) attends from a learned "
            "probe, not from tokens, and is not measured."
        )
    if way_of(model).draws:
        notes["random"] = (
            f"{name} draws random numbers in each pass (it masks or samples). They are the same each time."
        )
    points = [part for part in model.modules() if takes_points(part)]
    if points:
        notes["points"] = (
            f"Layers of deformable attention ({type(points[0]).__name__}) sample points of an image, have no "
            "token-to-token weights, and are not measured."
        )
    return notes | mixers_note(model)


def mixers_note(model: PreTrainedModel) -> dict[str, str]:
    """An attribute that names the layers of a hybrid model that mix tokens without attention; empty without any."""
    classes = Counter(type(module).__name__ for module in model.modules() if mixes_without_attention(module))
    if not classes:
        return {}
    named = ", ".join(f"{count(number, 'layer')} of {name}" for name, number in classes.items())
    return {"mixers": f"Not measured: {named}, which mix tokens without attention."}


_NAMED = 4  # layers that the note lists


def numbering_note(names: Sequence[str]) -> str:
    """A note about the numbers of layers if only some layers attend (Jamba, Qwen3-Next, LFM2); else empty."""
    matches = [re.match(r"(.*?\.)?(\d+)(?=\.|$)", name) for name in names]
    stacks = {re.sub(r"\d+", "#", name) for name in names}
    numbers = [int(match[2]) for match in matches if match is not None]
    if (
        len(stacks) != 1
        or len(numbers) != len(names)
        or numbers == list(range(len(numbers)))
        or numbers != sorted(set(numbers))
    ):
        return ""
    parts = [f"{number} is {match[0]}" for number, match in enumerate(matches) if match is not None]
    rest = ", and so on" if len(parts) > _NAMED else ""
    return f"Only layers with attention are numbered: {', '.join(parts[:_NAMED])}{rest}."
