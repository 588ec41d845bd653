"""Without the bias."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import torch
import xarray as xr

from attnscope.explanation.analyses.rotation_effect import SCHEME
from attnscope.explanation.profiles import profiles_of_variants, without_bias
from attnscope.explanation.study import BIAS, Analysis, Picture, Reading, studied
from attnscope.explanation.tokens import Windows
from attnscope.support.arguments import Count, Draws, Seed, validated

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@validated
def bias_effect(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    band: Count = 10,
    draws: Draws = 1000,
    seed: Seed = 0,
    **reading: Unpack[Reading],
) -> xr.Dataset:
    """Effect of a position bias of the scores (T5, ALiBi): the profile as it is less the one with the bias at its mean.

    See docs/mathematics.md, Effects of the position scheme. Each layer gets the inputs that it always gets; only its
    own bias is changed.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents.

    Returns
    -------
    xarray.Dataset
        Dimensions ``variant, layer, head, offset`` with variants ``model`` and ``without_bias``: ``profile``, the mean
        weight at an offset, and ``effect``, the model's less the variant's.

    Raises
    ------
    AttnscopeError
        If no bias by distance is added to the scores; if there are fewer than two full windows.
    """
    with studied(ANALYSIS, model, texts, reading) as study:
        return bias_effect_of(study.model, study.first(reading.get("limit")), band=band, draws=draws, seed=seed)


ANALYSIS = Analysis(
    "bias_effect",
    "Without the bias",
    "Effects of the position scheme",
    lambda study: bias_effect_of(study.model, study.first(), band=study.band, seed=study.seed),
    needs=(BIAS,),
    section=SCHEME,
    pictures=(
        Picture(
            "bias-effect",
            "Without the bias",
            "Black is the model; the colour has the position bias of the scores set to its mean.",
            draw="attnscope.results.figures.panels:scheme_effect",
            of="heads",
        ),
    ),
    units="share",
    few_texts=True,
)


@torch.no_grad()
def bias_effect_of(
    model: PreTrainedModel, windows: Windows, *, band: int = 10, draws: int = 1000, seed: int = 0
) -> xr.Dataset:
    """Profiles with the bias and with its mean; see `bias_effect`."""
    return profiles_of_variants(
        model, windows, lambda _, call: {"without_bias": without_bias(call)}, band=band, draws=draws, seed=seed
    )
