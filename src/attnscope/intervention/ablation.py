"""Effects of ablating heads: one at a time, in chosen sets, in random sets, and cumulatively."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, pairwise
from math import ceil
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.intervention.arrays import Heads, in_layers, random_sets, sets_like, sparse_effects
from attnscope.intervention.gradients import attribution, gates_towards, importance, loss_gradients
from attnscope.intervention.predictions import PredictionBatch, PredictionSession
from attnscope.intervention.questions import Questions
from attnscope.intervention.replacements import Ablation
from attnscope.intervention.stack import Edit, replacing, replacing_sets
from attnscope.statistics.effects import joint_variables, random_variables
from attnscope.statistics.units import numbered, units_of
from attnscope.store.arrays import by_layer, of_layers
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import share_of_layers

_OF_HEADS = 0.9  # of the work of a batch; the rest are gradients
ESTIMATES = ("attribution", "integrated", "eap_ig")
_WORDS = {
    "loss_change": ("Change of the loss without the head", "nats"),
    "kl": ("KL divergence of the predictions without the head", "nats"),
    "accuracy_change": ("Change of the accuracy without the head", "share"),
    "estimate": ("Change of the loss without the head, estimated", "nats"),
    "importance": ("Size of the loss's derivative in a gate on the head", "nats"),
    "metric_change": ("Change of the metric without the head", "1"),
    "metric": ("Metric of the unchanged model", "1"),
    "loss": ("Loss of the unchanged model", "nats"),
    "accuracy": ("Accuracy of the unchanged model", "share"),
    "guess_loss": ("Loss of a uniform guess over all tokens", "nats"),
    "questions": ("Tokens to predict", "tokens"),
}


def effects(
    session: PredictionSession,
    part: slice,
    ablations: Sequence[Ablation],
    *,
    variants: int | None = None,
    steps: int = 5,
    cells: Collection[tuple[int, int]] | None = None,
    tell: Callable[[float], None] = lambda _: None,
) -> xr.Dataset:
    """Effects of every head on some texts, or of these `cells` alone; NaN for other heads.

    `tell` is called with the part of the heads that are done.
    """
    with session.passes(part, ablations) as batch:
        questions, sites = batch.questions, batch.passes.sites
        whole = batch.scores(batch.whole[None])
        scores = {name: value[0].double().cpu().numpy() for name, value in whole.items() if name != "kl"}
        names = [name for name in ("loss", "accuracy", "kl", "metric") if name in whole]
        layers: list[np.ndarray] = []
        for call, wanted in enumerate(batch.heads_of(cells)):
            layers.append(_of_layer(batch, call, wanted, names, variants))
            tell(_OF_HEADS * share_of_layers(call + 1, len(sites)))
    loss, accuracy, kl, *metric = (by_layer([layer[..., at] for layer in layers]) for at in range(layers[0].shape[-1]))
    heads, guess = ("window", "ablation", "layer", "head"), np.full(len(questions), np.log(batch.before.shape[-1]))
    variables: dict[str, _Variable] = {
        "loss_change": (heads, loss - scores["loss"][:, None, None, None]),
        "kl": (heads, kl),
        "accuracy_change": (heads, accuracy - scores["accuracy"][:, None, None, None]),
        **({"metric_change": (heads, metric[0] - scores["metric"][:, None, None, None])} if metric else {}),
        **{name: ("window", value) for name, value in scores.items()},
        **({} if session.kind == "output" else {"guess_loss": ("window", guess)}),
        "questions": ("window", (questions.labels >= 0).sum(1)[:: questions.rows].cpu().numpy()),
    }
    if steps:
        variables["importance"], variables["estimate"] = _estimates(session, questions, batch.replacements, steps)
    coordinates = {
        "window": np.arange(part.start, part.stop),
        "source": ("window", np.array(session.documents[part], dtype=object)),
        "ablation": list(ablations),
        **layer_coordinates(sites),
        "head": np.arange(loss.shape[-1]),
        **({"estimator": list(ESTIMATES)} if steps else {}),
    }
    dataset = xr.Dataset(variables, coords=coordinates)
    for name, (words, units) in _WORDS.items():
        if name in dataset:
            dataset[name].attrs = {"long_name": words, "units": session.unit if units == "nats" else units}
    if session.metric is not None:
        name, unit = session.metric.name, session.metric.unit
        dataset["metric_change"].attrs = {"long_name": f"Change of {name} without the head", "units": unit}
        dataset["metric"].attrs = {"long_name": f"{name} of the unchanged model", "units": unit}
    return dataset


def _of_layer(
    batch: PredictionBatch, call: int, wanted: Sequence[int], names: Sequence[str], variants: int | None
) -> np.ndarray:
    """Loss, accuracy and KL divergence without some heads of one layer: ``(text, ablation, head, score)``."""
    cells = [(head, others[call]) for others in batch.replacements.values() for head in wanted]

    def scored(logits: Tensor) -> Tensor:
        scores = batch.scores(logits)
        return torch.stack([scores[name] for name in names], -1)

    def edits(some: Sequence[tuple[int, Tensor]]) -> dict[int, Edit]:
        return {call: replacing([head for head, _ in some], [other for _, other in some])}

    shape = len(batch.questions), len(batch.replacements), batch.passes.outputs[call].shape[1], len(names)
    effects = np.full(shape, np.nan)
    if wanted:
        values = batch.passes.sweep(cells, variants or batch.most, edits, scored).transpose(0, 1)
        effects[:, :, wanted] = values.unflatten(1, (len(batch.replacements), -1)).double().cpu().numpy()
    return effects


def _estimates(
    session: PredictionSession, questions: Questions, replacements: dict[Ablation, list[Tensor]], steps: int
) -> tuple[_Variable, _Variable]:
    """Importance ``(window, layer, head)``, and estimates ``(text, estimator, ablation, layer, head)``."""
    model = session.model
    outputs = loss_gradients(model, questions)
    middles = [(step + 0.5) / steps for step in range(steps)]  # the midpoint rule
    first_order, integrated, by_input = [], [], []
    for ablation, others in replacements.items():
        # attribution patching (Nanda 2023): one backward pass for all heads
        first_order.append(by_layer(attribution(outputs, others)))
        along = [loss_gradients(model, questions, gates_towards(others, share)) for share in middles]
        # integrated gradients (Sundararajan et al. 2017): what is left to the replacement is 1 - share of the whole way
        slopes = [
            by_layer(attribution([(output, gradient / (1 - share)) for output, gradient in step], others))
            for step, share in zip(along, middles, strict=True)
        ]
        integrated.append(np.mean(slopes, 0))
        if ablation == "resample":  # along the input, from each text to its donor (EAP-IG: Hanna et al. 2024)
            moved = [loss_gradients(model, questions, towards_donor=share) for share in middles]
            mean = [
                (output, torch.stack([step[call][1] for step in moved]).mean(0))
                for call, (output, _) in enumerate(outputs)
            ]
            by_input.append(by_layer(attribution(mean, others)))
        else:
            by_input.append(np.full_like(first_order[-1], np.nan))
    estimates = np.stack([np.stack(steps, 1) for steps in (first_order, integrated, by_input)], 1)
    return (
        (("window", "layer", "head"), by_layer(importance(outputs))[:: questions.rows]),
        (("window", "estimator", "ablation", "layer", "head"), estimates[:: questions.rows]),
    )


#: Dimensions and values
_Variable = tuple[str | tuple[str, ...], np.ndarray]

SEARCH_SHARE = 0.25  # passes of a search, by default, as a share of layers times heads
_REMOVED = 0.1  # share of the heads that one set of a search removes
_ALIKE = 4  # heads of a layer, about, in a group of similar effect
_RANDOM_ORDERS = 5  # of the heads, whose mean curve is the null of the others


def changes_by_sets(
    session: PredictionSession, sets: Sequence[np.ndarray], ablation: Ablation, measure: str = "loss_change"
) -> np.ndarray:
    """Change of the loss of each text, or of the metric, when sets of heads are replaced at once, ``(text, set)``.

    `sets` are those of each batch: ``(set, head)``, or ``(set, text, head)``.
    """
    changes: list[np.ndarray] = []
    for part, of_batch in zip(session.slices(), sets, strict=True):
        with session.passes(part, [ablation]) as batch:
            others, rows = batch.replacements[ablation], batch.questions.rows

            def edits(
                some: range, others: Sequence[Tensor] = others, of_batch: np.ndarray = of_batch, rows: int = rows
            ) -> dict[int, Edit]:
                chosen = torch.from_numpy(of_batch[some.start : some.stop])
                chosen = chosen if chosen.ndim == 2 else chosen.repeat_interleave(rows, 1)  # noqa: PLR2004
                pairs = enumerate(zip(chosen.split(session.heads, -1), others, strict=True))
                return {call: replacing_sets(heads, other) for call, (heads, other) in pairs if bool(heads.any())}

            changed = batch.passes.sweep(range(len(of_batch)), batch.most, edits, getattr(batch, measure))
        changes.append(changed.T.double().cpu().numpy())
    return np.concatenate(changes)


def measured_by(session: PredictionSession) -> tuple[str, str, str, float]:
    """Name, unit and words of what is measured, and its sign when the model is worse: 0 if neither direction is."""
    about = session.measured
    if not about:
        return "loss_change", session.unit, "the loss", 1.0
    return (
        "metric_change",
        about["unit"],
        about["metric"],
        {"lower": 1.0, "higher": -1.0}.get(about.get("better", ""), 0.0),
    )


def search_heads(session: PredictionSession, *, seed: int = 0) -> xr.Dataset:
    """Estimate every head's effect from random sets of heads that are removed together."""
    count = len(session.cells)
    passes = max(1, round(SEARCH_SHARE * count))
    # few at once: effects of sets add up only as far as heads do not stand in for each other
    removed = max(1, round(_REMOVED * count))  # 1 in a small model, where two would be many of its heads
    generator = np.random.default_rng(seed)
    sets = [random_sets((passes, part.stop - part.start), count, removed, generator) for part in session.slices()]
    measure, unit, words, _ = measured_by(session)
    changes = changes_by_sets(session, sets, "mean", measure)
    rows = np.concatenate([layer.transpose(1, 0, 2).reshape(-1, count) for layer in sets])
    documents = np.repeat(np.array(session.documents, dtype=object), passes)
    return xr.Dataset(
        {
            "searched": (
                ("layer", "head"),
                of_layers(sparse_effects(rows, changes.reshape(-1), documents.tolist()), session.heads),
                {"long_name": f"Change of {words} without the head, by sparse regression", "units": unit},
            )
        },
        attrs={"passes": passes, "measurements": len(rows), "removed": removed, "ablation": "mean", **session.measured},
    )


def removal_curves(
    session: PredictionSession,
    orders: Mapping[str, Sequence[np.ndarray]],
    *,
    ablation: Ablation = "mean",
    seed: int = 0,
    chosen: Sequence[tuple[int, int]] = (),
) -> xr.Dataset:
    """Change of the loss, or of a metric, when the first 1, 2, 4, ... heads of an order are removed together.

    The `chosen` heads are an order too, ``chosen``, as far as it goes.
    """
    halves = half_of(session.documents)
    if not halves.any():
        raise AttnscopeError(
            "found one text; removal curves need 2 or more, to order the heads on one half and remove them on the "
            "other. Add more text"
        )
    count = len(session.cells)
    powers = [2**power for power in range((count - 1).bit_length())]
    removed = np.array(sorted({*powers, count, *([len(chosen)] if chosen else ())}))  # 1, 2, 4, ... and all
    if chosen:
        ranks = np.full((len(session.heads), max(session.heads)), -np.inf)
        for rank, cell in enumerate(chosen):
            ranks[cell] = -rank
        orders = {"chosen": [ranks] * 2} | {**orders}
    generator = np.random.default_rng(seed)
    shuffles = [generator.permutation(count) for _ in range(_RANDOM_ORDERS)]
    sets = [_sets_of(orders, shuffles, session.heads, removed, 1 - halves[part]) for part in session.slices()]
    measure, unit, words, _ = measured_by(session)
    changes = changes_by_sets(session, sets, ablation, measure)
    changes = changes.reshape(len(changes), len(orders) + _RANDOM_ORDERS, len(removed))  # sets: orders by numbers
    if chosen:
        changes[:, 0, removed > len(chosen)] = np.nan
    return xr.Dataset(
        {
            measure: (
                ("window", "order", "removed"),
                np.concatenate([changes[:, : len(orders)], changes[:, len(orders) :].mean(1, keepdims=True)], 1),
                {"long_name": f"Change of {words} without the first heads of the order", "units": unit},
            )
        },
        coords={
            "order": [*orders, "random"],
            "removed": ("removed", removed, {"long_name": "Heads removed together", "units": "heads"}),
            "source": ("window", np.array(session.documents, dtype=object)),
        },
        attrs={"ablation": ablation, "random_orders": _RANDOM_ORDERS, **session.measured},
    )


def half_of(documents: Sequence[str]) -> np.ndarray:
    """Half of each text, 0 or 1: documents alternate, or windows if there are fewer than 6 documents."""
    return numbered(units_of(documents)[0])[0] % 2


def _sets_of(
    orders: Mapping[str, Sequence[np.ndarray]],
    shuffles: Sequence[np.ndarray],
    heads: Sequence[int],
    removed: np.ndarray,
    made_on: np.ndarray,
) -> np.ndarray:
    """``(set, text, head)``: for each text, the first heads of the orders from the other half."""
    inside = np.concatenate([np.arange(count) + layer * max(heads) for layer, count in enumerate(heads)])
    ranks: list[np.ndarray] = []  # (text, head): rank of each head in an order
    for scores in orders.values():
        flat = [np.nan_to_num(half.reshape(-1)[inside], nan=-np.inf) for half in scores]
        both = np.stack([stats.rankdata(-half, method="ordinal") - 1 for half in flat])  # the largest is 0
        ranks.append(both[made_on])
    ranks += [np.broadcast_to(shuffle, (len(made_on), len(shuffle))) for shuffle in shuffles]
    return np.stack([rank < count for rank in ranks for count in removed])


def alone_and_together(
    heads: Sequence[tuple[int, int] | Heads] | None, together: Sequence[Heads], *, as_one_set: bool
) -> tuple[list[tuple[int, int]] | None, list[Heads]]:
    """The heads that are ablated alone (None: all), and the sets of those that are ablated together."""
    if heads is None:
        return None, [*together]
    alone: list[Any] = [entry for entry in heads if isinstance(entry, tuple)]
    sets: list[Any] = [entry for entry in heads if not isinstance(entry, tuple)]
    if as_one_set and not sets and not together:
        return [], [alone] if alone else []
    return alone, [*sets, *together]


def joint_ablation(
    session: PredictionSession,
    sets: Sequence[Heads],
    ablations: Sequence[Ablation],
    effects: xr.Dataset,
    *,
    random: int = 0,
    matched: str = "layer",
    seed: int = 0,
) -> xr.Dataset:
    """Ablate chosen sets of heads, each set at once, next to random sets of heads of its size.

    The change is of the loss, or of a metric in its place. The random sets have as many heads in each layer (`matched`
    is ``layer``), in each group of about four heads of a layer whose estimated effects are next to each other
    (``effect``), or only as many (``size``). With them, ``p`` is the share of all sets, the chosen one included, that
    raise the loss at least as much (make the metric as much worse, or change it as much if neither direction is
    better): a set that was chosen without looking at its effect has p <= 0.05 in at most 5% of all cases. ``beyond`` is
    the effect of the set less the mean of the random ones, with an interval over documents.
    """
    cells, generator = session.cells, np.random.default_rng(seed)
    groups = _alike(session, matched, ablations[0]) if random else []
    others = [sets_like(heads, groups, random, generator) for heads in sets]
    every = [*sets, *chain(*others)]
    batches = [np.array([[cell in set(heads) for cell in cells] for heads in every])] * len(session.slices())
    about = session.measured
    measure, unit, subject, sign = measured_by(session)
    measured = np.stack([changes_by_sets(session, batches, ablation, measure) for ablation in ablations], 1)
    changes = measured[..., : len(sets)]
    single = effects[measure].sel(ablation=list(ablations)).transpose("window", "ablation", "layer", "head").values
    alone = np.stack([sum(single[..., layer, head] for layer, head in heads) for heads in sets], -1)
    units, called = units_of(session.documents)
    dims, words = ("ablation", "set"), f"Change of {subject} without the heads"
    how: Any = {"unit": unit, "corrected": "all sets and ablations", "seed": seed}
    variables = {
        measure: (("window", *dims), changes, {"long_name": words, "units": unit}),
        **joint_variables(changes, alone, units, dims, words, **how),
    }
    if random:
        at = np.cumsum([len(sets), *map(len, others)])
        drawn = [measured[..., start:stop] for start, stop in pairwise(at)]
        # what makes the model worse counts; a metric without a better direction counts both ways
        variables |= random_variables(changes, drawn, units, dims, words, sign=sign or None, **how)
    coordinates = {
        "source": ("window", np.array(session.documents, dtype=object)),
        "ablation": list(ablations),
        "set": [" ".join(f"{layer}.{head}" for layer, head in heads) for heads in sets],
    }
    attributes = {"intervals_over": called, **about, **({"matched": matched, "random": random} if random else {})}
    return xr.Dataset(variables, coordinates, attributes)


def _alike(session: PredictionSession, matched: str, ablation: Ablation) -> list[list[tuple[int, int]]]:
    """The heads in groups, from each of which a random set has as many as the chosen one."""
    if matched == "size":
        return [session.cells]
    layers = in_layers(session.cells)
    if matched == "layer":
        return layers
    estimated = _first_order(session, ablation)
    by_effect = [sorted(layer, key=lambda cell: estimated[cell]) for layer in layers]
    cuts = [np.array_split(np.arange(len(layer)), ceil(len(layer) / _ALIKE)) for layer in by_effect]
    return [[layer[at] for at in part] for layer, parts in zip(by_effect, cuts, strict=True) for part in parts]


def _first_order(session: PredictionSession, ablation: Ablation) -> np.ndarray:
    """Effect of ablating each head, estimated from one gradient, ``(layer, head)``."""
    estimates: list[np.ndarray] = []
    for part in session.slices():
        with session.passes(part, [ablation]) as batch:
            questions, others = batch.questions, batch.replacements[ablation]
        estimates.append(by_layer(attribution(loss_gradients(session.model, questions), others)))
    return np.concatenate(estimates).mean(0)
