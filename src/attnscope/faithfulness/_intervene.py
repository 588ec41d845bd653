"""`intervene`: does a head matter? Heads taken out of the forward pass, and what the predictions lose."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.bundled import MODEL
from attnscope.capture import LoadedModel, borrowing, load_model, signature_of
from attnscope.checks import check_seed, check_whole
from attnscope.corpus import Sources, Window, texts_and_targets
from attnscope.errors import AttnscopeError
from attnscope.faithfulness._beside import trust_in_weights, where_heads_look, why_heads_look
from attnscope.faithfulness._effects import effects
from attnscope.faithfulness._inquiry import Inquiry, inquiry
from attnscope.faithfulness._sets import half_of, removal_curves, search_heads
from attnscope.faithfulness._shuffled import shuffled_weights
from attnscope.faithfulness._stored import StoredParts, load_intervention
from attnscope.faithfulness._summary import agreement_of, heads_of
from attnscope.faithfulness.passes import ABLATIONS, Ablation
from attnscope.progress import Progress, Tell, tell_nobody
from attnscope.statistics import window_length
from attnscope.store import RunFolder, Signature

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.mechanism import Tokenizer

DEFAULT_TEXTS = 100
LONGEST = 512  # tokens of a window where none is asked for: every head of every window is a pass


@borrowing
def intervene(
    model: str | Path | PreTrainedModel | LoadedModel | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    out: str | Path | Callable[[Signature], Path] | None = None,
    repair: bool = False,
    window: int | None = None,
    limit: int = DEFAULT_TEXTS,
    batch_size: int | None = None,
    variants: int | None = None,
    ablations: Sequence[str] = ABLATIONS,
    steps: int = 5,
    search: bool = False,
    curves: bool = False,
    why: bool = True,
    band: int = 10,
    seed: int = 0,
    field: str | None = None,
    by_line: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    progress: Tell | None = None,
) -> xr.DataTree:
    """Take every head out of a model, one at a time, and measure what its predictions lose.

    A masked language model is asked for 15% of the words behind masks, a causal one for the token after each, an
    encoder-decoder for the translation.

    Parameters
    ----------
    model, texts, tokenizer, field, by_line, device, dtype, revision, trust_remote_code
        See `attnscope.scan`.
    targets
        Translations, for an encoder-decoder: line i beside line i of the text.
    out
        Run folder, or a function that names it from the signature. Batches are written as they come; a run that was
        stopped goes on.
    repair
        Whether to measure again what was damaged in a finished run; else such a run is refused.
    window
        Tokens of a window; by default what the model takes, at most 512.
    limit
        Windows.
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
    why
        Whether to explain where each head looks, as `attnscope.explain` does, on the same windows, and to ask whether
        its weights can be trusted.
    band
        Largest offset of the profiles.
    seed
        Seed of the random number generators.
    progress
        Called with a `Progress` after each batch.

    Returns
    -------
    xarray.DataTree
        ``effects``: ``loss_change``, ``kl`` (nats), ``accuracy_change`` of each text ``(text, ablation, layer, head)``,
        estimates ``(text, estimator, ablation, layer, head)``, and ``loss`` and ``accuracy`` of the model as it is.
        ``heads``: means with intervals over documents, see `heads_of`. ``agreement``: how well estimates rank heads,
        see `agreement_of`. ``where`` and ``why``: what `scan` and `explain` say of the heads; ``trust``: see
        `trust_in_weights`; ``shuffled``: see `shuffled_weights`. ``search``, ``curves`` where asked for. The attribute
        ``skipped`` says, as JSON, what is not there and why.

    Raises
    ------
    AttnscopeError
        If the model makes no logits of tokens, a layer's output projection is not found, an encoder-decoder has no
        targets, or for anything else that the caller can mend.

    Examples
    --------
    >>> found = intervene(limit=4, window=32, ablations=["zero"], steps=0, why=False)
    >>> found["effects"].loss_change.dims
    ('text', 'ablation', 'layer', 'head')
    """
    chosen = _checked(ablations)
    check_whole(1, limit=limit, window=window, batch_size=batch_size, variants=variants, band=band)
    check_whole(0, steps=steps)
    check_seed(seed)
    lines: dict[str, Any] = {
        "field": field,
        "by_line": by_line or targets is not None,
        "blank_lines": targets is not None,
    }
    corpus, target = texts_and_targets(texts, targets, **lines)
    loaded = (
        model
        if isinstance(model, LoadedModel)
        else load_model(
            MODEL if model is None else model,
            tokenizer=tokenizer,
            revision=revision,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        )
    )
    length = window_length(loaded, window) if window else min(LONGEST, window_length(loaded, None))
    asked = inquiry(loaded, corpus, target, window=length, limit=limit, seed=seed, batch_size=batch_size)
    asked.check()
    settings = {
        "window": length,
        "limit": limit,
        "batch_size": batch_size,
        "ablations": list(chosen),
        "steps": steps,
        "search": search,
        "curves": curves,
        "why": why,
        "band": band,
        "seed": seed,
    }
    signature = signature_of("intervene", loaded, corpus, target, settings)
    attributes = {"signature": signature.to_json(), "model": loaded.name, "asked": asked.kind}
    job = _Job(asked, chosen, variants, steps, search, curves, why, band, seed, progress or tell_nobody)
    if out is None:
        measured = job.effects(None)
        parts, skipped = job.parts(measured, StoredParts(None))
        tree = xr.DataTree.from_dict({"effects": measured, **parts})
        tree.attrs = attributes | {"skipped": json.dumps(skipped)}
        return tree
    with RunFolder(Path(out(signature) if callable(out) else out), signature, repair=repair) as run:
        if not run.complete:
            parts, skipped = job.parts(job.effects(run), StoredParts(run))
            run.finish(parts=list(parts), attributes=attributes | {"skipped": json.dumps(skipped)})
        return load_intervention(run)


def _checked(ablations: Sequence[str]) -> tuple[Ablation, ...]:
    unknown = [name for name in ablations if name not in ABLATIONS]
    if unknown or not ablations or isinstance(ablations, str):
        what = unknown[0] if unknown and not isinstance(ablations, str) else ablations
        raise AttnscopeError(
            f"ablations (--ablations) are {what!r}; expected one or more of {', '.join(ABLATIONS)}"
        )
    return tuple(name for name in ABLATIONS if name in ablations)


class _Job:
    """What one call measures."""

    def __init__(
        self,
        asked: Inquiry,
        ablations: tuple[Ablation, ...],
        variants: int | None,
        steps: int,
        search: bool,
        curves: bool,
        why: bool,
        band: int,
        seed: int,
        tell: Tell,
    ) -> None:
        self.asked, self.ablations, self.variants, self.steps = asked, ablations, variants, steps
        self.search, self.curves, self.why, self.band, self.seed = search, curves, why, band, seed
        self.tell = tell
        self._of_effects = 0.6 if curves or search else 0.9

    def effects(self, run: RunFolder | None) -> xr.Dataset:
        """Effects on single texts, those that the run has not measured; all of them are returned."""
        total = len(self.asked.windows)

        def tell(done: int) -> None:
            self.tell(Progress("heads taken out", self._of_effects * done / total, {"windows": done}))

        options: dict[str, Any] = {"variants": self.variants, "steps": self.steps, "tell": tell}
        if run is None:
            return _joined(list(effects(self.asked, self.ablations, **options)))
        for part in effects(self.asked, self.ablations, done=run.holds, **options):
            run.append(part, int(part.text[0]))
        return run.results()

    def parts(
        self, measured: xr.Dataset, stored: StoredParts
    ) -> tuple[dict[str, xr.Dataset], dict[str, str]]:
        """What the effects come to, and what is set beside them; what is not there, and why."""
        skipped: dict[str, str] = {}
        stored.get("heads", lambda: heads_of(measured, seed=self.seed))
        if self.steps:
            stored.get("agreement", lambda: agreement_of(measured, seed=self.seed))
        self.tell(Progress("where heads look", self._of_effects))
        windows = list(self.asked.windows)
        where = stored.get("where", lambda: where_heads_look(self.asked.loaded, windows, band=self.band))
        if self.why:
            self.tell(Progress("why they look there", self._of_effects + 0.03))
            for name, make in (("why", self._why), ("trust", self._trust)):
                kept = None if stored.run is None else stored.run.load(name)
                found, reason = (kept, "") if kept is not None else make(windows)
                if found is None:
                    skipped[name] = reason
                else:
                    stored.get(name, lambda found=found: found)
            stored.get("shuffled", lambda: shuffled_weights(self.asked, seed=self.seed))
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
        return why_heads_look(self.asked.loaded, windows, band=self.band, seed=self.seed)

    def _trust(self, windows: list[Window]) -> tuple[xr.Dataset | None, str]:
        return trust_in_weights(self.asked.loaded, windows, band=self.band)

    def _curves(self, measured: xr.Dataset, where: xr.Dataset) -> xr.Dataset:
        """Curves by effects, by estimates and by what `scan` measures."""
        ablation: Ablation = "mean" if "mean" in self.ablations else self.ablations[0]
        halves = half_of(self.asked.documents)
        parts = [measured.isel(text=np.flatnonzero(halves == half)) for half in (0, 1)]

        def of(scores: Callable[[xr.Dataset], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            first, second = (scores(part) for part in parts)
            return first, second

        orders = {"effect": of(lambda part: part.loss_change.sel(ablation=ablation).mean("text").values)}
        if self.steps:
            for name in ("attribution", "integrated"):
                orders[name] = of(
                    lambda part, name=name: (
                        part.estimate.sel(estimator=name, ablation=ablation).mean("text").values
                    )
                )
            orders["importance"] = of(lambda part: part.importance.mean("text").values)
        for name, sign in (("max_weight", 1), ("entropy", -1), ("gini_simpson", -1), ("first_token", -1)):
            if name in where:  # weights hardly differ between halves of the texts: one order for both
                scores = sign * where[name].values
                orders[f"{'low ' if sign < 0 else ''}{name}"] = (scores, scores)
        return removal_curves(self.asked, orders, ablation=ablation, seed=self.seed)


def _joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    return xr.concat(list(parts), "text", data_vars="minimal", coords="minimal", compat="override")
