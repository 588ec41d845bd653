"""`intervene`: ablate heads in the forward pass and measure the change of the predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from attnscope.capture.borrow import LoadedModel
from attnscope.explanation.analyses.verdict import WHY
from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.study import FEW_TEXTS, Study
from attnscope.intervention.ablation import effects, half_of, joint_ablation, measured_by, removal_curves, search_heads
from attnscope.intervention.contributions import norms_and_effective_weights
from attnscope.intervention.edits import Forbidden, knock_out, shuffled_weights
from attnscope.intervention.effects import agreement_of, heads_of
from attnscope.intervention.pairs import both_answers
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.questions import class_of
from attnscope.intervention.replacements import Ablation
from attnscope.measure.ranking import majority_names, peaks
from attnscope.measure.texts import statistics_of
from attnscope.opened import Opened, window_length
from attnscope.read.windows import Window
from attnscope.store.run import Batch, Job, Work
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell


@dataclass(eq=False)
class Effects(Job):
    """The effects of one call of `intervene`, and what is shown next to them."""

    opened: Opened
    session: PredictionSession
    ablations: Sequence[Ablation]
    alone: Sequence[tuple[int, int]] | None  # heads that are removed one at a time; None: all
    sets: Sequence[Sequence[tuple[int, int]]]  # heads that are removed together
    rule: Forbidden
    settings: Mapping[str, Any]  # as in the signature
    variants: int | None
    tell: Tell
    skipped: dict[str, str] = field(default_factory=dict[str, str])  # parts, with the reasons
    order: Sequence[tuple[int, int]] = ()  # heads whose removal in this order is measured too
    node = "effects"

    @property
    def share(self) -> float:
        """Share of the work that the effects take, about."""
        return 0.6 if self.settings["curves"] or self.settings["search"] else 0.9

    def work(self) -> Work:
        """A plain pass over each batch, and one for each head and ablation, from the layer of the head on."""
        session, kinds = self.session, len(self.ablations)
        each = [
            len([head for head in range(count) if self.alone is None or (layer, head) in self.alone])
            for layer, count in enumerate(session.heads)
        ]
        ablated = sum(count * (1 - layer / len(each)) for layer, count in enumerate(each)) * kinds
        estimates = 3 * (1 + self.settings["steps"]) if self.settings["steps"] else 0
        has_all = session.kind in {"next", "translation"} and not session.answers
        return session.work(
            self.variants,
            has_head=has_all,
            logits=4 * has_all,  # of the unchanged pass, their probabilities, and what a score needs
            states=2,  # outputs of blocks and of heads
            passes=1 + ("mean" in self.ablations) + ablated + estimates,
            gradients=bool(estimates),
            uncounted="what explains heads, sets, curves and searches",
        )

    def batches(self) -> Iterator[Batch]:
        count = len(self.session.windows)
        for part in self.session.slices():
            yield Batch(range(part.start, part.stop), part)
            self.tell(Progress("ablating heads", self.share * part.stop / count, {"windows": part.stop}))

    def measure(self, batch: Batch) -> xr.Dataset:
        part, count = batch.inputs, len(self.session.windows)

        def tell(share: float) -> None:
            done = part.start + share * (part.stop - part.start)
            self.tell(Progress("ablating heads", self.share * done / count, {"windows": part.start}))

        how: Any = {"variants": self.variants, "steps": self.settings["steps"], "cells": self.alone, "tell": tell}
        return effects(self.session, part, self.ablations, **how)

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        session, settings, whole = self.session, self.settings, self.joined(measured)
        loaded, windows = session.loaded, list(session.windows)
        band, seed = settings["band"], settings["seed"]
        nodes = {self.node: whole}

        def keep(name: str, make: Callable[[], xr.Dataset]) -> None:
            nodes[name] = self.made(name, make)

        def keep_if_defined(name: str, make: Callable[[], xr.Dataset]) -> None:
            try:
                keep(name, make)
            except AttnscopeError as error:
                self.skipped[name] = str(error)

        def tell(what: str, share: float) -> None:
            self.tell(Progress(what, self.share + share))

        if self.sets:
            drawn: Any = {name: settings[name] for name in ("random", "matched") if name in settings}
            tell("removing chosen heads together", 0.0)
            keep("together", lambda: joint_ablation(session, self.sets, self.ablations, whole, seed=seed, **drawn))
        if self.alone == []:
            self.notes["skipped"] = json.dumps(self.skipped)
            return nodes
        keep("heads", lambda: heads_of(whole, seed=seed))
        if settings["steps"]:
            keep("agreement", lambda: agreement_of(whole, seed=seed))
        tell("measuring attention", 0.0)
        if not session.given:  # images and sounds have no offsets of tokens
            keep("where", lambda: attention_of_heads(loaded, windows, band, self.opened))
        if settings["why"] and not session.given:
            tell("explaining attention", 0.03)
            keep_if_defined("why", lambda: explanations_of_heads(loaded, windows, band, seed, self.opened))
            keep_if_defined("trust", lambda: trust_in_weights(loaded, windows, band))
        if settings["why"]:
            keep("shuffled", lambda: shuffled_weights(session, seed=seed, cells=self.alone))
        if self.rule:
            tell("forbidding attention", 0.08)
            keep("forbidden", lambda: knock_out(session, self.rule, renormalise=settings["renormalise"], seed=seed))
        if settings["search"]:
            tell("searching with random sets", 0.1)
            keep("search", lambda: search_heads(session, seed=seed))
        if settings["curves"]:
            tell("removing heads together", 0.2)
            order = self.order
            keep_if_defined(
                "curves", lambda: _curves(session, whole, nodes.get("where", {}), self.ablations, seed, order)
            )
        self.tell(Progress("done", 1.0))
        self.notes["skipped"] = json.dumps(self.skipped)
        return nodes


def ask_for_answers(session: PredictionSession, metric: Sequence[tuple[Any, Any]]) -> None:
    """Let each window ask for its right and wrong answer, or answers."""
    windows, masked = session.windows, session.kind == "masked"
    if len(metric) not in {1, len(windows)} or any(len(pair) != 2 for pair in metric):  # noqa: PLR2004
        raise AttnscopeError(
            f"found {len(metric)} answers (metric) and {len(windows)} windows; expected (right, wrong) for each, or "
            "once"
        )
    if session.kind == "output":
        raise AttnscopeError(f"{type(session.model).__name__} predicts no answers: give a function as metric")
    if session.kind == "label":
        labels = [[[class_of(word, session.model, "metric")] for word in words] for words in metric]
        session.answers = labels * (len(windows) // len(labels))
        return
    if session.parts:
        raise AttnscopeError("answers (metric) are predicted at one position: leave out part (--part)")
    session.are_several = several = not all(isinstance(side, str) for pair in metric for side in pair)
    tokenizer = session.loaded.tokenizer
    both = [
        both_answers(
            tokenizer,
            [side if isinstance(side, str) else tuple(side) for side in words],
            "metric",
            masked=masked,
            are_several=several,
        )
        for words in metric
    ]
    session.answers = both * (len(windows) // len(both))
    longest = window_length(session.loaded, None)
    for window, answers in zip(windows, session.answers, strict=True):
        length = len(window.target or window) + (0 if several else max(map(len, answers)) - 1)
        if length > longest:
            raise AttnscopeError(
                f"{window.source} and its answer have {length} tokens; {session.loaded.name} takes at most {longest}. "
                "Shorten the text"
            )


def _curves(
    session: PredictionSession,
    measured: xr.Dataset,
    where: Mapping[Any, Any],
    ablations: Sequence[Ablation],
    seed: int,
    chosen: Sequence[tuple[int, int]],
) -> xr.Dataset:
    """Removal curves in the order of the effects, of the estimates and of statistics of `scan`."""
    ablation: Ablation = "mean" if "mean" in ablations else ablations[0]
    halves = half_of(session.documents)
    means = [measured.isel(window=np.flatnonzero(halves == half)) for half in (0, 1)]
    means = [part.sel(ablation=ablation).mean("window") for part in means]
    measure, _, _, sign = measured_by(session)
    orders = {"effect": [sign * part[measure].values if sign else abs(part[measure].values) for part in means]}
    if "estimate" in measured:
        for name in ("attribution", "integrated"):
            orders[name] = [part.estimate.sel(estimator=name).values for part in means]
        orders["importance"] = [part.importance.values for part in means]
    for name, sign in (("max_weight", 1), ("entropy", -1), ("gini_simpson", -1), ("first_token", -1)):
        if name in where:  # weights hardly differ between halves of the texts: one order for both
            orders[f"{'low ' if sign < 0 else ''}{name}"] = [sign * where[name].values] * 2
    return removal_curves(session, orders, ablation=ablation, seed=seed, chosen=chosen)


_MEANS = ("profile", "entropy", "first_token", "special_tokens", "max_weight", "mean_offset", "gini_simpson")
_ENOUGH = 8  # full windows that are needed to separate position from text


def attention_of_heads(loaded: LoadedModel, windows: list[Window], band: int, session: Opened) -> xr.Dataset:
    """Label, peak and mean statistics of every head, as `attnscope.scan` measures them on these windows."""
    results = statistics_of(loaded, windows, band=band, session=session)
    means = xr.Dataset({name: results[name].mean("window", keep_attrs=True) for name in _MEANS if name in results})
    names = majority_names(results)
    if names is not None:
        means["label"] = (("layer", "head"), np.array(names, dtype=object))
    top = peaks(results)
    return means if top is None else means.merge(top, combine_attrs="override")


def explanations_of_heads(
    loaded: LoadedModel, windows: list[Window], band: int, seed: int, session: Opened
) -> xr.Dataset:
    """Share of position, and offsets from weights and scores, as `attnscope.explain` measures them."""
    length = max(map(len, windows))
    whole = [window for window in windows if len(window) == length]
    lacking = _lacking(windows, len(whole), length)
    if lacking:
        raise AttnscopeError(lacking)
    study = Study(loaded.model, whole, band=min(band, length - 1), seed=seed, loaded=loaded)
    verdict = session.kept(study.key)
    if verdict is None:
        study.run([analysis for analysis in ANALYSES if analysis.name == "verdict"], among=ANALYSES)
        verdict = study.results.get("verdict")
    if verdict is None:
        raise AttnscopeError(study.reasons.get("verdict", "it is not defined for this model"))
    return verdict[[name for name in WHY if name in verdict]]


def _lacking(windows: list[Window], whole: int, length: int) -> str:
    """Why these windows do not suffice for an explanation, and what helps; empty if they do."""
    if any(window.target is not None for window in windows):
        return "explanations need running text, and these texts have translations. Use attnscope explain"
    if len(windows) < _ENOUGH:
        return (
            f"explanations need {_ENOUGH} or more windows of equal length, not {len(windows)}. "
            f"Use a larger limit (--limit {_ENOUGH}) or more text or shorter windows"
        )
    if whole < _ENOUGH:
        return (
            f"explanations need {_ENOUGH} or more windows of equal length, and {whole} of {len(windows)} have {length} "
            "tokens. Use running text, a shorter window (--window), or attnscope explain"
        )
    return ""


def trust_in_weights(loaded: LoadedModel, windows: list[Window], band: int) -> xr.Dataset:
    """Peak of each head by norms (Kobayashi et al. 2020), and how far its output determines its weights."""
    study = Study(loaded.model, windows[:FEW_TEXTS], loaded=loaded)
    shortest = min(map(len, study.windows))
    contributions = norms_and_effective_weights(study, min(band, max(1, shortest - 1)))
    profile = contributions.profile_norms.mean("window")
    top = profile.fillna(-1).argmax("offset")
    measured = profile.notnull().any("offset")
    return xr.Dataset(
        {
            "norm_offset": contributions.offset[top].drop_vars("offset").astype(float).where(measured),
            "norm_weight": profile.max("offset"),
            "null_share": contributions.null_share.mean("window"),
            "identifiable": contributions.identifiable.mean("window"),
        }
    )
