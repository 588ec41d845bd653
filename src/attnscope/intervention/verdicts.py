"""Where, why, whether: one line for each head, and what all of them come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from scipy import stats

from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.study import Study
from attnscope.intervention.contributions.run import contribution_profiles
from attnscope.intervention.edits import HARDLY
from attnscope.intervention.effects import Effect, describe_effect, describe_largest
from attnscope.intervention.given import InterventionInput
from attnscope.measure.documents import units_of
from attnscope.measure.intervals import by_document
from attnscope.measure.questions import majority_names
from attnscope.measure.ranking import peaks
from attnscope.measure.texts import statistics_of
from attnscope.support.arguments import reads, validated
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

if TYPE_CHECKING:
    from attnscope.capture.loaded import LoadedModel
    from attnscope.read.windows import Window

SHARP_SHARE = 0.5  # share of all weight at one offset, from which a head is called sharp here
_FOUND = 5  # heads named of a search
SURE = 0.05  # chance, below which an agreement of orders is told of without a warning


@dataclass(frozen=True)
class HeadVerdict:
    """Where a head looks, why, and whether it matters."""

    layer: int  # which head, and whether it looks at its own text, its past, or across
    head: int  # which head, and whether it looks at its own text, its past, or across
    attention: str  # which head, and whether it looks at its own text, its past, or across
    kind: str  # name of its kind, as `attnscope.scan` gives it
    peak_offset: float  # the offset with the largest share of all weight, tokens, and that share
    peak_weight: float  # the offset with the largest share of all weight, tokens, and that share
    # share of the scores' variance over offsets that position explains; None where that is not known
    position_share: float | None
    # whether both readings of the scores lie at the weights' offset; None where that was not asked
    scores_agree: bool | None
    # the same as `peak_offset` and `peak_weight` of norm-based weights, which count the size of what is weighed; None
    # where they are not known
    norm_offset: float | None = None
    # the same as `peak_offset` and `peak_weight` of norm-based weights, which count the size of what is weighed; None
    # where they are not known
    norm_weight: float | None = None
    # share of the weights' squares that the head's output does not see; None where it is not known
    null_share: float | None = None
    # what the loss does when the head's weights are shuffled in each row; None where that was not tried
    shuffled: Effect | None = None
    effects: dict[str, Effect] = field(default_factory=dict[str, Effect])  # by ablation
    # change of the loss without it, as a search by random sets finds; None without a search
    searched: float | None = None
    importance: float | None = (
        None  # size of the loss's slope in a gate on the head, nats; None without estimates
    )
    # the same where the head may not look at certain places, and the share of its weight that lies there; None where
    # nothing was forbidden, or it is not defined for the head
    forbidden: Effect | None = None
    # the same where the head may not look at certain places, and the share of its weight that lies there; None where
    # nothing was forbidden, or it is not defined for the head
    forbidden_weight: float | None = None

    @property
    def matters(self) -> int | None:
        """1 where every ablation is shown to raise the loss, -1 where every one is shown to lower it, else 0."""
        if any(effect.shown is None for effect in self.effects.values()):
            return None
        signs = {np.sign(effect.mean) if effect.shown else 0 for effect in self.effects.values()}
        return int(signs.pop()) if len(signs) == 1 else 0

    @property
    def largest(self) -> float:
        """Size of the largest effect, nats."""
        return max((abs(effect.mean) for effect in self.effects.values()), default=0.0)


@validated
def effect_of(values: xr.Dataset, effect: str = "effect", told: str = "") -> Effect:
    """The effect of one head, or one set of heads, with what is told of it."""
    mean, low, high = (float(values[f"{effect}{end}"]) for end in ("", "_low", "_high"))
    return Effect(mean, low, high, bool(values[f"{told}shown"]) if values[f"{told}tested"] else None)


@reads("intervene")
@validated
def verdicts(tree: xr.DataTree) -> list[HeadVerdict]:
    """One verdict for each head, those with the largest effect first."""
    heads, where = tree["heads"].to_dataset(), tree["where"].to_dataset()
    why = tree["why"].to_dataset() if "why" in tree.children else None
    trust = tree["trust"].to_dataset() if "trust" in tree.children else None
    forbidden = tree["forbidden"].to_dataset() if "forbidden" in tree.children else None
    shuffled = tree["shuffled"].to_dataset() if "shuffled" in tree.children else None
    search = tree["search"].to_dataset() if "search" in tree.children else None
    kinds = heads.layer_kind.values.tolist()
    rows: list[HeadVerdict] = []
    for row, layer in enumerate(heads.layer.values.tolist()):
        for head in range(heads.sizes["head"]):
            if np.isnan(heads.effect.values[0, row, head]):
                continue
            at = {"layer": row, "head": head}
            rows.append(
                HeadVerdict(
                    layer=int(layer),
                    head=head,
                    attention=str(kinds[row]),
                    kind=str(where.kind.isel(at).item()) if "kind" in where else "",
                    peak_offset=float(where.peak_offset.isel(at)) if "peak_offset" in where else float("nan"),
                    peak_weight=float(where.peak_weight.isel(at)) if "peak_weight" in where else float("nan"),
                    position_share=_of(why, "position_share", layer, head),
                    scores_agree=_agrees(why, layer, head),
                    norm_offset=_of(trust, "norm_offset", layer, head),
                    norm_weight=_of(trust, "norm_weight", layer, head),
                    null_share=_of(trust, "null_share", layer, head),
                    shuffled=_shuffled(shuffled, layer, head),
                    effects={
                        str(name): _effect(heads, place, at)
                        for place, name in enumerate(heads.ablation.values)
                    },
                    searched=None if search is None else float(search.searched.values[row, head]),
                    importance=float(heads.importance.isel(at)) if "importance" in heads else None,
                    forbidden=_forbidden(forbidden, at),
                    forbidden_weight=_of(forbidden, "forbidden_weight", layer, head),
                )
            )
    return sorted(rows, key=lambda row: -row.largest)


@reads("intervene")
@validated
def headline(tree: xr.DataTree) -> list[str]:
    """What the verdicts come to, in sentences that say how sure they are."""
    rows = verdicts(tree)
    heads, effects = tree["heads"].to_dataset(), tree["effects"].to_dataset()
    ablations = [str(name) for name in heads.ablation.values]
    texts, unit = int(heads.attrs["texts"]), str(heads.attrs["intervals_over"])
    known = bool(np.isfinite(heads.effect_low.values).any())
    loss, right = float(effects.loss.mean()), float(effects.accuracy.mean())
    sentences = [
        *_describe_guess(effects, loss),
        f"The loss is {loss:.3f} nats a token; {right:.0%} of the tokens asked for are right.",
    ]
    if known:
        over = count(heads.attrs["documents"], "document") if unit == "documents" else count(texts, "window")
        sentences += _shown(rows, ablations, over)
    else:
        sentences.append(
            f"No interval can be given: {count(texts, 'window')} cannot tell of others. Give 6 or more."
        )
    sentences += _describe_largest(rows, several=len(ablations) > 1)
    return [
        *sentences,
        *_describe_search(tree, rows),
        *_describe_forbidden(tree, rows),
        *_describe_estimates(tree),
    ]


def _describe_guess(effects: xr.Dataset, loss: float) -> list[str]:
    """That the model is worse than guessing, where it is."""
    guess = float(effects.guess_loss.mean()) if "guess_loss" in effects else np.inf
    if loss <= guess:
        return []
    said = f"This model predicts worse than guessing: equal probabilities of all tokens lose {guess:.3f} nats a token."
    return [f"{said} Changes of its loss do not show that a head is useful."]


def _describe_largest(rows: Sequence[HeadVerdict], several: bool) -> list[str]:
    named = [(row, name, effect) for row in rows for name, effect in row.effects.items()]

    def said(number: int, effect: Effect) -> str:
        row, name, _ = named[number]
        return f"{describe_effect(effect)} nats, without head {row.layer}.{row.head} ({name} ablation)"

    return describe_largest(
        [effect for *_, effect in named], said, "heads and ablations" if several else "heads"
    )


def _describe_search(tree: xr.DataTree, rows: Sequence[HeadVerdict]) -> list[str]:
    """Which heads a search by random sets finds, and how they lie beside those taken out alone."""
    if "search" not in tree.children:
        return []
    search = tree["search"].attrs
    first = sorted((row for row in rows if row.searched), key=lambda row: -abs(row.searched or 0))[:_FOUND]
    removed = int(search["removed"])
    sets = f"{removed} heads at once" if removed > 1 else "one head at once, as the model is small"
    said = f"Search by random sets ({search['passes']} passes, {sets}): "
    if not first:
        return [f"{said}no head is needed to account for what they change."]
    named = ", ".join(f"{row.layer}.{row.head} ({row.searched:+.3f})".replace("-", "−") for row in first)
    told = sum(
        row.matters is not None and any(effect.shown for effect in row.effects.values()) for row in first
    )
    tested = any(row.matters is not None for row in first)
    beside = f"{told or 'none'} of these {'is' if told < 2 else 'are'} told from 0 when taken out alone"  # noqa: PLR2004
    rest = f"; {beside}" if tested else ""
    return [f"{said}it gives most to {named} nats. It is an estimate without a test{rest}."]


def _shown(rows: Sequence[HeadVerdict], ablations: Sequence[str], over: str) -> list[str]:
    """How many heads have an effect that is told from 0, and how many of the sharp ones have none."""
    worse, better = (sum(row.matters == sign for row in rows) for sign in (1, -1))
    some = sum(row.matters == 0 and any(effect.shown for effect in row.effects.values()) for row in rows)
    idle = len(rows) - worse - better - some
    heads, several = count(len(rows), "head"), len(ablations) > 1
    looked = f"(p < 0.05, corrected for all heads{' and ablations' * several}, over {over})"
    sentences: list[str] = []
    if idle == len(rows):
        sentences.append(
            f"Of {heads}, none is shown to change the loss when it is taken out, by {_listed(ablations, 'or')} "
            f"ablation {looked}."
        )
    else:
        each = "each of " * several
        rest = [f"for {some} more it depends on the ablation"] * (some > 0)
        rest += [f"{idle} {'is' if idle == 1 else 'are'} not shown to change it"] * (idle > 0)
        sentences.append(
            f"Of {heads} taken out one at a time, {worse} {_verb('raise', worse)} the loss and {better} "
            f"{_verb('lower', better)} it under {each}{_listed(ablations)} ablation"
            f"{''.join(f'; {part}' for part in rest)} {looked}."
        )
    if several and idle < len(rows):
        counted = "; ".join(_counted(rows, name) for name in ablations)
        sentences.append(f"Heads whose absence raises and lowers the loss: {counted}.")
    sharp = [row for row in rows if row.peak_weight >= SHARP_SHARE]
    if sharp:
        needed = sum(row.matters == 1 for row in sharp)
        many = "head puts" if len(sharp) == 1 else "heads put"
        sentences.append(
            f"{len(sharp)} {many} half of all weight or more at one offset; {needed} of them "
            f"{'is' if needed == 1 else 'are'} shown to be needed."
        )
    return sentences


def _counted(rows: Sequence[HeadVerdict], name: str) -> str:
    """How many heads' effects under one ablation are told from 0, above and below it."""
    shown = [row.effects[name].mean for row in rows if row.effects[name].shown]
    return f"{name} {sum(mean > 0 for mean in shown)} and {sum(mean < 0 for mean in shown)}"


def _describe_forbidden(tree: xr.DataTree, rows: Sequence[HeadVerdict]) -> list[str]:
    """How many heads the predictions need to look where they may not."""
    if "forbidden" not in tree.children:
        return []
    forbidden = tree["forbidden"].to_dataset()
    named = _listed([str(place).replace("-", "−") for place in forbidden.attrs["forbid"]])
    scaled = "the rest scaled up" if forbidden.attrs["renormalise"] else "the rest as it is"
    known = [(row, row.forbidden) for row in rows if row.forbidden is not None]
    shown = [effect.mean for _, effect in known if effect.shown]
    idle = sum((row.forbidden_weight or 0) < HARDLY for row, _ in known)
    sentences: list[str] = []
    if np.isfinite(forbidden.effect_low.values).any():
        rises = sum(mean > 0 for mean in shown)
        heads = count(len(known), "head")
        sentences.append(
            f"Where one head may not look at {named} ({scaled}), the loss rises for {rises} of {heads} and "
            f"falls for {len(shown) - rises}; {idle} put{'s' * (idle == 1)} less than {HARDLY:.0%} of "
            f"{'its' if idle == 1 else 'their'} weight there, and can hardly change."
        )

    def said(number: int, effect: Effect) -> str:
        row = known[number][0]
        there = f"{row.forbidden_weight:.0%} of its weight lies there"
        return f"{describe_effect(effect)} nats, where head {row.layer}.{row.head} may not look at {named}; {there}"

    return [*sentences, *describe_largest([effect for _, effect in known], said, "heads")]


def _describe_estimates(tree: xr.DataTree) -> list[str]:
    if "agreement" not in tree.children:
        return []
    agreement = tree["agreement"].to_dataset()
    ablation = "mean" if "mean" in agreement.ablation.values else str(agreement.ablation.values[0])
    parts: list[str] = []
    for name in ("attribution", "integrated", "importance"):
        estimates = agreement.sel(estimator=name, ablation=ablation)
        value, chance = (float(estimates[key]) for key in ("rank_correlation", "chance"))
        if np.isfinite(value):
            doubt = "" if chance < SURE else f" (a random order as high in {chance:.0%} of cases)"
            parts.append(f"{_NAMES[name]} {value:.2f}{doubt}".replace("-", "−"))
    if not parts:
        return []
    heads = tree["heads"].to_dataset()
    known = int(np.isfinite(heads.effect.sel(ablation=ablation)).sum())
    of = f"{count(known, 'head')} over {count(int(heads.attrs['texts']), 'window')}"
    return [f"Rank correlation of estimates with the {ablation} ablation ({of}): {'; '.join(parts)}."]


_NAMES = {
    "attribution": "attribution patching",
    "integrated": "integrated gradients",
    "importance": "gradient importance",
}


def _effect(heads: xr.Dataset, ablation: int, at: dict[str, int]) -> Effect:
    return effect_of(heads.isel({"ablation": ablation, **at}))


def _forbidden(forbidden: xr.Dataset | None, at: dict[str, int]) -> Effect | None:
    if forbidden is None or not np.isfinite(forbidden.effect.isel(at)):
        return None
    return effect_of(forbidden.isel(at))


def _shuffled(shuffled: xr.Dataset | None, layer: int, head: int) -> Effect | None:
    if shuffled is None or _of(shuffled, "shuffled_loss", layer, head) is None:
        return None
    return effect_of(shuffled.sel(layer=layer, head=head), "shuffled_loss", "shuffled_")


def _of(why: xr.Dataset | None, name: str, layer: int, head: int) -> float | None:
    if why is None or name not in why or layer not in why.layer.values or head not in why["head"].values:
        return None
    value = float(why[name].sel(layer=layer, head=head))
    return value if np.isfinite(value) else None


def _agrees(why: xr.Dataset | None, layer: int, head: int) -> bool | None:
    """None of a head that is not asked, as in `explain`."""
    return bool(_of(why, "agree", layer, head)) if _of(why, "asked", layer, head) else None


def _verb(verb: str, number: int) -> str:
    return f"{verb}{'s' * (number == 1)}"


def _listed(names: Sequence[str], last: str = "and") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


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
        coords={name: values for name, values in effects.coords.items() if "text" not in values.dims},
        attrs={"documents": len(set(documents)), "texts": len(documents), "intervals_over": called},
    )
    for name in ("kl", "accuracy_change", "estimate", "importance"):
        if name in effects:
            heads[name] = effects[name].mean("text", keep_attrs=True)
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


@validated
def attention_of_heads(loaded: LoadedModel, windows: list[Window], *, band: int = 10) -> xr.Dataset:
    """Kind, peak and mean statistics of every head, as `attnscope.scan` finds them on these windows."""
    results = statistics_of(loaded, windows, band=band)
    beside = xr.Dataset(
        {name: results[name].mean("text", keep_attrs=True) for name in _MEANS if name in results}
    )
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


@validated
def trust_in_weights(
    loaded: LoadedModel, windows: list[Window], *, band: int = 10
) -> tuple[xr.Dataset | None, str]:
    """Whether what weights say of a head survives when the size of what they weigh is counted (Kobayashi et al.
    2020).
    """
    given = InterventionInput(
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
