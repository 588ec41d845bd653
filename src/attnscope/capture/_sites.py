"""What the attention calls of a model are called in labelled arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from attnscope.capture._watch import Site


def layer_coordinates(sites: Iterable[Site]) -> dict[str, tuple[str, np.ndarray]]:
    """Coordinates over ``layer``: number of the call, ``layer_name`` (its module) and ``layer_kind``.

    Examples
    --------
    >>> from attnscope.capture import Site
    >>> coordinates = layer_coordinates([Site(0, "encoder.layer.0.attention.self", "self")])
    >>> {name: values.tolist() for name, (_, values) in coordinates.items()}
    {'layer': [0], 'layer_name': ['encoder.layer.0.attention.self'], 'layer_kind': ['self']}
    """
    sites = list(sites)
    return {
        "layer": ("layer", np.array([site.index for site in sites])),
        "layer_name": ("layer", np.array([site.name for site in sites], dtype=object)),
        "layer_kind": ("layer", np.array([site.kind for site in sites], dtype=object)),
    }
