"""`card`: what is known of every head, for other tools: roles, kept shares, effects, stability, a published list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from attnscope.capture.forward import forward
from attnscope.capture.placement import device_of
from attnscope.capture.watching import watching
from attnscope.detection.role import ROLES
from attnscope.detection.roles import SHARED
from attnscope.detection.sounds import SoundProbe
from attnscope.intervention.ablation import half_of
from attnscope.intervention.predictions import PredictionSession, check_read
from attnscope.intervention.questions import kind_of_question
from attnscope.intervention.stack import Edit, replacing, same_without_what_is_skipped, stacked_passes, variants_at_once
from attnscope.kernels.engines import output_of
from attnscope.kernels.full import weights_of
from attnscope.measure.contexts import context, sides_of
from attnscope.measure.rows import LEAST_KEYS, evenly
from attnscope.options import Reading
from attnscope.statistics.effects import effect_variables
from attnscope.statistics.lists import agreement
from attnscope.statistics.units import LEAST, numbered, units_of
from attnscope.store.arrays import by_layer
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import no_progress
from attnscope_cards.head_files import read_heads
from attnscope_cards.limits import alone, loss_by_size

if TYPE_CHECKING:
    from attnscope.capture.borrow import LoadedModel
    from attnscope.capture.watch import Site
    from attnscope.detection.probes import Answer, Probe
    from attnscope.kernels.call import AttentionCall
    from attnscope.read.windows import Window

ANSWERS = ("answer", "prompt")


@torch.no_grad()
def answer_effects(
    loaded: LoadedModel, answers: Sequence[Answer], *, seed: int, heads: Sequence[tuple[int, int]] | None = None
) -> dict[str, Any]:
    """Change of the loss of an answer's tokens of the needle, and as many of the prompt, if a head has its mean."""
    model, device = loaded.model, device_of(loaded.model)
    changes: list[np.ndarray] = []
    skips = True
    for answer in answers:
        prompt = len(answer.ids) - len(answer.tokens)
        hidden = {answer.ids[position] for position in answer.needle}
        steps = [step for step, token in enumerate(answer.tokens) if token in hidden] or [*range(len(answer.tokens))]
        others = np.linspace(0, prompt - 1, len(steps) + 2)[1:-1].astype(int).tolist()  # of the prompt, evenly
        inputs = {"input_ids": torch.tensor([answer.ids], device=device)}
        positions = torch.tensor([[*(prompt + step for step in steps), *others]], device=device)
        labels = [*(answer.tokens[step] for step in steps), *(answer.ids[position + 1] for position in others)]
        if not changes:
            check_read(loaded, inputs)
            skips = same_without_what_is_skipped(model, inputs, positions)
        with stacked_passes(model, skips=skips) as passes:
            before = passes.plain(inputs, positions)

            def losses(logits: Tensor, labels: Sequence[int] = labels) -> Tensor:
                predicted = logits[:, 0].float().log_softmax(-1)
                return -predicted[:, range(len(labels)), labels].unflatten(1, (2, -1)).mean(-1)

            plain = losses(before[None])
            most = variants_at_once(before, len(answer.ids), passes.outputs)
            layers: list[Tensor] = []
            for call, output in enumerate(passes.outputs):

                def edits(heads: Sequence[int], call: int = call, output: Tensor = output) -> dict[int, Edit]:
                    return {call: replacing(heads, [output.mean(2, keepdim=True).expand_as(output)] * len(heads))}

                wanted = [head for head in range(output.shape[1]) if heads is None or (call, head) in heads]
                change = torch.full((1, len(ANSWERS), output.shape[1]), torch.nan, dtype=torch.float64)
                if wanted:
                    without = passes.sweep(wanted, most, edits, losses)
                    change[0, :, wanted] = (without - plain).T.double().cpu()
                layers.append(change)
        changes.append(by_layer([layer.numpy() for layer in layers])[0])
    units, dims = [answer.hidden for answer in answers], ("ablation", "layer", "head")  # prompts of a needle are alike
    return effect_variables(np.stack(changes), units, dims, "Change of the loss without the head", seed=seed)


MOST = 10**6  # tokens in a cache
_SHOWN = 4  # windows in which a head's example is looked for
_SUBSETS = 200  # of documents, for the interval of the stability
_EQUAL = 12  # digits to which equal scores are equal
_ENDS = ("_low", "_high")
_EFFECTS = ("effect", "effect_low", "effect_high", "shown", "tested")


@dataclass(frozen=True, eq=False)
class Additions:
    """The parts of a card beyond the scores of roles, and the arguments that they depend on."""

    loaded: LoadedModel
    reading: Reading
    caches: Sequence[tuple[int, int]]
    effects: xr.DataTree | None
    answers: bool
    limits: bool
    check: bool
    listing: tuple[Path, str] | None
    heads: Sequence[tuple[int, int]] | None = None  # of the card; None: all

    def added(
        self, summary: xr.Dataset, of_windows: xr.Dataset, documents: list[str], probes: Sequence[Probe]
    ) -> xr.Dataset:
        """The card, from the scores of heads and of windows."""
        needles = [answer.hidden for probe in probes for answer in probe.answers]
        result = _with_stability(summary, of_windows, {"text": documents, "needle": needles})
        parts = [] if self.effects is None else [self.effects["heads"].to_dataset()[[*_EFFECTS]]]
        if self.answers and probes[-1].answers:
            variables = answer_effects(self.loaded, probes[-1].answers, seed=self.reading["seed"], heads=self.heads)
            parts.insert(0, xr.Dataset(variables, {"ablation": list(ANSWERS)}))
        caches = [cache for cache in self.caches if "kept_{}_{}".format(*cache) in result.role.values]
        changes = None
        if caches and (self.limits or self.check):
            seed, windows = self.reading["seed"], list(probes[0].windows)
            session = PredictionSession(self.loaded, windows, kind_of_question(self.loaded.model), seed)
            if self.limits:
                shared, tell = of_windows[SHARED].values, self.reading["progress"]
                changes = alone(session, shared, caches, tell, self.heads)
                parts.insert(0, self._limit_effects(result, of_windows, documents, caches, changes))
            if self.check:
                session.check()
                checked = self._checked(result, of_windows, documents, session, caches, changes)
                result = result.assign({f"check_{name}": values for name, values in checked.data_vars.items()})
        if parts:
            heads = xr.concat(parts, "ablation", coords="minimal", compat="override", join="override")
            heads = heads.transpose("ablation", "layer", "head")
            result = result.assign({name: (heads[name].dims, heads[name].values) for name in _EFFECTS})
            result = result.assign_coords(ablation=heads.ablation.values)
        if probes[0].kind == "text" and not isinstance(probes[0], SoundProbe):
            result = result.assign(example=(("layer", "head"), self._examples(result, probes[0])))
        return result if self.listing is None else self._with_listed(result, self.listing)

    @torch.no_grad()
    def _examples(self, result: xr.Dataset, texts: Probe) -> np.ndarray:
        """The largest weight of each head in the first windows, as JSON for a page; as in examples of a scan.

        Queries see some keys, and neither is a special token, nor the key the first one.
        """
        largest = np.zeros((result.sizes["layer"], result.sizes["head"]))
        shown = np.full(largest.shape, "", dtype=object)
        rows = {int(layer): row for row, layer in enumerate(result.layer.values)}

        def observe(site: Site, call: AttentionCall, window: Window) -> Tensor:
            output, weights = output_of(call), weights_of(call)
            queries, keys = sides_of(window, site.kind)
            plain = [torch.tensor([not mark for mark in side.special]) for side in (queries, keys)]
            if len(weights) > 1 or weights.shape[2:] != (len(plain[0]), len(plain[1])) or site.index not in rows:
                return output  # the layer has other positions than tokens
            plain[0] &= (weights_of(evenly(call))[0, 0] > 0).sum(-1).cpu() >= LEAST_KEYS
            plain[1][0] &= site.kind == "cross"
            values = weights[0].float().cpu() * (plain[0][:, None] & plain[1])
            for head, (weight, at) in enumerate(zip(*values.flatten(1).max(1), strict=True)):
                cell = rows[site.index], head
                if weight > largest[cell]:
                    query, key = divmod(int(at), len(plain[1]))
                    largest[cell] = float(weight)
                    example = {"weight": float(weight), "pieces": context(queries, keys, query, key)}
                    shown[cell] = json.dumps(example, ensure_ascii=False)
            return output

        model = self.loaded.model
        for number, window in enumerate(texts.windows[:_SHOWN]):
            with watching(model, partial(observe, window=window), weights_suffice=True):
                forward(model, texts.inputs(model, [number]), lambda _: window.source, with_head=False)  # noqa: B023
        return shown

    def _limit_effects(
        self,
        result: xr.Dataset,
        of_windows: xr.Dataset,
        documents: list[str],
        caches: Sequence[tuple[int, int]],
        changes: np.ndarray,
    ) -> xr.Dataset:
        """Change of the loss with the keys of one key-value head limited to each cache, for its query heads."""
        seed = self.reading["seed"]
        shares = ["kept_{}_{}".format(*cache) for cache in caches]
        names = ["limit_{}_{}".format(*cache) for cache in caches]
        causal = result.score.sel(role=shares).notnull().values
        changes = np.where(causal, changes, np.nan)
        # caches that the same windows exceed are tested together
        by_windows: dict[tuple[int, ...], list[int]] = {}
        for at, share in enumerate(shares):
            longer = np.argwhere(np.isfinite(of_windows[share].values).any((1, 2))).ravel()
            by_windows.setdefault(tuple(longer.tolist()), []).append(at)
        parts: list[xr.Dataset] = []
        for rows, some in by_windows.items():
            units = units_of([documents[row] for row in rows])[0]
            about = units, ("ablation", "layer", "head"), "Change of the loss with limited keys"
            variables = effect_variables(changes[[*rows]][:, some], *about, seed=seed)
            parts.append(xr.Dataset(variables, {"ablation": [names[at] for at in some]}))
        return xr.concat(parts, "ablation").sel(ablation=names)

    def _checked(
        self,
        result: xr.Dataset,
        of_windows: xr.Dataset,
        documents: list[str],
        session: PredictionSession,
        caches: Sequence[tuple[int, int]],
        changes: np.ndarray | None,
    ) -> xr.Dataset:
        """Loss with more and more heads limited, in the order that the other half of the texts gives, and at random."""
        half, lengths = half_of(documents), np.array([len(window) for window in session.windows])
        exceeded = [cache for cache in caches if sum(cache) < lengths.min()]
        if not exceeded or not half.any():
            raise AttnscopeError(
                f"check (--check) needs two or more windows, all longer than a cache; found {len(lengths)} of "
                f"{lengths.min()} tokens or more. Use longer texts, or smaller caches (--kept)"
            )

        def costs_of(cache: tuple[int, int]) -> dict[str, list[np.ndarray]]:
            if changes is None:
                each = 1.0 - of_windows["kept_{}_{}".format(*cache)].values
            else:
                each = changes[:, caches.index(cache)]
            return {"card": [each[half == side].mean(0) for side in (0, 1)]}

        return loss_by_size(
            session,
            of_windows[SHARED].values,
            result.layer_kind.values == "causal",
            exceeded,
            costs_of,
            half=half,
            seed=self.reading["seed"],
            tell=self.reading["progress"] or no_progress,
        ).drop_vars(["source", "loss_change"])

    def _with_listed(self, result: xr.Dataset, listing: tuple[Path, str]) -> xr.Dataset:
        """The same with the heads of a published list, and how well each score ranks them above the others."""
        listed = read_heads(listing, result.assign_attrs(model=self.loaded.name))
        cells = np.isfinite(listed)
        scores = result.score.values[:, cells]
        defined = np.isfinite(scores).all(1)
        columns = np.full((4, len(scores)), np.nan)
        layers = np.nonzero(cells)[0]
        columns[:, defined] = agreement(listed[cells] > 0, scores[defined], layers, seed=self.reading["seed"])
        names = ("auroc", *(f"auroc{end}" for end in (*_ENDS, "_p")))
        agreements = {name: ("role", column) for name, column in zip(names, columns, strict=True)}
        return result.assign({"listed": (("layer", "head"), listed), **agreements})


def _with_stability(summary: xr.Dataset, of_windows: xr.Dataset, documents: Mapping[str, Sequence[str]]) -> xr.Dataset:
    """Scores with those of both halves of the texts and their agreement; `documents` by probe."""
    roles = [str(name) for name in summary.role.values]
    halves = [stability(of_windows[name].values, documents.get(ROLES[name].probe)) for name in roles]
    means, *agreements = (np.stack(parts) for parts in zip(*halves, strict=True))
    stabilities = {f"stability{end}": ("role", part) for end, part in zip(("", *_ENDS), agreements, strict=True)}
    return summary.assign(
        {
            SHARED: of_windows[SHARED].variable,
            "half_score": (("half", "role", "layer", "head"), means.swapaxes(0, 1)),
            **stabilities,
        }
    )


def stability(scores: np.ndarray, documents: Sequence[str] | None) -> tuple[np.ndarray, float, float, float]:
    """Means of scores ``(text, layer, head)`` over halves of the texts; rank correlation of both with its interval."""
    texts = [*map(str, range(len(scores)))] if documents is None else documents
    flat = scores.reshape(len(scores), -1)
    long_enough = np.asarray(np.isfinite(flat).any(1))  # the texts that are long enough for the role
    texts = [text for text, is_long in zip(texts, long_enough.tolist(), strict=True) if is_long]
    flat = flat[long_enough]
    half = half_of(texts)
    defined = flat[:, np.isfinite(flat).all(0)]  # the heads for which the role is defined
    if not half.any() or not defined.size:
        return np.full((2, *scores.shape[1:]), np.nan), np.nan, np.nan, np.nan
    means = np.stack([flat[half == side].mean(0) for side in (0, 1)]).reshape(2, *scores.shape[1:])

    def correlations(weights: np.ndarray) -> np.ndarray:
        ranks: list[np.ndarray] = []
        for side in (0, 1):
            weights_of_side = weights[:, half == side]
            scores = (weights_of_side @ defined[half == side] / weights_of_side.sum(1, keepdims=True)).round(_EQUAL)
            ranks.append(stats.rankdata(scores, axis=1) - (defined.shape[1] + 1) / 2)
        sizes = np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))
        return (ranks[0] * ranks[1]).sum(1) / np.where(sizes > 0, sizes, np.nan)

    member, count = numbered(units_of(texts)[0])
    whole = float(correlations(np.ones((1, len(half))))[0])
    if count < LEAST:
        return means, whole, np.nan, np.nan
    sides = [np.unique(member[half == side]) for side in (0, 1)]
    gone = [max(1, round(len(side) / 3)) for side in sides]  # fewer would leave out too few ranks that change
    generator = np.random.default_rng(0)
    left = np.ones((_SUBSETS, len(half)))
    for weights in left:
        out = [generator.choice(side, size, replace=False) for side, size in zip(sides, gone, strict=True)]
        weights[np.isin(member, np.concatenate(out))] = 0
    close = 1 - 6 / max(6, defined.shape[1] ** 3 - defined.shape[1])  # one exchanged pair takes twice as much from 1
    # Fisher's z, whose standard error over subsets grows by the share of what is left to what is left out
    z = np.arctanh(np.clip([whole, *correlations(left)], -close, close))
    error = np.sqrt((count - sum(gone)) / sum(gone) * z[1:].var(ddof=1))
    low, high = (np.tanh(z[0] + sign * stats.t.ppf(0.975, count - 2) * error) for sign in (-1, 1))
    return means, whole, min(float(low), whole), max(float(high), whole)
