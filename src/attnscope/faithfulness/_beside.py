"""What is set beside an effect: where the head looks, why it does, and whether its weights can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._given import Given
from attnscope.faithfulness.contributions import contribution_profiles
from attnscope.mechanism import ANALYSES, Study
from attnscope.statistics import majority_names, peaks, statistics_of

if TYPE_CHECKING:
    from attnscope.capture import LoadedModel
    from attnscope.corpus import Window

_MEANS = ("profile", "entropy", "first_token", "special_tokens", "max_weight", "mean_offset", "gini_simpson")
_WHY = (
    "offset_of_weights",
    "offset_of_spectrum",
    "offset_of_correlation",
    "position_share",
    "positional",
    "asked",
    "agree",
    "chance",
)
_FEW = 8  # windows that tell whether weights can be trusted: each costs several passes
_ENOUGH = 8  # full windows: of fewer, position and text are hardly told apart


@typed
def where_heads_look(loaded: LoadedModel, windows: list[Window], *, band: int = 10) -> xr.Dataset:
    """Kind, peak and mean statistics of every head, as `attnscope.scan` finds them on these windows.

    Parameters
    ----------
    loaded
        The model with its tokenizer.
    windows
        Windows of texts.
    band
        Largest offset of the profiles, tokens.

    Returns
    -------
    xarray.Dataset
        ``kind``, ``peak_offset`` (tokens), ``peak_weight`` (share of all weight) and means over texts of ``profile``,
        ``entropy``, ``first_token``, ... ``(layer, head[, offset])``.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of, windows_of
    >>> loaded = load_model("bundled", device="cpu")
    >>> texts = texts_of(["The tide comes in twice a day.", "The boats lie on the sand."])
    >>> looks = where_heads_look(loaded, list(windows_of(texts, loaded.tokenizer, length=16)), band=3)
    >>> looks.peak_offset.sel(layer=0).values.tolist()
    [-2.0, 1.0, 2.0, -1.0]
    """
    results = statistics_of(loaded, windows, band=band)
    beside = xr.Dataset(
        {name: results[name].mean("text", keep_attrs=True) for name in _MEANS if name in results}
    )
    names = majority_names(results)
    if names is not None:
        beside["kind"] = (("layer", "head"), np.array(names, dtype=object))
    top = peaks(results)
    return beside if top is None else beside.merge(top, combine_attrs="override")


@typed
def why_heads_look(
    loaded: LoadedModel, windows: list[Window], *, band: int = 10, seed: int = 0
) -> tuple[xr.Dataset | None, str]:
    """Share of position and the offsets that weights and scores tell, as `attnscope.explain` finds them.

    Parameters
    ----------
    loaded
        The model with its tokenizer.
    windows
        Windows of texts; those that are as long as the longest are read.
    band
        Largest offset of the profiles, tokens.
    seed
        Seed of the random number generators.

    Returns
    -------
    xarray.Dataset or None
        Variables of the verdict ``(layer, head)``; None where the model or these windows do not admit it.
    str
        Why there is none; else empty.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of, windows_of
    >>> loaded = load_model("bundled", device="cpu")
    >>> texts = texts_of(["The tide comes in twice a day.", "The boats lie on the sand."])
    >>> verdict, reason = why_heads_look(loaded, list(windows_of(texts, loaded.tokenizer, length=16)))
    >>> verdict is None, reason
    (True, 'causes are read from 8 windows or more that are all as long, and here are 2: give a larger limit ...')
    """
    length = max(map(len, windows))
    whole = [window for window in windows if len(window) == length]
    if lacking := _lacking(windows, len(whole), length):
        return None, lacking
    study = Study(
        loaded.model,
        whole,
        name=loaded.name,
        identity=loaded.identity,
        band=min(band, length - 1),
        seed=seed,
        loaded=loaded,
    )
    try:
        study.run(ANALYSES)
    except AttnscopeError as error:
        return None, str(error)
    verdict = study.results.get("verdict")
    if verdict is None:
        return None, study.reasons.get("verdict", "the model does not admit it")
    return verdict[[name for name in _WHY if name in verdict]], ""


def _lacking(windows: list[Window], whole: int, length: int) -> str:
    """Why no causes are read from these windows, and what helps; empty where they are."""
    if any(window.target is not None for window in windows):
        return "causes are read from running text, and these texts have translations beside them: ask explain"
    few = f"causes are read from {_ENOUGH} windows or more that are all as long, and "
    if len(windows) < _ENOUGH:
        return f"{few}here are {len(windows)}: give a larger limit (--limit {_ENOUGH}), or more text"
    if whole < _ENOUGH:
        return (
            f"{few}of these {len(windows)} only {whole} have {length} tokens: give running text, a shorter window "
            "(--window), or ask explain"
        )
    return ""


@typed
def trust_in_weights(
    loaded: LoadedModel, windows: list[Window], *, band: int = 10
) -> tuple[xr.Dataset | None, str]:
    """Whether what weights say of a head survives when the size of what they weigh is counted (Kobayashi et al. 2020).

    Parameters
    ----------
    loaded
        The model with its tokenizer.
    windows
        Windows of texts.
    band
        Largest offset of the profiles, tokens.

    Returns
    -------
    xarray.Dataset or None
        Variables over the first 8 windows, ``(layer, head)``: ``norm_offset`` (tokens) and ``norm_weight`` (share), the
        peak of the offset profile of norm-based weights; ``null_share``, the share of the weights' squares that the
        output does not see, and ``identifiable``, the share of rows whose output other weights cannot give (Brunner et
        al. 2020). None where the model does not admit it.
    str
        Why there is none; else empty.

    Examples
    --------
    >>> from attnscope.capture import load_model
    >>> from attnscope.corpus import texts_of, windows_of
    >>> loaded = load_model("bundled", device="cpu")
    >>> texts = texts_of(["The tide comes in twice."])
    >>> trust, reason = trust_in_weights(loaded, list(windows_of(texts, loaded.tokenizer, length=16)), band=3)
    >>> trust.norm_offset.sel(layer=0).values.tolist(), reason
    ([-2.0, 1.0, 2.0, -1.0], '')
    """
    given = Given(
        loaded.model, [*windows[:_FEW]], loaded.name, getattr(loaded.tokenizer, "mask_token_id", None)
    )
    shortest = min(map(len, given.windows))
    try:
        contributions = contribution_profiles(
            given, kinds=["norms", "effective"], band=min(band, max(1, shortest - 1))
        )
    except AttnscopeError as error:
        return None, str(error)
    profile = contributions.profile_norms.mean("text")
    top = profile.fillna(-1).argmax("offset")
    known = profile.notnull().any("offset")
    return xr.Dataset(
        {
            "norm_offset": contributions.offset[top].drop_vars("offset").astype(float).where(known),
            "norm_weight": profile.max("offset"),
            "null_share": contributions.null_share.mean("text"),
            "identifiable": contributions.identifiable.mean("text"),
        }
    ), ""
