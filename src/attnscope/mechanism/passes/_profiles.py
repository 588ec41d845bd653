"""Mean weight profiles of all heads under several names, with their uncertainty."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope._documents import units_of
from attnscope.attention import AttentionCall, Need, measure
from attnscope.capture import Site, layer_coordinates, watching
from attnscope.mechanism.evidence import Windows, batches, interval, read, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: For each attention call, one array ``(text, head, offset)`` for each batch.
ByCall = Mapping[int, list[np.ndarray]]


@torch.no_grad()
def profiles_of(
    model: PreTrainedModel, windows: Windows, band: int, *, every: int = 1
) -> tuple[dict[int, list[np.ndarray]], dict[int, Site]]:
    """Profiles of all calls but cross-attention, and which calls they are; of every so many rows, from the first.

    Parameters
    ----------
    model
        In eval mode.
    windows
        All equally long.
    band
        Largest offset, tokens.
    every
        Step between the rows that count.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> config = BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    >>> profiles, sites = profiles_of(BertModel(config).eval(), [[5, 6, 7], [7, 8, 9]], 2)
    >>> profiles[0][0].shape, sites[0].kind
    ((2, 2, 5), 'self')
    """
    by_layer: dict[int, list[np.ndarray]] = {}
    sites: dict[int, Site] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, rows = measure(call, Need(band=band))
        if site.kind != "cross" and rows.band is not None:
            sites[site.index] = site
            chosen = np.arange(0, call.query.shape[2], every)
            key = chosen[:, None] + np.arange(-band, band + 1)
            pairs = ((key >= 0) & (key < call.key.shape[2])).sum(0)
            sums = rows.band[:, :, ::every].double().sum(2).cpu().numpy()
            by_layer.setdefault(site.index, []).append(
                np.where(pairs > 0, sums / np.maximum(pairs, 1), np.nan)
            )
        return output

    with watching(model, observe):
        for _, batch in batches(token_ids(windows)):
            read(model, batch)
    return by_layer, sites


def stacked_profiles(
    parts: Mapping[str, ByCall],
    sites: Mapping[int, Site],
    *,
    documents: Sequence[Hashable] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """``profile`` and ``effect`` (that of the first name minus that of each) over ``variant, layer, head, offset``.

    ``_low`` and ``_high`` are the ends of the 95% interval of a bootstrap over documents (texts, where there are fewer
    than 6), NaN of fewer than 6 texts; a call that a name lacks is NaN.

    Parameters
    ----------
    parts
        Profiles by name and by call: of each batch an array ``(text, head, offset)``.
    sites
        The calls, by their numbers.
    documents
        The document of each text; by default each text is one.
    draws, seed
        Number of draws and seed of the bootstrap.

    Examples
    --------
    >>> from attnscope.capture import Site
    >>> model, changed = np.array([[[0.2, 0.7, 0.1]]]), np.array([[[0.3, 0.4, 0.3]]])  # (text, head, offset)
    >>> sites = {0: Site(0, "encoder", "self")}
    >>> profiles = stacked_profiles({"model": {0: [model]}, "without": {0: [changed]}}, sites)
    >>> profiles.effect.sel(variant="without").values.round(3).tolist()
    [[[-0.1, 0.3, -0.2]]]
    >>> profiles.offset.values.tolist()
    [-1, 0, 1]
    """
    first = next(iter(parts.values()))
    texts = sum(map(len, next(iter(first.values()))))
    heads = max(part[0].shape[1] for part in first.values())
    offsets = next(iter(first.values()))[0].shape[2]
    stacked = np.full((len(parts), texts, len(sites), heads, offsets), np.nan)
    for number, by_call in enumerate(parts.values()):
        for row, index in enumerate(sorted(sites)):
            if index in by_call:
                layer = np.concatenate(by_call[index])
                stacked[number, :, row, : layer.shape[1]] = layer
    units, called = units_of(range(texts) if documents is None else documents)
    dims = ("variant", "layer", "head", "offset")
    arrays = {}
    for name, values in (("profile", stacked), ("effect", stacked[:1] - stacked)):
        ends = interval(np.moveaxis(values, 0, 1), units, draws=draws, seed=seed)
        for end, part in zip(("", "_low", "_high"), ends, strict=True):
            attributes = {"long_name": f"mean weight at an offset ({name})", "units": "weight"}
            arrays[name + end] = (dims, part, attributes)
    ordered = [sites[index] for index in sorted(sites)]
    return xr.Dataset(
        arrays,
        coords={
            "variant": list(parts),
            **layer_coordinates(ordered),
            "head": np.arange(heads),
            "offset": np.arange(-(offsets // 2), offsets // 2 + 1),
        },
        attrs={"texts": texts, "intervals_over": called},
    )
