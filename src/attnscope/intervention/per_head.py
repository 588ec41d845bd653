"""What is known of each head: its mean effect, how estimates rank heads, where it attends and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from scipy import stats

from attnscope.explanation.analyses.verdict import WHY
from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.study import Study
from attnscope.intervention.contributions.profiles import contribution_profiles
from attnscope.intervention.inputs import InterventionInput
from attnscope.measure.documents import by_document, units_of
from attnscope.measure.ranking import majority_names, peaks
from attnscope.measure.texts import statistics_of
from attnscope.support.arguments import validated
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from attnscope.capture.borrow import LoadedModel
    from attnscope.read.windows import Window

_PERMUTATIONS = 2000


@validated
def heads_of(effects: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """Mean effect of each head, with its interval over documents."""
    documents = effects.source.values.tolist()
    units, called = units_of(documents)
    dims = effects.loss_change.dims[1:]
    mean, low, high, shown, tested = by_document(effects.loss_change.values, units, seed=seed)
    nats = {"units": "nats"}
    heads = xr.Dataset(
        {
            "effect": (dims, mean, {"long_name": "Change of the loss without the head", **nats}),
            "effect_low": (dims, low, {"long_name": "Lower end of its 95% interval", **nats}),
            "effect_high": (dims, high, {"long_name": "Upper end of its 95% interval", **nats}),
            "shown": (
                dims,
                shown,
                {"long_name": "Significant effect, corrected for all heads and ablations", "units": "1"},
            ),
            "tested": (dims, tested, {"long_name": "Whether that was tested", "units": "1"}),
        },
        coords={name: values for name, values in effects.coords.items() if "window" not in values.dims},
        attrs={"documents": len(set(documents)), "texts": len(documents), "intervals_over": called},
    )
    for name in ("kl", "accuracy_change", "estimate", "importance"):
        if name in effects:
            heads[name] = effects[name].mean("window", keep_attrs=True)
    return heads


@validated
def agreement_of(effects: xr.Dataset, *, seed: int = 0) -> xr.Dataset:
    """How well each estimate puts the heads in the order of their measured effects."""
    names = [*effects.estimator.values.tolist(), "importance"]
    ablations = effects.ablation.values.tolist()
    shape = (len(names), len(ablations))
    values = {name: np.full(shape, np.nan) for name in ("rank_correlation", "chance")}
    for row, name in enumerate(names):
        for column, ablation in enumerate(ablations):
            measured = effects.loss_change.sel(ablation=ablation).values
            if name == "importance":
                estimated, measured_size = effects.importance.values, True
            else:
                estimated = effects.estimate.sel(estimator=name, ablation=ablation).values
                measured_size = False
            agreement = order_agreement(estimated, measured, seed=seed, size=measured_size)
            for said, value in zip(values, agreement, strict=True):
                values[said][row, column] = value
    return xr.Dataset(
        {said: (("estimator", "ablation"), numbers) for said, numbers in values.items()},
        coords={"estimator": names, "ablation": ablations},
    )


def order_agreement(
    estimated: np.ndarray, measured: np.ndarray, *, seed: int, size: bool = False
) -> tuple[float, float]:
    """Rank correlation of the means of estimates and measurements ``(text, ...)``, and its chance."""
    pair = _flat(estimated), _flat(measured)
    if not np.isfinite(pair[0]).all():
        return np.nan, np.nan
    own = _correlation(*pair, size=size)
    return own, _chance(own, pair[0].shape[1], seed)


def _flat(values: np.ndarray) -> np.ndarray:
    """``(text, head)`` of the heads that there are."""
    flat = values.reshape(len(values), -1)
    return flat[:, ~np.isnan(flat).all(0)] if not np.isnan(flat).all() else flat


def _correlation(estimated: np.ndarray, measured: np.ndarray, *, size: bool) -> float:
    first, other = estimated.mean(0), measured.mean(0)
    other = np.abs(other) if size else other
    if not (np.ptp(first) and np.ptp(other)):
        return float("nan")
    return float(np.corrcoef(stats.rankdata(first), stats.rankdata(other))[0, 1])


def _chance(own: float, heads: int, seed: int) -> float:
    """Share of random orders of so many heads with a rank correlation as large."""
    if not np.isfinite(own):
        return float("nan")
    generator = np.random.default_rng(seed)
    order = np.arange(heads, dtype=float)
    order -= order.mean()
    shuffled = np.stack([generator.permutation(order) for _ in range(_PERMUTATIONS)])
    return float((shuffled @ order / (order @ order) >= own).mean())


_MEANS = ("profile", "entropy", "first_token", "special_tokens", "max_weight", "mean_offset", "gini_simpson")
_FEW = 8  # windows that tell whether weights can be trusted: each costs several passes
_ENOUGH = 8  # full windows: of fewer, position and text are hardly told apart


@validated
def attention_of_heads(loaded: LoadedModel, windows: list[Window], *, band: int = 10) -> xr.Dataset:
    """Kind, peak and mean statistics of every head, as `attnscope.scan` finds them on these windows."""
    results = statistics_of(loaded, windows, band=band)
    beside = xr.Dataset({name: results[name].mean("window", keep_attrs=True) for name in _MEANS if name in results})
    names = majority_names(results)
    if names is not None:
        beside["kind"] = (("layer", "head"), np.array(names, dtype=object))
    top = peaks(results)
    return beside if top is None else beside.merge(top, combine_attrs="override")


@validated
def explanations_of_heads(
    loaded: LoadedModel, windows: list[Window], *, band: int = 10, seed: int = 0
) -> tuple[xr.Dataset | None, str]:
    """Share of position and the offsets that weights and scores tell, as `attnscope.explain` finds them."""
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
    return verdict[[name for name in WHY if name in verdict]], ""


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


@validated
def trust_in_weights(loaded: LoadedModel, windows: list[Window], *, band: int = 10) -> tuple[xr.Dataset | None, str]:
    """Whether what weights say of a head survives when the size of what they weigh is counted (Kobayashi et al.
    2020).
    """
    given = InterventionInput(
        loaded.model, [*windows[:_FEW]], loaded.name, getattr(loaded.tokenizer, "mask_token_id", None)
    )
    shortest = min(map(len, given.windows))
    try:
        contributions = contribution_profiles(given, kinds=["norms", "effective"], band=min(band, max(1, shortest - 1)))
    except AttnscopeError as error:
        return None, str(error)
    profile = contributions.profile_norms.mean("window")
    top = profile.fillna(-1).argmax("offset")
    known = profile.notnull().any("offset")
    return xr.Dataset(
        {
            "norm_offset": contributions.offset[top].drop_vars("offset").astype(float).where(known),
            "norm_weight": profile.max("offset"),
            "null_share": contributions.null_share.mean("window"),
            "identifiable": contributions.identifiable.mean("window"),
        }
    ), ""
