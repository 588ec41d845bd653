"""`intervene`: does a head matter? Heads taken out of the forward pass, and what the predictions lose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, preserve_model_state
from attnscope.capture.load import load_model, signature_of
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.parameters import StudyReading, loading
from attnscope.explanation.study import DEFAULT_TEXTS
from attnscope.intervention.ablation import checked_sets, effects, half_of, joint_ablation, removal_curves, search_heads
from attnscope.intervention.edits import check_rule, describe_rule, rule_of, shuffled_weights, without_forbidden
from attnscope.intervention.per_head import (
    agreement_of,
    attention_of_heads,
    explanations_of_heads,
    heads_of,
    trust_in_weights,
)
from attnscope.intervention.predictions import ABLATIONS, Ablation, prediction_session
from attnscope.intervention.stored import StoredParts, load_intervention, tree_in_folder
from attnscope.measure.texts import window_length
from attnscope.read.encoded import Sources, texts_and_targets
from attnscope.store.arrays import in_a_row
from attnscope.store.files import local_out
from attnscope.store.runs import RunFolder
from attnscope.store.units import Done, Share, completed, keep_each, task_for
from attnscope.support.arguments import Count, validated
from attnscope.support.checks import STEPS, check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.intervention.edits import Forbidden
    from attnscope.intervention.predictions import PredictionSession
    from attnscope.read.windows import Window

LONGEST = 512  # tokens of a window where none is asked for: every head of every window is a pass


@validated(limit=DEFAULT_TEXTS)
@local_out
@preserve_model_state
def intervene(
    model: Model | None = None,
    texts: Sources = None,
    *,
    batch_size: Count | None = None,
    variants: Count | None = None,
    ablations: Sequence[str] = ABLATIONS,
    steps: int = 5,
    search: bool = False,
    curves: bool = False,
    together: Sequence[Sequence[tuple[int, int]]] = (),
    forbid_offsets: Sequence[int] = (),
    forbid_first: bool = False,
    forbid_tokens: Sequence[str] = (),
    renormalise: bool = True,
    why: bool = True,
    band: Count = 10,
    **reading: Unpack[StudyReading],
) -> xr.DataTree:
    """Take every head out of a model, one at a time, and measure what its predictions lose.

    A masked language model is asked for 15% of the words behind masks, a causal one for the token after each, an
    encoder-decoder for the translation.

    Parameters
    ----------
    model, texts
        See `attnscope.scan`.
    task
        Which part of the effects this process measures, as in `attnscope.scan`: every N-th batch. The last one to
        finish makes what stands beside them.
    window
        Tokens of a window; by default what the model takes, at most 512.
    batch_size
        Windows at a time; by default about 1,024 tokens' worth, two at least.
    variants
        Most variants of a batch side by side: memory grows with them. By default as many as the device is quickest
        with, and 256 MiB of logits at most.
    ablations
        What stands in for a head's output: ``zero``, ``mean`` (of the head over all texts), ``resample`` (what it gives
        on another text).
    steps
        Points of the integrated gradients; 0 for no estimates beside the effects.
    search
        Whether to search for the heads that matter by random sets too: see `search_heads`.
    curves
        Whether to remove heads one after the other in several orders too: see `removal_curves`.
    together
        Sets of heads, ``(layer, head)`` each, that are taken out at once too: see `joint_ablation`.
    forbid_offsets, forbid_first, forbid_tokens
        Where each head, alone, may not look: offsets (key minus query; -1 is the token before), the first token, tokens
        by their texts. One rule of all of them, measured beside the ablations: see `knock_out`.
    renormalise
        Whether what a rule leaves of a row of weights is scaled to its sum before.
    why
        Whether to explain where each head looks, as `attnscope.explain` does, on the same windows, and to ask whether
        its weights can be trusted.
    band
        Largest offset of the profiles.

    Returns
    -------
    xarray.DataTree
        ``effects``: ``loss_change``, ``kl`` (nats), ``accuracy_change`` of each text ``(text, ablation, layer, head)``,
        estimates ``(text, estimator, ablation, layer, head)``, and ``loss`` and ``accuracy`` of the model as it is.
        ``heads``: means with intervals over documents, see `heads_of`. ``agreement``: how well estimates rank heads,
        see `agreement_of`. ``where`` and ``why``: what `scan` and `explain` say of the heads; ``trust``: see
        `trust_in_weights`; ``shuffled``: see `shuffled_weights`. Where asked for, ``forbidden`` (see
        `without_forbidden`), ``search`` and ``curves``. The attribute ``skipped`` says, as JSON, what is not there and
        why.

    Raises
    ------
    AttnscopeError
        If the model makes no logits of tokens, a layer's output projection is not found, an encoder-decoder has no
        targets, or for anything else that the caller can mend.

    Examples
    --------
    >>> effects = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> effects["effects"].loss_change.dims
    ('window', 'ablation', 'layer', 'head')
    """
    part, chosen = task_for(intervene, locals()), _checked(ablations)
    check_whole(0, STEPS, steps=steps)
    field, window, targets = reading["field"], reading["window"], reading["targets"]
    limit, seed, out = reading["limit"] or DEFAULT_TEXTS, reading["seed"], reading["out"]
    inner = model.model if isinstance(model, LoadedModel) else MODEL if model is None else model
    reject_modalities("intervene", inner, texts, field=field, revision=reading["revision"])
    corpus, target = texts_and_targets(
        texts, targets, field=field, by_line=reading["by_line"] or targets is not None, blank_lines=targets is not None
    )
    loaded = load_model(model, **loading(reading))
    length = window_length(loaded, window) if window else min(LONGEST, window_length(loaded, None))
    asked = prediction_session(loaded, corpus, target, window=length, limit=limit, seed=seed, batch_size=batch_size)
    asked.check()
    sets = checked_sets(together, asked.cells)
    rule = rule_of(forbid_offsets, forbid_tokens, loaded.tokenizer, first=forbid_first)
    if rule is not None:
        check_rule(rule, asked.windows)
    elif not renormalise:
        raise AttnscopeError(
            "renormalise (--no-renormalise) is of what is forbidden: give forbid_offsets (--forbid-offset), "
            "forbid_first or forbid_tokens too"
        )
    forbid, told = describe_rule(forbid_offsets, forbid_tokens, first=forbid_first), reading["progress"] or no_progress
    job = InterventionJob(
        asked, chosen, variants, steps, search, curves, why, band, seed, told, rule, forbid, renormalise, sets
    )
    asked_for = {"window": length, "limit": limit, "batch_size": batch_size, "forbid": forbid}
    signature = signature_of("intervene", loaded, corpus, target, asked_for | _settings(job))
    attributes = {"signature": signature.to_json(), "model": loaded.name, "asked": asked.kind}
    if out is None:
        return _in_memory(job, attributes)
    whole = partial(_in_folder, job, attributes)
    return tree_in_folder(out, signature, part, job.batches, whole, attributes, repair=reading["repair"])


def _settings(job: InterventionJob) -> dict[str, Any]:
    """What the numbers depend on beside model, texts and windows."""
    return {
        "ablations": list(job.ablations),
        "steps": job.steps,
        "search": job.search,
        "curves": job.curves,
        "together": ["+".join(f"{layer}.{head}" for layer, head in heads) for heads in job.together] or None,
        "renormalise": None if job.rule is None else job.renormalise,
        "why": job.why,
        "band": job.band,
        "seed": job.seed,
    }


def _in_memory(job: InterventionJob, attributes: dict[str, str]) -> xr.DataTree:
    measured = job.effects(None)
    parts, skipped = job.parts(measured, StoredParts(None))
    tree = xr.DataTree.from_dict({"effects": measured, **parts})
    tree.attrs = attributes | {"skipped": json.dumps(skipped)}
    return tree


def _in_folder(job: InterventionJob, attributes: dict[str, str], run: RunFolder) -> xr.DataTree:
    """What the run lacks is measured and kept; the tree is read from it, as a later call will."""
    if not run.complete:
        parts, skipped = job.parts(job.effects(run), StoredParts(run))
        run.finish(parts=list(parts), attributes=attributes | {"skipped": json.dumps(skipped)})
    return load_intervention(run)


def _checked(ablations: Sequence[str]) -> tuple[Ablation, ...]:
    unknown = [name for name in ablations if name not in ABLATIONS]
    if unknown or not ablations or isinstance(ablations, str):
        what = unknown[0] if unknown and not isinstance(ablations, str) else ablations
        raise AttnscopeError(f"ablations (--ablations) are {what!r}; expected one or more of {', '.join(ABLATIONS)}")
    return tuple(name for name in ABLATIONS if name in ablations)


@dataclass(eq=False)
class InterventionJob:
    """What one call of `intervene` measures: see there."""

    asked: PredictionSession
    ablations: tuple[Ablation, ...]
    variants: int | None
    steps: int
    search: bool
    curves: bool
    why: bool
    band: int
    seed: int
    tell: Tell
    rule: Forbidden | None = None
    forbid: Sequence[str] = ()
    renormalise: bool = True
    together: Sequence[Sequence[tuple[int, int]]] = ()

    @property
    def _of_effects(self) -> float:
        """Share of the work that effects are, about."""
        return 0.6 if self.curves or self.search else 0.9

    def effects(self, run: RunFolder | None) -> xr.Dataset:
        """Effects on single texts, those that the run has not measured; all of them are returned."""
        if run is None:
            return in_a_row([part for part in self.batches(lambda _: False) if part is not None])
        keep_each(run, self.batches, Share(lambda _: True, completed(run)))
        return run.results()

    def batches(self, done: Done) -> Iterator[xr.Dataset | None]:
        """Effects on single texts, batch after batch; None for one that is done."""
        return effects(
            self.asked,
            self.ablations,
            done=done,
            variants=self.variants,
            steps=self.steps,
            progress=lambda at: self.tell(replace(at, share=self._of_effects * at.share)),
        )

    def parts(self, measured: xr.Dataset, stored: StoredParts) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
        """What the effects come to, and what is set beside them; what is not there, and why."""
        skipped: dict[str, str] = {}
        stored.get("heads", lambda: heads_of(measured, seed=self.seed))
        if self.steps:
            stored.get("agreement", lambda: agreement_of(measured, seed=self.seed))
        self.tell(Progress("where heads look", self._of_effects))
        windows = list(self.asked.windows)
        where = stored.get("where", lambda: attention_of_heads(self.asked.loaded, windows, band=self.band))
        if self.why:
            self.tell(Progress("why they look there", self._of_effects + 0.03))
            for name, make in (("why", self._why), ("trust", self._trust)):
                kept = None if stored.run is None else stored.run.load(name)
                part, reason = (kept, "") if kept is not None else make(windows)
                if part is None:
                    skipped[name] = reason
                else:
                    stored.get(name, lambda kept=part: kept)
            stored.get("shuffled", lambda: shuffled_weights(self.asked, seed=self.seed))
        rule = self.rule
        if rule is not None:
            self.tell(Progress("heads that may not look there", self._of_effects + 0.08))
            stored.get("forbidden", lambda: self._forbidden(rule))
        if self.together:
            self.tell(Progress("chosen heads taken out together", self._of_effects + 0.09))
            stored.get(
                "together", lambda: joint_ablation(self.asked, self.together, self.ablations, measured, seed=self.seed)
            )
        if self.search:
            self.tell(Progress("search by random sets", self._of_effects + 0.1))
            stored.get("search", lambda: search_heads(self.asked, seed=self.seed))
        if self.curves:
            self.tell(Progress("heads taken out together", self._of_effects + 0.2))
            try:
                stored.get("curves", lambda: self._curves(measured, where))
            except AttnscopeError as error:
                skipped["curves"] = str(error)
        self.tell(Progress("done", 1.0))
        return stored.parts, skipped

    def _why(self, windows: list[Window]) -> tuple[xr.Dataset | None, str]:
        return explanations_of_heads(self.asked.loaded, windows, band=self.band, seed=self.seed)

    def _trust(self, windows: list[Window]) -> tuple[xr.Dataset | None, str]:
        return trust_in_weights(self.asked.loaded, windows, band=self.band)

    def _forbidden(self, rule: Forbidden) -> xr.Dataset:
        return without_forbidden(self.asked, rule, self.forbid, renormalise=self.renormalise, seed=self.seed)

    def _curves(self, measured: xr.Dataset, where: xr.Dataset) -> xr.Dataset:
        """Curves by effects, by estimates and by what `scan` measures."""
        ablation: Ablation = "mean" if "mean" in self.ablations else self.ablations[0]
        halves = half_of(self.asked.documents)
        parts = [measured.isel(window=np.flatnonzero(halves == half)) for half in (0, 1)]

        def of(scores: Callable[[xr.Dataset], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            first, second = (scores(part) for part in parts)
            return first, second

        orders = {"effect": of(lambda part: part.loss_change.sel(ablation=ablation).mean("window").values)}
        if self.steps:
            for name in ("attribution", "integrated"):
                orders[name] = of(
                    lambda part, name=name: part.estimate.sel(estimator=name, ablation=ablation).mean("window").values
                )
            orders["importance"] = of(lambda part: part.importance.mean("window").values)
        for name, sign in (("max_weight", 1), ("entropy", -1), ("gini_simpson", -1), ("first_token", -1)):
            if name in where:  # weights hardly differ between halves of the texts: one order for both
                scores = sign * where[name].values
                orders[f"{'low ' if sign < 0 else ''}{name}"] = (scores, scores)
        return removal_curves(self.asked, orders, ablation=ablation, seed=self.seed)
