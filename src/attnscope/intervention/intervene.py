"""`intervene`: does a head matter? Heads taken out of the forward pass, and what the predictions lose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import numpy as np
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture.borrow import LoadedModel, verb
from attnscope.capture.load import load_model, signature_of
from attnscope.capture.modalities import reject_modalities
from attnscope.capture.parameters import StudyReading, loading
from attnscope.explanation.analyses.verdict import WHY
from attnscope.explanation.catalogue import ANALYSES
from attnscope.explanation.study import DEFAULT_TEXTS, FEW_TEXTS, Study
from attnscope.intervention.ablation import effects, half_of, joint_ablation, removal_curves, search_heads
from attnscope.intervention.calls import checked_heads
from attnscope.intervention.edits import Forbidden, knock_out, shuffled_weights
from attnscope.intervention.effects import agreement_of, heads_of
from attnscope.intervention.predictions import ABLATIONS, Ablation, prediction_session
from attnscope.intervention.profiles import contribution_profiles
from attnscope.measure.ranking import majority_names, peaks
from attnscope.measure.texts import statistics_of, window_length
from attnscope.read.encoded import Sources, texts_and_targets
from attnscope.store.units import Done, task_for, tree_of
from attnscope.support.arguments import Count, validated
from attnscope.support.checks import STEPS, check_whole
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, no_progress

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.intervention.predictions import PredictionSession
    from attnscope.read.windows import Window
    from attnscope.store.runs import RunFolder

LONGEST = 512  # tokens of a window where none is asked for: every head of every window is a pass


@verb(limit=DEFAULT_TEXTS)
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
    """Ablate every head of a model, one at a time, and measure what its predictions lose.

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
        `knock_out`), ``search`` and ``curves``. The attribute ``skipped`` says, as JSON, what is not there and
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
    task, unknown = task_for(intervene, locals()), [name for name in ablations if name not in ABLATIONS]
    if unknown or not ablations:
        found = repr(unknown[0] if unknown else ablations)
        raise AttnscopeError(f"ablations (--ablations) are {found}; expected one or more of {', '.join(ABLATIONS)}")
    check_whole(0, STEPS, steps=steps)
    field, window, targets, seed = reading["field"], reading["window"], reading["targets"], reading["seed"]
    limit = reading["limit"] or DEFAULT_TEXTS
    inner = model.model if isinstance(model, LoadedModel) else MODEL if model is None else model
    reject_modalities("intervene", inner, texts, field=field, revision=reading["revision"])
    corpus, target = texts_and_targets(
        texts, targets, field=field, by_line=reading["by_line"] or targets is not None, blank_lines=targets is not None
    )
    loaded = load_model(model, **loading(reading))
    length = window_length(loaded, window) if window else min(LONGEST, window_length(loaded, None))
    asked = prediction_session(loaded, corpus, target, window=length, limit=limit, seed=seed, batch_size=batch_size)
    asked.check()
    sets = [checked_heads(heads, asked.cells, "together, --together") for heads in together]
    rule = Forbidden.of(forbid_offsets, forbid_tokens, loaded.tokenizer, first=forbid_first)
    if rule:
        rule.check(asked.windows)
    elif not renormalise:
        raise AttnscopeError(
            "renormalise (--no-renormalise) is of what is forbidden: give forbid_offsets (--forbid-offset), "
            "forbid_first or forbid_tokens too"
        )
    chosen: list[Ablation] = [one for one in ABLATIONS if one in ablations]
    settings = {
        "window": length,
        "limit": limit,
        "batch_size": batch_size,
        "forbid": rule.words,
        "ablations": [*chosen],
        "steps": steps,
        "search": search,
        "curves": curves,
        "together": ["+".join(f"{layer}.{head}" for layer, head in heads) for heads in sets] or None,
        "renormalise": renormalise if rule else None,
        "why": why,
        "band": band,
        "seed": seed,
    }
    signature = signature_of("intervene", loaded, corpus, target, settings)
    attributes = {"signature": signature.to_json(), "model": loaded.name, "asked": asked.kind}
    told = reading["progress"] or no_progress
    of_effects = 0.6 if curves or search else 0.9  # share of the work that effects are, about

    def batches(done: Done) -> Iterator[xr.Dataset | None]:
        def tell(at: Progress) -> None:
            told(replace(at, share=of_effects * at.share))

        return effects(asked, chosen, done=done, variants=variants, steps=steps, progress=tell)

    def parts(measured: xr.Dataset, run: RunFolder | None) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
        """What the effects come to, and what is set beside them; what is not there, and why."""
        parts: dict[str, xr.Dataset] = {}
        skipped: dict[str, str] = {}
        windows = list(asked.windows)

        def keep(name: str, make: Callable[[], xr.Dataset]) -> None:
            parts[name] = make() if run is None else run.made(name, make)

        def keep_if_defined(name: str, make: Callable[[], xr.Dataset]) -> None:
            try:
                made = (None if run is None else run.load(name)) or make()
            except AttnscopeError as error:
                skipped[name] = str(error)
            else:
                keep(name, lambda: made)

        def tell(what: str, share: float) -> None:
            told(Progress(what, of_effects + share))

        keep("heads", lambda: heads_of(measured, seed=seed))
        if steps:
            keep("agreement", lambda: agreement_of(measured, seed=seed))
        tell("where heads look", 0.0)
        keep("where", lambda: attention_of_heads(loaded, windows, band=band))
        if why:
            tell("why they look there", 0.03)
            keep_if_defined("why", lambda: explanations_of_heads(loaded, windows, band=band, seed=seed))
            keep_if_defined("trust", lambda: trust_in_weights(loaded, windows, band=band))
            keep("shuffled", lambda: shuffled_weights(asked, seed=seed))
        if rule:
            tell("heads that may not look there", 0.08)
            keep("forbidden", lambda: knock_out(asked, rule, renormalise=renormalise, seed=seed))
        if sets:
            tell("chosen heads taken out together", 0.09)
            keep("together", lambda: joint_ablation(asked, sets, chosen, measured, seed=seed))
        if search:
            tell("search by random sets", 0.1)
            keep("search", lambda: search_heads(asked, seed=seed))
        if curves:
            tell("heads taken out together", 0.2)
            keep_if_defined("curves", lambda: _curves(asked, measured, parts["where"], chosen, seed))
        told(Progress("done", 1.0))
        return parts, {"skipped": json.dumps(skipped)}

    return tree_of(
        ("effects", "window"),
        batches,
        parts,
        signature,
        attributes,
        out=reading["out"],
        task=task,
        repair=reading["repair"],
    )


def _curves(
    asked: PredictionSession, measured: xr.Dataset, where: xr.Dataset, ablations: Sequence[Ablation], seed: int
) -> xr.Dataset:
    """Curves by effects, by estimates and by what `scan` measures."""
    ablation: Ablation = "mean" if "mean" in ablations else ablations[0]
    halves = half_of(asked.documents)
    means = [measured.isel(window=np.flatnonzero(halves == half)) for half in (0, 1)]
    means = [part.sel(ablation=ablation).mean("window") for part in means]
    orders = {"effect": [part.loss_change.values for part in means]}
    if "estimate" in measured:
        for name in ("attribution", "integrated"):
            orders[name] = [part.estimate.sel(estimator=name).values for part in means]
        orders["importance"] = [part.importance.values for part in means]
    for name, sign in (("max_weight", 1), ("entropy", -1), ("gini_simpson", -1), ("first_token", -1)):
        if name in where:  # weights hardly differ between halves of the texts: one order for both
            orders[f"{'low ' if sign < 0 else ''}{name}"] = [sign * where[name].values] * 2
    return removal_curves(asked, orders, ablation=ablation, seed=seed)


_MEANS = ("profile", "entropy", "first_token", "special_tokens", "max_weight", "mean_offset", "gini_simpson")
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
def explanations_of_heads(loaded: LoadedModel, windows: list[Window], *, band: int = 10, seed: int = 0) -> xr.Dataset:
    """Share of position and the offsets that weights and scores tell, as `attnscope.explain` finds them."""
    length = max(map(len, windows))
    whole = [window for window in windows if len(window) == length]
    if lacking := _lacking(windows, len(whole), length):
        raise AttnscopeError(lacking)
    study = Study(
        loaded.model,
        whole,
        name=loaded.name,
        identity=loaded.identity,
        band=min(band, length - 1),
        seed=seed,
        loaded=loaded,
    )
    study.run(ANALYSES)
    verdict = study.results.get("verdict")
    if verdict is None:
        raise AttnscopeError(study.reasons.get("verdict", "the model does not admit it"))
    return verdict[[name for name in WHY if name in verdict]]


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
def trust_in_weights(loaded: LoadedModel, windows: list[Window], *, band: int = 10) -> xr.Dataset:
    """Whether what weights report of a head survives when the size of what they weigh is counted (Kobayashi et al.
    2020).
    """
    study = Study(loaded.model, windows[:FEW_TEXTS], name=loaded.name, loaded=loaded)
    shortest = min(map(len, study.windows))
    contributions = contribution_profiles(study, kinds=["norms", "effective"], band=min(band, max(1, shortest - 1)))
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
    )
