"""One batch of windows through a watched model: every statistic of every head."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnscope.attention import measure
from attnscope.statistics._catalogue import STATISTICS, indicator_columns, plan, reduce_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from attnscope.attention import AttentionCall
    from attnscope.capture import Site
    from attnscope.corpus import Batch
    from attnscope.statistics._reading import Reading


@dataclass(eq=False)
class StatisticsObserver:
    """Measures each attention call as it happens; keeps ``(batch, head, ...)`` of each, in float64.

    Attributes
    ----------
    names, band
        Which statistics, and the largest offset.
    reading
        What the model reads: it tells real tokens from padding, and special tokens, on either side of a call.
    found
        By site index.
    """

    names: Sequence[str]
    band: int
    reading: Reading
    found: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def __call__(self, site: Site, call: AttentionCall) -> Tensor:
        queries, keys = self.reading.sides(site.kind)
        query_valid, _ = _marks(queries, call.query)
        key_valid, special = _marks(keys, call.key)
        need = plan(self.names, self.band, indicator_columns(key_valid, special))
        output, rows = measure(call, need)
        reduced = reduce_call(rows, self.names, query_valid, key_valid)
        self.found[site.index] = {name: value.cpu() for name, value in reduced.items()}
        return output

    def stacked(self) -> dict[str, np.ndarray]:
        """``(batch, layer, head[, offset])`` each; NaN where a layer has fewer heads than another."""
        heads = max(next(iter(one.values())).shape[1] for one in self.found.values())
        arrays: dict[str, np.ndarray] = {}
        for name in self.names:
            layers = [self.found[index][name].numpy() for index in sorted(self.found)]
            shape = (layers[0].shape[0], len(layers), heads, *layers[0].shape[2:])
            arrays[name] = np.full(shape, np.nan)
            for index, layer in enumerate(layers):
                arrays[name][:, index, : layer.shape[1]] = layer
        return arrays


def _marks(text: Batch, states: Tensor) -> tuple[Tensor, Tensor]:
    """Real and special tokens of one side; a side that is not of text (audio, image patches) is all real."""
    shape = (states.shape[0], states.shape[2])
    if text.valid.shape == shape:
        return text.valid, text.special
    everywhere = torch.ones(shape, dtype=torch.bool, device=states.device)
    return everywhere, ~everywhere


def dimensions(name: str) -> tuple[str, ...]:
    """Names of the dimensions of a statistic in a result.

    Examples
    --------
    >>> dimensions("profile")
    ('text', 'layer', 'head', 'offset')
    """
    return ("text", "layer", "head", *(("offset",) if STATISTICS[name].per_offset else ()))
