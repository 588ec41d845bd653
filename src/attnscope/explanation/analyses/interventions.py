"""Words and positions changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.explanation.passes.interventions import interventions as of_model
from attnscope.explanation.ranking import weight_peaks
from attnscope.explanation.study import POSITION_TABLE, Analysis, Picture, Section, few_texts, studied
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import xarray as xr
    from jaxtyping import Int

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

CHANGED = Section(
    "interventions",
    "Words and positions changed",
    (
        "A head that goes by position alone keeps its profile when words change, loses it without "
        "positions, and follows the position ids when these change places."
    ),
)


@validated
def interventions(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    changes: Sequence[str] | None = None,
    layer: int | None = None,
    band: int = 10,
    target_offset: Int[np.ndarray, "layer head"] | None = None,
    shift: int = 8,
    frequencies: tuple[int, int] | None = None,
    components: int = 12,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """What becomes of every head when words or positions are taken away, mixed up or moved.

    See docs/mathematics.md, Interventions.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    changes, layer, band, target_offset, shift, frequencies, components, draws, seed
        See `attnscope.explanation.passes.interventions.interventions`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.passes.interventions.interventions`: over ``change, layer, head, offset`` (tokens)
        ``profile_before``
        and ``profile_after``, the mean weights (share); over ``change, layer, head`` ``mass_change``, what the weight
        at ``target`` (tokens) loses or gains. In the tree of `attnscope.explain` ``target`` and all weights at it are
        NaN of heads that prefer no offset.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions; if a change is not known, or not possible with this model and
        these windows; if there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.interventions import interventions
    >>> interventions("bundled", limit=2, changes=["words-zero"]).change.values.tolist()
    ['words-zero']
    """
    given = few_texts(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_model(
            given.model,
            given.first(limit),
            changes,
            layer=layer,
            band=band,
            target_offset=target_offset,
            shift=shift,
            frequencies=frequencies,
            components=components,
            draws=draws,
            seed=seed,
        )


def _of_study(study: Study) -> xr.Dataset:
    """The changes; of a head that prefers no offset there is no weight at one that could change."""
    changed = of_model(study.model, study.first(study.intervention_texts), band=study.band, seed=study.seed)
    prefers = weight_peaks(study.evidence).prefers.reindex_like(changed.target, fill_value=False)
    at_offset = [str(name) for name in changed if name == "target" or str(name).startswith("mass_")]
    return changed.assign(changed[at_offset].where(prefers.reset_coords(drop=True)).data_vars)


ANALYSIS = Analysis(
    "interventions",
    "Words and positions changed",
    "Interventions",
    _of_study,
    needs=(POSITION_TABLE,),
    section=CHANGED,
    pictures=(
        Picture(
            "interventions",
            "Before and after",
            (
                "Grey is before, blue after, dashed the profile in the order of the position ids. The "
                "number is the change of the weight at the head's offset, with its 95% interval over "
                "texts; a head that prefers no offset has none. Zeroing takes the model out of what it was "
                "trained on: means and shuffles are the fairer changes."
            ),
            draw="attnscope.results.figures.panels:interventions",
            of="heads",
        ),
    ),
    units="weight",
    asked=lambda study: study.intervention_texts > 0,
)
