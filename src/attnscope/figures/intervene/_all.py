"""The figures of an intervention, all at once, and how each is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnscope._returned import reads
from attnscope.figures.intervene._effects import effect_intervals, effect_maps, weight_against_effect
from attnscope.figures.intervene._forbidden import forbidden_maps
from attnscope.figures.intervene._orders import estimate_panels, removal_curves
from attnscope.figures.reading import readings_of

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

#: By name of the figure: its title, how to read it, and what is so only where effects are tested against 0.
_READINGS = {
    "effect-intervals": (
        "The heads whose absence changes most",
        (
            "Each point is the mean change of the loss without that head. Right of 0 the model is worse without the "
            "head."
        ),
        (
            "Each line is the 95% interval of that head alone. Filled points have a significant effect "
            "(corrected for all heads and ablations), rings have not."
        ),
    ),
    "effect-maps": (
        "All heads",
        (
            "Orange: the loss rises without the head; blue: it falls. Colours end at what 98% of the heads stay below."
        ),
        "A dot: a significant effect (corrected for all heads and ablations).",
    ),
    "weight-against-effect": (
        "Weight and effect are two things",
        "Right: nearly all weight at one offset. Up: the loss rises without the head.",
        "Filled points have a significant effect, rings have not.",
    ),
    "forbidden": (
        "Where heads may not look",
        (
            "Left: the share of a head's weight that the rule forbids; a head that is palest there can hardly change. "
            "Right: the change of the loss when that head alone looks elsewhere. A cross: there is no such head, or it "
            "is cross-attention, which has no offsets."
        ),
        "A dot: a significant change (corrected for all heads).",
    ),
    "estimates": (
        "Estimates beside the effects measured",
        (
            "On the grey line an estimate equals the effect. A rank correlation near 1: the estimate puts the heads "
            "in the right order."
        ),
        "",
    ),
    "curves": (
        "Heads taken out together",
        (
            "Heads go in the order of each score, the largest first; an order made on one half of the texts is "
            "measured on the other. The dashed line is the mean of random orders."
        ),
        "Bands are 95% intervals.",
    ),
}


@reads("intervene")
def intervention_readings(tree: xr.DataTree) -> dict[str, tuple[str, str]]:
    """By name of each figure: its title, and how to read it.

    Parameters
    ----------
    tree
        From `attnscope.intervene`.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> from attnscope.figures.intervene import intervention_readings
    >>> tree = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> intervention_readings(tree)["effect-intervals"][1][-76:]
    'Nothing is tested, and there are no intervals: that takes 6 or more windows.'
    """
    return readings_of(_READINGS, tested=bool(tree["heads"].tested.any()), of="windows")


@reads("intervene")
def intervention_figures(tree: xr.DataTree) -> Iterator[tuple[str, Figure]]:
    """Every figure that the result has values for, with its name.

    Parameters
    ----------
    tree
        From `attnscope.intervene`.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> from attnscope.figures.intervene import intervention_figures
    >>> tree = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> [name for name, _ in intervention_figures(tree)]
    ['effect-intervals', 'effect-maps', 'weight-against-effect']
    """
    yield "effect-intervals", effect_intervals(tree)
    yield "effect-maps", effect_maps(tree["heads"].to_dataset())
    if "peak_weight" in tree["where"].to_dataset():
        yield "weight-against-effect", weight_against_effect(tree)
    if "forbidden" in tree.children:
        yield "forbidden", forbidden_maps(tree["forbidden"].to_dataset())
    if "agreement" in tree.children:
        yield "estimates", estimate_panels(tree)
    if "curves" in tree.children:
        yield "curves", removal_curves(tree["curves"].to_dataset())
