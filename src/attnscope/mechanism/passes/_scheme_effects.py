"""Positions taken out of a captured call: how much of where a head looks is the scheme's doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.capture import Site, watching
from attnscope.checks import check_some
from attnscope.errors import AttnscopeError
from attnscope.mechanism.evidence import (
    Windows,
    batches,
    check_self_attention,
    mean_profile,
    model_inputs,
    position_scheme,
    profile_and_output,
    projections,
    read,
    token_ids,
)
from attnscope.mechanism.passes._checks import check_measured
from attnscope.mechanism.passes._profiles import stacked_profiles
from attnscope.mechanism.passes._schemes import without_bias

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    Variants = Callable[[Site, AttentionCall], dict[str, AttentionCall]]

#: Bands of RoPE by the tokens that a pair takes for one turn.
PERIODS: Mapping[str, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "fast": (0.0, 16.0),
    "middle": (16.0, 128.0),
    "slow": (128.0, float("inf")),
}


@torch.no_grad()
def bias_effect(
    model: PreTrainedModel, windows: Windows, *, band: int = 10, draws: int = 1000, seed: int = 0
) -> xr.Dataset:
    """Effect of a position bias of the scores (T5, ALiBi): profile as it is minus profile with the bias at its mean.

    Each layer gets the inputs that it always gets; only its own bias is changed.

    Parameters
    ----------
    model
        In eval mode.
    windows
        All equally long.
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents: see `stacked_profiles`.

    Returns
    -------
    xarray.Dataset
        Dimensions ``variant, layer, head, offset`` with variants ``model`` and ``without_bias``: ``profile``, the mean
        weight at an offset, and ``effect``, the model's less the variant's.

    Raises
    ------
    AttnscopeError
        If no layer has a bias.

    Examples
    --------
    >>> from transformers import T5Config, T5EncoderModel
    >>> config = T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=9)
    >>> effects = bias_effect(T5EncoderModel(config).eval(), [[5, 6, 7, 8]], band=2)
    >>> effects.profile.dims, effects.effect.sel(variant="model").item(0)
    (('variant', 'layer', 'head', 'offset'), 0.0)
    """
    with_bias = False

    def variants(_: Site, call: AttentionCall) -> dict[str, AttentionCall]:
        nonlocal with_bias
        with_bias = with_bias or call.bias is not None
        return {"without_bias": without_bias(call)}

    effects = _profiles(model, windows, variants, band, draws, seed)
    if not with_bias:
        raise AttnscopeError(
            f"{type(model).__name__} adds no bias to its scores: {position_scheme(model)}. "
            "Choose an analysis that fits that"
        )
    return effects


@torch.no_grad()
def rotation_effect(
    model: PreTrainedModel,
    windows: Windows,
    periods: Mapping[str, tuple[float, float]] | None = None,
    *,
    band: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """Effect of RoPE: profiles when only some of the pairs of each query and key turn with their positions.

    Queries and keys are turned back by the rotation that the model gave them, and then turned again in the pairs
    asked for. Each layer gets the inputs that it always gets.

    Parameters
    ----------
    model
        In eval mode, with RoPE.
    windows
        All equally long, 2 tokens or more.
    periods
        Names of variants, and for each the range of periods (tokens for one turn, from the first up to but without
        the second) of the pairs that turn. By default `PERIODS`: none, fast (below 16), middle, slow (128 and more).
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents: see `stacked_profiles`.

    Returns
    -------
    xarray.Dataset
        As of `bias_effect`, with the variants ``model`` and those asked for. NaN in layers that do not rotate.

    Raises
    ------
    AttnscopeError
        If no layer turns queries and keys by a rotation that is known.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(
    ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> effects = rotation_effect(LlamaModel(config).eval(), [[5, 6, 7, 8]], {"all": (0.0, float("inf"))}, band=2)
    >>> effects.variant.values.tolist(), bool(abs(effects.effect.sel(variant="all")).max() < 1e-5)
    (['model', 'all'], True)
    """
    check_measured(band=band, draws=draws, seed=seed)
    periods = PERIODS if periods is None else periods
    check_some("names of variants with their periods, or None for the usual ones", periods=periods)
    windows = list(windows)
    ids = token_ids(windows)
    turns = {
        site.index: made.rotation
        for site, made in projections(model, model_inputs(model, ids[:1])).items()
        if made.rotation is not None
    }
    if not turns:
        raise AttnscopeError(
            f"{type(model).__name__} has no layer with a known rotation: {position_scheme(model)}. "
            "Choose an analysis that fits that"
        )
    names = tuple(periods)

    def variants(site: Site, call: AttentionCall) -> dict[str, AttentionCall]:
        turn = turns.get(site.index)
        if turn is None:
            return {}
        query, key = (turn.undo(side.double()) for side in (call.query, call.key))
        changed: dict[str, AttentionCall] = {}
        for name in names:
            first, last = periods[name]
            partly = turn.keep((turn.periods >= first) & (turn.periods < last))
            new = [partly(side).to(call.query.dtype) for side in (query, key)]
            changed[name] = replace(call, query=new[0], key=new[1])
        return changed

    return _profiles(model, windows, variants, band, draws, seed)


def _profiles(
    model: PreTrainedModel, windows: Windows, variants: Variants, band: int, draws: int, seed: int
) -> xr.Dataset:
    """Profiles of every call as it is and in its variants."""
    check_measured(band=band, draws=draws, seed=seed)
    ids = token_ids(windows)
    sites: dict[int, Site] = {}
    parts: dict[str, dict[int, list[np.ndarray]]] = {"model": {}}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        profile, output = profile_and_output(call, band)
        sites[site.index] = site
        parts["model"].setdefault(site.index, []).append(profile.numpy())
        for name, variant in variants(site, call).items():
            known = parts.setdefault(name, {}).setdefault(site.index, [])
            known.append(mean_profile(variant, band).numpy())
        return output

    with watching(model, observe):
        for _, batch in batches(ids):
            read(model, batch)
    check_self_attention(model, list(sites.values()))
    return stacked_profiles(parts, sites, documents=ids.documents, draws=draws, seed=seed).assign_attrs(
        length=ids.length
    )
