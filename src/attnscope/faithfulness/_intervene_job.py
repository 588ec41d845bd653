"""What one call of `intervene` measures: effects batch after batch, then what they come to and what stands beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.errors import AttnscopeError
from attnscope.faithfulness._beside import trust_in_weights, where_heads_look, why_heads_look
from attnscope.faithfulness._effects import effects
from attnscope.faithfulness._forbidden import without_forbidden
from attnscope.faithfulness._sets import half_of, removal_curves, search_heads
from attnscope.faithfulness._shuffled import shuffled_weights
from attnscope.faithfulness._summary import agreement_of, heads_of
from attnscope.faithfulness._together import taken_together
from attnscope.progress import Progress, Tell
from attnscope.store import in_a_row

if TYPE_CHECKING:
    from attnscope.corpus import Window
    from attnscope.faithfulness._inquiry import Inquiry
    from attnscope.faithfulness._knockout import Forbidden
    from attnscope.faithfulness._stored import StoredParts
    from attnscope.faithfulness.passes import Ablation
    from attnscope.store import RunFolder
    from attnscope.tasks import Part


@dataclass(eq=False)
class InterventionJob:
    """What one call of `intervene` measures: see there."""

    asked: Inquiry
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
            return in_a_row(list(self._effects(lambda _: False)))
        self.measure(run, run.holds)
        return run.results()

    def measure(self, run: Part, done: Callable[[range], bool]) -> None:
        """Add effects on single texts to a run, but those that are done."""
        for part in self._effects(done):
            run.append(part, int(part.text[0]))

    def _effects(self, done: Callable[[range], bool]) -> Iterator[xr.Dataset]:
        return effects(
            self.asked,
            self.ablations,
            done=done,
            variants=self.variants,
            steps=self.steps,
            progress=lambda at: self.tell(replace(at, share=self._of_effects * at.share)),
        )

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
                "together",
                lambda: taken_together(self.asked, self.together, self.ablations, measured, seed=self.seed),
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
        return why_heads_look(self.asked.loaded, windows, band=self.band, seed=self.seed)

    def _trust(self, windows: list[Window]) -> tuple[xr.Dataset | None, str]:
        return trust_in_weights(self.asked.loaded, windows, band=self.band)

    def _forbidden(self, rule: Forbidden) -> xr.Dataset:
        return without_forbidden(self.asked, rule, self.forbid, renormalise=self.renormalise, seed=self.seed)

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
