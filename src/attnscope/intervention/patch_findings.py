"""What patching comes to: a row for each place that was patched, and sentences that say how sure they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from attnscope.intervention.effects import describe_largest
from attnscope.intervention.session import ends_of
from attnscope.intervention.verdicts import SURE
from attnscope.measure.documents import LEAST
from attnscope.results.schema import Effect
from attnscope.support.arguments import reads, validated

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

_TITLES = {"attribution": "attribution patching", "eap_ig": "EAP-IG"}


@dataclass(frozen=True)
class PatchedPosition:
    """What was patched, and how far the prediction went."""

    layer: int | None  # place of the head; None where the residual stream was patched
    head: int | None  # place of the head; None where the residual stream was patched
    block: int | None  # after which block the residual stream was patched; None for heads
    position: int | None  # where, and what stands there; None where all positions were patched at once
    token: str | None  # where, and what stands there; None where all positions were patched at once
    effect: Effect  # change of answer minus wrong answer, logits
    recovered: Effect  # share of the way from the run that was patched to the other
    estimates: dict[str, float] = field(
        default_factory=dict[str, float]
    )  # estimates of the effect, by name, logits

    @property
    def name(self) -> str:
        """Short name."""
        what = f"block {self.block}" if self.block is not None else f"{self.layer}.{self.head}"
        return what if self.position is None else f"{what} at {self.position}"


@reads("patch")
@validated
def patched_positions(tree: xr.DataTree) -> list[PatchedPosition]:
    """One row for each place that was patched, those with the largest effect first."""
    places = tree["patched"].to_dataset()
    dims = places.effect.dims
    labels = {str(name): places[name].values for name in dims}
    tokens = places.token.values if "token" in places.coords else None
    estimators = places.estimator.values.tolist() if "estimate" in places else []
    ends = {
        name: [places[f"{name}{end}"].values for end in ("", "_low", "_high")]
        for name in ("effect", "recovered")
    }
    rows: list[PatchedPosition] = []
    for cell in np.argwhere(np.isfinite(places.effect.values)):
        at = tuple(int(index) for index in cell)
        place = {name: int(labels[str(name)][index]) for name, index in zip(dims, at, strict=True)}
        told = bool(places.shown.values[at]) if places.tested.values[at] else None
        both = [
            Effect(float(mean[at]), float(low[at]), float(high[at]), told)
            for mean, low, high in ends.values()
        ]
        rows.append(
            PatchedPosition(
                layer=place.get("layer"),
                head=place.get("head"),
                block=place.get("block"),
                position=place.get("position"),
                token=None if tokens is None else str(tokens[place["position"]]),
                effect=both[0],
                recovered=both[1],
                estimates={
                    name: float(places.estimate.values[(number, *at)])
                    for number, name in enumerate(estimators)
                },
            )
        )
    return sorted(rows, key=lambda place: -abs(place.effect.mean))


@reads("patch")
@validated
def patch_headline(tree: xr.DataTree) -> list[str]:
    """What patching comes to, in sentences that say how sure they are."""
    rows, pairs = patched_positions(tree), tree["pairs"].to_dataset()
    count = pairs.sizes["pair"]
    clean, corrupted = pairs.clean.values, pairs.corrupted.values
    told = (
        f"Answer minus wrong answer: {clean.mean():+.2f} logits in the clean runs, {corrupted.mean():+.2f} in the "
        f"corrupted ones (mean over {_pairs(count)}). The clean run prefers the answer in {int((clean > 0).sum())} of "
        f"{count}, the corrupted one the wrong answer in {int((corrupted < 0).sum())}."
    )
    sentences = [told.replace("-", "−"), *_unsolved(int((clean > 0).sum()), count)]
    source, base = ends_of(pairs)
    turned = int((np.sign(source - base) != np.sign(float((source - base).mean()))).sum())
    if turned:
        sentences.append(
            f"In {turned} of {_pairs(count)} the difference goes the other way than in the mean: look at them."
        )
    shown = [row for row in rows if row.effect.shown]
    kinds = "places" if rows[0].position is not None else "heads"
    effects = [row.effect for row in rows]
    largest = describe_largest(effects, lambda number, effect: _describe_share(rows[number], effect), kinds)
    sentences.append(" ".join([what_is_done(tree), *largest]))
    if count < LEAST:
        few = "One pair says" if count == 1 else f"{count} pairs say"
        sentences.append(
            f"No interval can be given: {few} nothing of others. Give {LEAST} or more of the same kind."
        )
    else:
        towards = sum(row.recovered.mean > 0 for row in shown)
        sentences.append(
            f"{len(shown)} of {len(rows)} {kinds} have a significant effect (p < 0.05, corrected, over {count} pairs): "
            f"{towards} towards the other run, {len(shown) - towards} away from it."
        )
        if np.isnan(rows[0].recovered.low):
            sentences.append(
                "Clean and corrupted runs are so alike in some pairs that a share of the way has no interval."
            )
    return [*sentences, *_describe_estimates(tree)]


def _unsolved(right: int, pairs: int) -> list[str]:
    """A warning where the clean runs prefer the answer no more often than a coin would."""
    chance = float(binom.sf(right - 1, pairs, 0.5))
    if right == pairs or chance <= SURE:
        return []
    said = f"A coin prefers it as often in {chance:.0%}: nothing shows that the model knows these answers."
    return [f"{said} Heads carry a difference of its output all the same, as they do with random weights."]


def _describe_share(row: PatchedPosition, effect: Effect) -> str:
    """How far the prediction goes, with an interval where the effect has one."""
    share = row.recovered if np.isfinite(effect.low) else Effect(row.recovered.mean)
    return (
        f"{describe_patched_share(share)}, with {row.name if row.block is not None else f'head {row.name}'}"
    )


@reads("patch")
@validated
def what_is_done(tree: xr.DataTree) -> str:
    """What was put where, in one sentence."""
    pairs = tree["pairs"].to_dataset()
    what = {"heads": "one head's output", "residual": "the residual stream after one block, at one position"}
    source, other = (
        ("clean", "corrupted") if pairs.attrs["direction"] == "denoising" else ("corrupted", "clean")
    )
    said = what[pairs.attrs["what"]]
    if "receiver" in pairs.attrs:
        through = pairs.attrs["receiver"]
        return (
            f"Patched: what {said} of the {source} run changes in head {through} alone, in the {other} run."
        )
    where = ", at one position" if "position" in pairs.dims and pairs.attrs["what"] == "heads" else ""
    return f"Patched: {said}{where}, of the {source} run into the {other} one."


@validated
def describe_patched_share(share: Effect) -> str:
    """How far a patched run went, with its interval."""
    text = f"{share.mean:.0%} of the way"
    if np.isfinite(share.low):
        text += f" ({share.low:.0%} to {share.high:.0%})"
    return text.replace("-", "−")


def _describe_estimates(tree: xr.DataTree) -> list[str]:
    if "agreement" not in tree.children:
        return []
    agreement = tree["agreement"].to_dataset()
    parts: list[str] = []
    for name in agreement.estimator.values.tolist():
        value, chance = (float(agreement[key].sel(estimator=name)) for key in ("rank_correlation", "chance"))
        if np.isfinite(value):
            doubt = "" if chance < SURE else f" (a random order as high in {chance:.0%} of cases)"
            parts.append(f"{_TITLES[name]} {value:.2f}{doubt}".replace("-", "−"))
    return [f"Rank correlation of estimates with what was measured: {'; '.join(parts)}."] if parts else []


def _pairs(count: int) -> str:
    return f"{count} pair{'s' * (count != 1)}"


@validated
def estimator_names(names: Sequence[str]) -> list[str]:
    """What estimators are called."""
    return [_TITLES[name] for name in names]
