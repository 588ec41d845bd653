"""Without the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import torch
import xarray as xr

from attnscope.capture.watch import Site
from attnscope.explanation.profiles import profiles_of_variants
from attnscope.explanation.projections import projections
from attnscope.explanation.study import ROTATION, Analysis, Picture, Reading, Section, studied
from attnscope.explanation.tokens import Windows, model_inputs, token_ids
from attnscope.kernels.call import AttentionCall
from attnscope.support.arguments import Count, Draws, Seed, validated
from attnscope.support.checks import check_some

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.capture.load import Model
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

SCHEME = Section(
    "scheme",
    "The position scheme taken out",
    "Each layer gets the inputs that it always gets; only its rotation or bias is changed. What is lost was the "
    "scheme's doing.",
)


@validated
def rotation_effect(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    periods: Mapping[str, tuple[float, float]] | None = None,
    band: Count = 10,
    draws: Draws = 1000,
    seed: Seed = 0,
    **reading: Unpack[Reading],
) -> xr.Dataset:
    """Effect of RoPE: profiles when only some of the pairs of each query and key turn with their positions.

    See docs/mathematics.md, Effects of the position scheme. Queries and keys are turned back by the rotation that the
    model gave them, and then turned again in the chosen pairs. Each layer gets the inputs that it always gets.

    Parameters
    ----------
    model, texts, reading
        See `attnscope.explanation.study.study`.
    periods
        Names of variants, and for each the range of periods (tokens for one turn, from the first up to but without
        the second) of the pairs that turn. By default `PERIODS`: none, fast (below 16), middle, slow (128 and more).
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents.

    Returns
    -------
    xarray.Dataset
        As of `bias_effect`, with the variants ``model`` and those of `periods`. NaN in layers that do not rotate.

    Raises
    ------
    AttnscopeError
        If no layer turns queries and keys by their positions; if there are fewer than two full windows.
    """
    check_some("names of variants with their periods, or None for the usual ones", periods=periods)
    with studied(ANALYSIS, model, texts, reading) as study:
        return rotation_effect_of(
            study.model, study.first(reading.get("limit")), periods, band=band, draws=draws, seed=seed
        )


ANALYSIS = Analysis(
    "rotation_effect",
    "Without the rotation",
    "Effects of the position scheme",
    lambda study: rotation_effect_of(study.model, study.first(), band=study.band, seed=study.seed),
    needs=(ROTATION,),
    section=SCHEME,
    pictures=(
        Picture(
            "rotation-effect",
            "Without the rotation",
            "Black is the model; each colour turns only some of the pairs of queries and keys, by their period in "
            "tokens.",
            draw="attnscope.results.figures.panels:scheme_effect",
            of="heads",
        ),
    ),
    units="share",
    few_texts=True,
)

#: Bands of RoPE by the tokens that a pair takes for one turn.
PERIODS: Mapping[str, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "fast": (0.0, 16.0),
    "middle": (16.0, 128.0),
    "slow": (128.0, float("inf")),
}


@torch.no_grad()
def rotation_effect_of(
    model: PreTrainedModel,
    windows: Windows,
    periods: Mapping[str, tuple[float, float]] | None = None,
    *,
    band: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """Profiles with only some pairs turned; see `rotation_effect`."""
    periods = PERIODS if periods is None else periods
    ids = token_ids(windows)
    turns = {
        site.index: made.rotation
        for site, made in projections(model, model_inputs(model, ids[:1])).items()
        if made.rotation is not None
    }

    def variants(site: Site, call: AttentionCall) -> dict[str, AttentionCall]:
        turn = turns.get(site.index)
        if turn is None:
            return {}
        query, key = (turn.undo(side.double()) for side in (call.query, call.key))
        changed: dict[str, AttentionCall] = {}
        for name, (first, last) in periods.items():
            partly = turn.keep((turn.periods >= first) & (turn.periods < last))
            new = [partly(side).to(call.query.dtype) for side in (query, key)]
            changed[name] = replace(call, query=new[0], key=new[1])
        return changed

    return profiles_of_variants(model, windows, variants, band=band, draws=draws, seed=seed)
