"""Where, why, whether: one line for each head, and what all of them come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnscope._arguments import typed
from attnscope._numbers import count
from attnscope._returned import reads
from attnscope.faithfulness._effect import Effect, largest_said, said_effect
from attnscope.faithfulness._forbidden import HARDLY

if TYPE_CHECKING:
    import xarray as xr

SHARP_SHARE = 0.5  # share of all weight at one offset, from which a head is called sharp here
_FOUND = 5  # heads named of a search
SURE = 0.05  # chance, below which an agreement of orders is told of without a warning


@dataclass(frozen=True)
class HeadVerdict:
    """Where a head looks, why, and whether it matters.

    Attributes
    ----------
    layer, head, attention
        Which head, and whether it looks at its own text, its past, or across.
    kind
        Name of its kind, as `attnscope.scan` gives it.
    peak_offset, peak_weight
        The offset with the largest share of all weight, tokens, and that share.
    position_share
        Share of the scores' variance over offsets that position explains; None where that is not known.
    scores_agree
        Whether both readings of the scores lie at the weights' offset; None where that was not asked.
    norm_offset, norm_weight
        The same as `peak_offset` and `peak_weight` of norm-based weights, which count the size of what is weighed; None
        where they are not known.
    null_share
        Share of the weights' squares that the head's output does not see; None where it is not known.
    shuffled
        What the loss does when the head's weights are shuffled in each row; None where that was not tried.
    effects
        By ablation.
    forbidden, forbidden_weight
        The same where the head may not look at certain places, and the share of its weight that lies there; None where
        nothing was forbidden, or it is not defined for the head.
    searched
        Change of the loss without it, as a search by random sets finds; None without a search.
    importance
        Size of the loss's slope in a gate on the head, nats; None without estimates.

    Examples
    --------
    >>> worse = Effect(0.5, 0.25, 0.75, shown=True)
    >>> verdict = HeadVerdict(0, 3, "self", "previous", -1.0, 0.9, None, None, effects={"zero": worse, "mean": worse})
    >>> verdict.matters  # every ablation raises the loss
    1
    """

    layer: int
    head: int
    attention: str
    kind: str
    peak_offset: float
    peak_weight: float
    position_share: float | None
    scores_agree: bool | None
    norm_offset: float | None = None
    norm_weight: float | None = None
    null_share: float | None = None
    shuffled: Effect | None = None
    effects: dict[str, Effect] = field(default_factory=dict[str, Effect])
    searched: float | None = None
    importance: float | None = None
    forbidden: Effect | None = None
    forbidden_weight: float | None = None

    @property
    def matters(self) -> int | None:
        """1 where every ablation is shown to raise the loss, -1 where every one is shown to lower it, else 0.

        None where that was not tested, of fewer than 6 windows.
        """
        if any(effect.shown is None for effect in self.effects.values()):
            return None
        signs = {np.sign(effect.mean) if effect.shown else 0 for effect in self.effects.values()}
        return int(signs.pop()) if len(signs) == 1 else 0

    @property
    def largest(self) -> float:
        """Size of the largest effect, nats."""
        return max((abs(effect.mean) for effect in self.effects.values()), default=0.0)


@typed
def effect_of(values: xr.Dataset, effect: str = "effect", told: str = "") -> Effect:
    """The effect of one head, or one set of heads, with what is told of it.

    Parameters
    ----------
    values
        A result at one place.
    effect
        Name of the effect; those of its interval's ends have ``_low`` and ``_high`` behind it.
    told
        What stands before ``shown`` and ``tested`` in their names.

    Examples
    --------
    >>> import xarray as xr
    >>> few = {"effect": 0.5, "effect_low": np.nan, "effect_high": np.nan, "shown": False, "tested": False}
    >>> effect_of(xr.Dataset(few))
    Effect(mean=0.5, low=nan, high=nan, shown=None)
    """
    mean, low, high = (float(values[f"{effect}{end}"]) for end in ("", "_low", "_high"))
    return Effect(mean, low, high, bool(values[f"{told}shown"]) if values[f"{told}tested"] else None)


@reads("intervene")
@typed
def verdicts(tree: xr.DataTree) -> list[HeadVerdict]:
    """One verdict for each head, those with the largest effect first.

    Parameters
    ----------
    tree
        From `intervene`.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> first = verdicts(intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False))[0]
    >>> first.kind, first.peak_offset
    ('next', 1.0)
    """
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
@typed
def headline(tree: xr.DataTree) -> list[str]:
    """What the verdicts come to, in sentences that say how sure they are.

    Parameters
    ----------
    tree
        From `intervene`.

    Examples
    --------
    >>> from attnscope.faithfulness import intervene
    >>> headline(intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False))[-1]
    'The largest change is +1.924 nats, without head 0.1 (zero ablation).'
    """
    rows = verdicts(tree)
    heads, effects = tree["heads"].to_dataset(), tree["effects"].to_dataset()
    ablations = [str(name) for name in heads.ablation.values]
    texts, unit = int(heads.attrs["texts"]), str(heads.attrs["intervals_over"])
    known = bool(np.isfinite(heads.effect_low.values).any())
    loss, right = float(effects.loss.mean()), float(effects.accuracy.mean())
    sentences = [
        *_guess_said(effects, loss),
        f"The loss is {loss:.3f} nats a token; {right:.0%} of the tokens asked for are right.",
    ]
    if known:
        over = count(heads.attrs["documents"], "document") if unit == "documents" else count(texts, "window")
        sentences += _shown(rows, ablations, over)
    else:
        sentences.append(
            f"No interval can be given: {count(texts, 'window')} cannot tell of others. Give 6 or more."
        )
    sentences += _largest_said(rows, several=len(ablations) > 1)
    return [*sentences, *_search_said(tree, rows), *_forbidden_said(tree, rows), *_estimates_said(tree)]


def _guess_said(effects: xr.Dataset, loss: float) -> list[str]:
    """That the model is worse than guessing, where it is."""
    guess = float(effects.guess_loss.mean()) if "guess_loss" in effects else np.inf
    if loss <= guess:
        return []
    said = f"This model predicts worse than guessing: equal probabilities of all tokens lose {guess:.3f} nats a token."
    return [f"{said} Changes of its loss do not show that a head is useful."]


def _largest_said(rows: Sequence[HeadVerdict], several: bool) -> list[str]:
    named = [(row, name, effect) for row in rows for name, effect in row.effects.items()]

    def said(number: int, effect: Effect) -> str:
        row, name, _ = named[number]
        return f"{said_effect(effect)} nats, without head {row.layer}.{row.head} ({name} ablation)"

    return largest_said([effect for *_, effect in named], said, "heads and ablations" if several else "heads")


def _search_said(tree: xr.DataTree, rows: Sequence[HeadVerdict]) -> list[str]:
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


def _forbidden_said(tree: xr.DataTree, rows: Sequence[HeadVerdict]) -> list[str]:
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
        return (
            f"{said_effect(effect)} nats, where head {row.layer}.{row.head} may not look at {named}; {there}"
        )

    return [*sentences, *largest_said([effect for _, effect in known], said, "heads")]


def _estimates_said(tree: xr.DataTree) -> list[str]:
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
