"""Tests of attention weights as explanations: replace one head's weights and measure the predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.borrow import borrowed
from attnscope.capture.forward import forward
from attnscope.capture.notes import layer_coordinates
from attnscope.capture.verify import is_causal_model
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.study import Study
from attnscope.intervention.arrays import permuted_weights
from attnscope.intervention.calls import checked_heads, inputs_of
from attnscope.intervention.edits import same_size
from attnscope.intervention.gradients import check_gradients
from attnscope.intervention.questions import MASKED
from attnscope.kernels import full
from attnscope.kernels.call import AttentionCall
from attnscope.options import Count, Draws, Seed
from attnscope.read.windows import Window, window_name
from attnscope.statistics.intervals import interval
from attnscope.support.checked import checked
from attnscope.support.checks import check_real
from attnscope.support.errors import AttnscopeError
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope_lineage.weights import arrays, calls


class ReadText:
    """A text after an unchanged forward pass."""

    def __init__(
        self,
        model: PreTrainedModel,
        window: Window | Sequence[int],
        number: int,
        mask_id: int | None = None,
        *,
        masked: float = MASKED,
    ) -> None:
        self.model, self.name, self.mask_id = model, window_name(window, number), mask_id
        self.inputs = inputs_of(model, window)
        self.sides = calls.sides_of(self.inputs)
        self.positions = torch.arange(self.sides.predicting.stop - self.sides.predicting.start)
        if mask_id is not None and not is_causal_model(model) and not model.config.is_encoder_decoder:
            positions = np.flatnonzero(~np.array(getattr(window, "special", ()) or [False] * len(window), dtype=bool))
            if not positions.size:
                raise AttnscopeError(
                    f"{window_name(window, number)} has only special tokens, so none can be masked. Leave it out"
                )
            count = max(1, round(masked * positions.size))
            self.positions = torch.from_numpy(
                np.sort(np.random.default_rng(number).choice(positions, count, replace=False))
            )
            ids = self.inputs["input_ids"].clone()
            ids[0, self.positions] = mask_id
            self.inputs["input_ids"] = ids
        self.calls: list[AttentionCall] = []
        self.sites: list[Site] = []

        def observe(site: Site, call: AttentionCall) -> Tensor:
            self.sites.append(site)
            self.calls.append(call)
            return full.attended(call)[0]

        with torch.no_grad(), watching(model, observe):
            output = forward(model, self.inputs, lambda _: self.name)
        if output.ndim == 2:  # noqa: PLR2004 one prediction for the whole text
            self.positions = torch.tensor([0])
        self.log_probabilities = calls.log_probabilities(output, self.positions)[0]

    def head(self, layer: int, head: int) -> OneHead:
        return OneHead(self, layer, head)


@dataclass(eq=False)
class OneHead:
    """One head on a text, and the predictions if its output is replaced."""

    text: ReadText
    layer: int
    number: int

    @cached_property
    def weights(self) -> Float[np.ndarray, "query key"]:
        """Attention weights, float64."""
        return full.weights_of(self._call)[0, 0].double().cpu().numpy()

    @cached_property
    def values(self) -> Float[Tensor, "key value_width"]:
        return full.values_of(self._call)[0, 0]

    @cached_property
    def visible(self) -> Bool[np.ndarray, "query key"]:
        """The keys that its queries may attend to."""
        return self.text.calls[self.layer].allowed(0, self.number).cpu().numpy()

    @property
    def output(self) -> Float[Tensor, "query value_width"]:
        return full.attended(self._call)[0][0, 0]

    def of_weights(self, weights: Float[np.ndarray, "variant query key"]) -> Float[Tensor, "variant query value_width"]:
        """Output of the head with other weights."""
        return torch.from_numpy(weights).to(self.values) @ self.values

    def changed(
        self, outputs: Float[Tensor, "variant query value_width"]
    ) -> Float[Tensor, "variant prediction outcome"]:
        """Log probabilities with the head's output replaced, one forward pass for each variant."""
        text = self.text
        if outputs.requires_grad:
            calls.check_matrices(text.calls, text.name, in_a_graph=True)
        sizes = [call.query.shape[1] * call.query.shape[2] * call.key.shape[2] for call in text.calls]
        size = max(1, calls.NUMBERS_AT_ONCE // max(*sizes, text.log_probabilities.numel()))
        return torch.cat([self._changed(part) for part in outputs.split(size)])

    def effects(
        self, outputs: Float[Tensor, "variant query value_width"]
    ) -> dict[str, Float[np.ndarray, "variant prediction"]]:
        """Distances from the unchanged predictions: ``tvd`` (share), ``jsd`` (nats), ``flipped`` (0 or 1)."""
        before = self.text.log_probabilities
        parts = outputs.detach().split(max(1, calls.NUMBERS_AT_ONCE // max(1, before.numel())))
        moved = [
            {
                "tvd": prediction_distance(after, before),
                "jsd": prediction_divergence(after.exp(), before.exp()),
                "flipped": after.argmax(-1) != before.argmax(-1),
            }
            for after in map(self.changed, parts)
        ]
        return {name: torch.cat([part[name] for part in moved]).double().cpu().numpy() for name in moved[0]}

    def by_weights(self) -> Float[np.ndarray, "query key"]:
        """Derivative of the sum of the log probabilities of the likeliest outcomes, with respect to the weights."""
        with torch.enable_grad():
            output = self.output.detach().requires_grad_()
            best = self.changed(output[None])[0].gather(-1, self.text.log_probabilities.argmax(-1, keepdim=True)).sum()
            (slope,) = torch.autograd.grad(best, output, materialize_grads=True, allow_unused=True)
        # output = weights @ values, so the derivative by the weights is that by the output times values^T
        return (slope.to(self.values) @ self.values.T).double().cpu().numpy()

    def _changed(self, outputs: Tensor) -> Tensor:
        def observe(site: Site, call: AttentionCall) -> Tensor:
            output = full.attended(call)[0]
            if site.index == self.layer:
                output = output.clone()
                output[:, self.number] = outputs.to(output.dtype)
            return output

        text, copies = self.text, len(outputs)
        several = {name: tensor.expand(copies, *tensor.shape[1:]) for name, tensor in text.inputs.items()}
        with torch.set_grad_enabled(outputs.requires_grad), watching(text.model, observe):
            return calls.log_probabilities(forward(text.model, several, lambda _: text.name), text.positions)

    @property
    def _call(self) -> AttentionCall:
        """The attention call of this head alone."""
        return self.text.calls[self.layer].part(slice(self.number, self.number + 1))


def prediction_distance(
    after: Float[Tensor, "*batch outcome"], before: Float[Tensor, "*others"]
) -> Float[Tensor, "*batch"]:
    """TVD of log probabilities, differentiable."""
    return (after.exp() - before.exp()).abs().sum(-1) / 2


def prediction_divergence(p: Float[Tensor, "*batch outcome"], q: Float[Tensor, "*others"]) -> Float[Tensor, "*batch"]:
    """JSD in nats, differentiable."""
    return (_information(p) + _information(q) - 2 * _information((p + q) / 2)).sum(-1).clamp_min(0.0) / 2


def _information(p: Tensor) -> Tensor:
    """P ln p with a finite slope at 0, for masked keys."""
    return p * p.clamp_min(torch.finfo(p.dtype).tiny).log()


OfHead = Callable[[OneHead, np.random.Generator], Mapping[str, Any]]

Head = tuple[int, int]


class HeadOptions(TypedDict, total=False):
    """Options of every test."""

    heads: Sequence[Head] | None  # ``(layer, head)`` each; None for all
    masked: float  # see `ReadText`
    seed: Seed  # each head of each text has its own random numbers
    progress: Tell | None  # called with a `Progress` after each head


def over_heads(
    study: Study,
    test: str,
    variables: Mapping[str, tuple[str, ...]],
    of_text: Callable[[ReadText, int], OfHead | None],
    coordinates: Mapping[str, Sequence[Any]] | None = None,
    *,
    predicts: bool = True,
    heads: Sequence[Head] | None,
    masked: float,
    seed: int,
    progress: Tell | None,
) -> xr.Dataset:
    """Run a test on all chosen heads in every text.

    `variables` maps names to descriptions, units, and dimensions after ``window, layer, head``; `predicts` is whether
    the test compares predictions.
    """
    check_real(0.0, 1.0, masked=masked)
    coordinates, tell = coordinates or {}, progress or no_progress
    values: dict[str, np.ndarray] = {}
    sites: list[Any] = []
    chosen: list[Head] = []
    with borrowed(study.model):
        reason = ""
        if predicts:
            reason = calls.lacks_predictions(study.model, inputs_of(study.model, study.windows[0]))
        if reason:
            raise AttnscopeError(
                f"{test} compares predictions, and {reason}. Use a model with a head, such as BertForMaskedLM"
            )
        for number, window in enumerate(study.windows):
            text = ReadText(study.model, window, number, study.mask_id if predicts else None, masked=masked)
            if not values:
                sites = text.sites
                counts = [call.query.shape[1] for call in text.calls]
                every = [(layer, head) for layer, count in enumerate(counts) for head in range(count)]
                chosen = every if heads is None else checked_heads(heads, every, "heads")
                size = len(study.windows), len(counts), max(counts)
                values = {
                    name: np.full((*size, *(len(coordinates[dim]) for dim in more)), np.nan)
                    for name, (_, _, *more) in variables.items()
                }
            of_head = of_text(text, number)
            for done, (layer, head) in enumerate(chosen):
                if of_head is not None:
                    generator = np.random.default_rng((seed, number, layer, head))
                    for name, value in of_head(text.head(layer, head), generator).items():
                        values[name][number, layer, head] = value
                tell(Progress(test.replace("_", " "), (number + (done + 1) / len(chosen)) / len(study.windows)))
    result = xr.Dataset(
        {
            name: (("window", "layer", "head", *more), values[name], {"long_name": long_name, "units": units})
            for name, (long_name, units, *more) in variables.items()
        },
        {
            "window": np.arange(len(study.windows)),
            "source": ("window", np.array(study.documents, dtype=object)),
            **layer_coordinates(sites),
            "head": np.arange(next(iter(values.values())).shape[2]),
            **coordinates,
        },
    ).assign_attrs(model=study.name, test=test, seed=seed)
    return with_intervals(result, list(variables), study.documents, seed=seed)


EFFECTS = {
    "tvd": ("Total variation distance of the predictions", "share"),
    "jsd": ("Jensen-Shannon divergence of the predictions", "nats"),
    "flipped": ("Predictions whose likeliest outcome changes", "share"),
    "tvd_null": ("Distance of the predictions after random changes of the head's output of the same size", "share"),
    "weights_tvd": ("Total variation distance of the weights, mean over rows", "share"),
}


@checked(masked=MASKED)
def permutation_test(study: Study, *, draws: Draws = 100, **options: Unpack[HeadOptions]) -> xr.Dataset:
    """Permute each row of a head's weights, and measure how far predictions move.

    Parameters
    ----------
    study
        A model and its texts, from `attnscope.explanation.study.study`.
    draws
        Number of permutations of each head's weights, each within the keys that a row may attend to.
    heads
        ``(layer, head)`` of the heads to test; by default all.
    masked
        Share of the tokens that is masked for a masked language model; the test is about its predictions there.
    seed
        Seed of the random numbers; each head of each window has its own.
    progress
        Called with a `Progress` after each head.

    Returns
    -------
    xarray.Dataset
        Over ``(window, layer, head)``, NaN for heads that are not tested. Medians over permutations of means over
        predictions: ``tvd`` (share) and ``jsd`` (nats), distance and divergence of the predictions from those of the
        model, and ``flipped``, the share whose likeliest outcome changes. ``tvd_null``: the distance after random
        changes of the head's output of the same size. ``weights_tvd``: distance of the weights; ``max_weight``: the
        largest weight of a row, mean over rows. With ``_mean``, ``_low`` and ``_high``, mean over windows and its 95%
        interval over documents (NaN where there are too few).

    Raises
    ------
    AttnscopeError
        If the model makes no predictions of tokens, or a head does not exist.

    References
    ----------
    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.1.
    """

    def of_head(one: OneHead, generator: np.random.Generator) -> dict[str, float]:
        several = np.stack([permuted_weights(one.weights, generator, one.visible) for _ in range(draws)])
        return replaced(one, several, generator) | {"max_weight": float(one.weights.max(1).mean())}

    variables = EFFECTS | {"max_weight": ("Largest weight of a row, mean over rows", "share")}
    return over_heads(study, "permutation_test", variables, lambda _, __: of_head, **options)


@checked(masked=MASKED)
def uniform_test(study: Study, *, draws: Draws = 20, **options: Unpack[HeadOptions]) -> xr.Dataset:
    """Replace a head's weights by uniform attention, and measure how far predictions move."""

    def of_head(one: OneHead, generator: np.random.Generator) -> dict[str, float]:
        return replaced(one, arrays.uniform_weights(one.weights, one.visible)[None], generator, draws)

    return over_heads(study, "uniform_test", EFFECTS, lambda _, __: of_head, **options)


def replaced(
    one: OneHead, several: Float[np.ndarray, "variant query key"], generator: np.random.Generator, draws: int = 1
) -> dict[str, float]:
    """Effects of replaced weights, as medians over variants, and of random changes of the same size."""
    outputs = one.of_weights(several)
    effects = one.effects(outputs)
    random = one.effects(same_size(outputs, one.output, generator, draws))
    medians = {name: float(np.median(values.mean(1))) for name, values in effects.items()}
    moved = [float(arrays.total_variation(one.weights, other).mean()) for other in several]
    return medians | {"tvd_null": float(np.median(random["tvd"].mean(1))), "weights_tvd": float(np.median(moved))}


#: Orders in which weights are erased (Serrano and Smith 2019).
ORDERS = ("attention", "gradient", "product", "random")
FRACTIONS = tuple(np.linspace(0.1, 1.0, 10).round(3).tolist())
_ERASURE = {
    "flipped": ("Predictions that flipped at this fraction or before", "share", "order", "fraction"),
    "tvd": ("Total variation distance of the predictions", "share", "order", "fraction"),
    "fraction_to_flip": ("Fraction at which a prediction flips, mean over those that do", "share", "order"),
}


@checked(masked=MASKED)
def erasure_test(
    study: Study, *, fractions: Sequence[float] = FRACTIONS, draws: Draws = 5, **options: Unpack[HeadOptions]
) -> xr.Dataset:
    """Erase a head's weights, the most important first, until predictions flip."""
    shares = [float(share) for share in fractions]
    for share in shares:
        check_real(0.0, 1.0, fractions=share)
    if not shares or sorted(set(shares)) != shares:
        raise AttnscopeError(f"found fractions {shares[:5]}; expected increasing numbers, such as 0.1, 0.2, 0.5, 1.0")
    check_gradients(study.model, "tests without gradients")

    def of_head(one: OneHead, generator: np.random.Generator) -> dict[str, Any]:
        slope = one.by_weights()
        importance = {"attention": one.weights, "gradient": slope, "product": one.weights * slope}
        curves = {name: [_curve(one, by, shares)] for name, by in importance.items()}
        random = [generator.random(slope.shape) for _ in range(draws)]
        curves["random"] = [_curve(one, by, shares) for by in random]
        return {
            "flipped": [np.mean([flips.mean(1) for flips, _ in curves[name]], 0) for name in ORDERS],
            "tvd": [np.mean([moved for _, moved in curves[name]], 0) for name in ORDERS],
            "fraction_to_flip": [_first(np.hstack([flips for flips, _ in curves[name]]), shares) for name in ORDERS],
        }

    coordinates = {"order": list(ORDERS), "fraction": shares}
    return over_heads(study, "erasure_test", _ERASURE, lambda _, __: of_head, coordinates, **options)


def _curve(
    one: OneHead, importance: Float[np.ndarray, "query key"], fractions: Sequence[float]
) -> tuple[Float[np.ndarray, "fraction prediction"], Float[np.ndarray, " fraction"]]:
    """Predictions that have flipped at each fraction or before, and the mean distance of all."""
    several = np.stack([arrays.erased_weights(one.weights, importance, share, one.visible) for share in fractions])
    effects = one.effects(one.of_weights(several))
    return np.maximum.accumulate(effects["flipped"], 0), effects["tvd"].mean(1)


def _first(flips: Float[np.ndarray, "fraction prediction"], fractions: Sequence[float]) -> float:
    """Mean fraction at which predictions flip, over those that do."""
    which = flips.any(0)
    return float(np.array(fractions)[flips[:, which].argmax(0)].mean()) if which.any() else np.nan


_SAME_OUTPUT_VARIABLES = {
    "weights_tvd": ("Distance of other weights with the same output, mean over rows", "share"),
    "weights_jsd": ("Divergence of other weights with the same output, mean over rows", "nats"),
    "top_before": ("Largest weight of a row, mean over rows", "share"),
    "top_after": ("Weight of that token afterwards, mean over rows", "share"),
    "free": ("Rows for which other weights with the same output were found", "share"),
    "output_error": ("Largest change of the output, as a share of its largest value", "share"),
    "weights_tvd_null": ("The distance for weights in random order", "share"),
    "free_null": ("Rows for which other weights were found, for weights in random order", "share"),
}


@checked(masked=MASKED)
def same_output_test(
    study: Study,
    *,
    objective: Literal["top_weight", "distance"] = "top_weight",
    rows: Count = 16,
    **options: Unpack[HeadOptions],
) -> xr.Dataset:
    r"""Find other weights of each head with exactly the same output, so that weights do not determine importance.

    The output of a head is linear in its weights: all :math:`\alpha' \ge 0` with
    :math:`V^\top\alpha' = V^\top\alpha` and the same sum give the same output. A linear program finds those that
    differ most.

    Parameters
    ----------
    study
        A model and its texts, from `attnscope.explanation.study.study`.
    objective
        ``top_weight``: the least weight that the token with the largest weight can have, which is exact. ``distance``:
        the largest total variation distance from the head's own weights, a lower bound.
    rows
        Number of rows (queries) of each window, evenly spaced.
    heads
        ``(layer, head)`` of the heads to test; by default all.
    masked
        Share of the tokens that is masked for a masked language model; the test is about its predictions there.
    seed
        Seed of the random numbers; each head of each window has its own.
    progress
        Called with a `Progress` after each head.

    Returns
    -------
    xarray.Dataset
        Over ``(window, layer, head)``, NaN for heads that are not tested; means over rows. ``weights_tvd`` (share) and
        ``weights_jsd`` (nats): distance and divergence of the weights found from the head's own. ``top_before``,
        ``top_after``: largest weight of a row, and the weight of that token afterwards. ``free``: share of rows for
        which other weights exist. ``output_error``: largest change of the output, as a share of its largest value.
        ``weights_tvd_null``, ``free_null``: the same for the head's weights in random order. With ``_mean``, ``_low``
        and ``_high``, mean over windows and its 95% interval over documents (NaN where there are too few).

    Raises
    ------
    AttnscopeError
        If a window is too long for the linear program, or a head does not exist.

    References
    ----------
    Jain and Wallace (2019), Attention is not Explanation, NAACL 2019, section 4.2.2, who search for such weights of a
    whole model by gradients.
    """

    def of_head(one: OneHead, generator: np.random.Generator) -> dict[str, float]:
        values, count = one.values.double().cpu().numpy(), len(one.weights)
        which = np.unique(np.linspace(0, count - 1, min(rows, count)).round().astype(int))
        weights, visible = one.weights[which], one.visible[which]
        searched, null = (
            arrays.adversarial_weights(matrix, values, objective=objective, allowed=visible, seed=options["seed"])
            for matrix in (weights, permuted_weights(weights, generator, visible))
        )
        names = {"tvd": "weights_tvd", "jsd": "weights_jsd", "is_free": "free"}
        means, others = (one.drop_vars("weights").mean("query").rename(names) for one in (searched, null))
        dataset = {str(name): float(value) for name, value in means.items()}
        nulls = {f"{name}_null": float(others[name]) for name in ("weights_tvd", "free")}
        return dataset | nulls | {"output_error": float(searched.output_error.max())}

    variables = _SAME_OUTPUT_VARIABLES
    dataset = over_heads(study, "same_output_test", variables, lambda _, __: of_head, predicts=False, **options)
    return dataset.assign_attrs(objective=objective)


@checked(masked=MASKED)
def frozen_test(study: Study, *, draws: Draws = 20, **options: Unpack[HeadOptions]) -> xr.Dataset:
    """Replace a head's weights by its weights on another text, and measure how far predictions move."""
    lengths = [(len(window), len(getattr(window, "target", None) or window)) for window in study.windows]
    documents = study.documents

    def of_text(_: ReadText, number: int) -> Callable[..., dict[str, float]] | None:
        fits = (
            other
            for other in [(number + step) % len(lengths) for step in range(1, len(lengths))]
            if documents[other] != documents[number]
            and all(long >= short for long, short in zip(lengths[other], lengths[number], strict=True))
        )
        donor = next(fits, None)
        if donor is None:
            return None
        other = ReadText(study.model, study.windows[donor], donor, study.mask_id, masked=options["masked"])

        def of_head(one: OneHead, generator: np.random.Generator) -> dict[str, float]:
            # weights of the longer text at the positions of this one, scaled to the sums of its rows
            queries, keys = one.weights.shape
            part = np.where(one.visible, other.head(one.layer, one.number).weights[:queries, :keys], 0.0)
            total = part.sum(1, keepdims=True)
            equal = arrays.uniform_weights(one.weights, one.visible)  # for rows whose weight is beyond the shorter text
            frozen = np.where(
                total > 0, part / np.where(total > 0, total, 1) * one.weights.sum(1, keepdims=True), equal
            )
            return replaced(one, frozen[None], generator, draws)

        return of_head

    return over_heads(study, "frozen_test", EFFECTS, of_text, **options)


_SHARES = np.linspace(1.0, 0.0, 21)  # mixtures of other weights with the head's own
_LEAST = 1e-6  # initial weight of keys without weight
_NOISE = 0.1  # initial noise of the logits, because both distances have no slope at 0
_RATE = 0.2  # learning rate of Adam, in logits
_ADVERSARIAL = {
    "weights_jsd": ("Largest divergence of weights within the bound, mean over rows", "nats"),
    "weights_tvd": ("Total variation distance of these weights, mean over rows", "share"),
    "tvd": ("Total variation distance of the predictions with them", "share"),
    "weights_jsd_null": ("Divergence of permuted weights that are moved up to the bound, median", "nats"),
}


@checked(masked=MASKED)
def adversarial_test(
    study: Study, *, bound: float = 0.05, steps: Draws = 50, draws: Draws = 4, **options: Unpack[HeadOptions]
) -> xr.Dataset:
    r"""Search for weights that differ most from a head's own while predictions move by at most a bound."""
    check_real(0.0, 1.0, bound=bound)

    def of_head(one: OneHead, generator: np.random.Generator) -> dict[str, float]:
        search = WeightSearch(one, bound)
        furthest = search.furthest(search.climb(steps, generator))
        random = [search.furthest(permuted_weights(one.weights, generator, one.visible)[None])[0] for _ in range(draws)]
        return {
            "weights_jsd": search.divergence(furthest[0]),
            "weights_tvd": float(arrays.total_variation(one.weights, furthest[0]).mean()),
            "tvd": furthest[1],
            "weights_jsd_null": float(np.median([search.divergence(weights) for weights in random])),
        }

    return over_heads(study, "adversarial_test", _ADVERSARIAL, lambda _, __: of_head, **options).assign_attrs(
        bound=bound, steps=steps
    )


class WeightSearch:
    """Search for other weights of one head within the bound."""

    def __init__(self, one: OneHead, bound: float) -> None:
        self.one, self.bound = one, bound

    def divergence(self, weights: Float[np.ndarray, "query key"]) -> float:
        """Jensen-Shannon divergence, mean over rows, nats."""
        return float(arrays.jensen_shannon(self.one.weights, weights).mean())

    def climb(self, steps: int, generator: np.random.Generator) -> Float[np.ndarray, "variant query key"]:
        """Two results of gradient ascent: the furthest weights within the bound, and the last ones."""
        values = self.one.values
        weights = torch.from_numpy(self.one.weights).to(values)
        total = weights.sum(-1, keepdim=True)
        hidden = torch.from_numpy(~self.one.visible).to(weights.device)
        noise = torch.from_numpy(generator.normal(size=weights.shape)).to(weights)
        logits = (weights.clamp_min(_LEAST).log() + _NOISE * noise).masked_fill(hidden, -torch.inf)
        # a row without visible keys has a total of 0, whatever its softmax
        logits = logits.masked_fill(hidden.all(-1, keepdim=True), 0.0).requires_grad_()
        optimiser = torch.optim.Adam([logits], lr=_RATE)
        best, furthest = weights, 0.0
        moved_weights = weights
        with torch.enable_grad():
            for _ in range(steps):
                moved_weights = logits.softmax(-1) * total
                moved, far = self._moved(moved_weights @ values), prediction_divergence(moved_weights, weights).mean()
                if float(moved.detach()) <= self.bound and float(far.detach()) > furthest:
                    best, furthest = moved_weights.detach(), float(far.detach())
                # far from the own weights, with a penalty for predictions that move beyond the bound: the relaxed
                # objective of Jain and Wallace (2019), section 4.2.2
                loss = -far + (moved - self.bound).clamp_min(0.0) / max(self.bound, _LEAST)
                optimiser.zero_grad()
                (logits.grad,) = torch.autograd.grad(loss, logits)
                optimiser.step()
        return torch.stack([best, moved_weights.detach()]).double().cpu().numpy()

    def furthest(self, several: Float[np.ndarray, "variant query key"]) -> tuple[Float[np.ndarray, "query key"], float]:
        """The furthest mixture of the head's own weights and others within the bound, and its distance."""
        weights = self.one.weights
        mixed = np.concatenate([[weights + share * (others - weights) for share in _SHARES] for others in several])
        reached = self.one.effects(self.one.of_weights(mixed))["tvd"].mean(1)
        # the head's own weights move nothing; remove the rounding of a batch
        reached[len(_SHARES) - 1 :: len(_SHARES)] = 0.0
        far = np.array([self.divergence(np.maximum(others, 0.0)) for others in mixed])
        chosen = int(np.where(reached <= self.bound, far, -1.0).argmax())
        return mixed[chosen], float(reached[chosen])

    def _moved(self, output: Tensor) -> Tensor:
        return prediction_distance(self.one.changed(output[None]), self.one.text.log_probabilities).mean()


def with_intervals(effects: xr.Dataset, names: Sequence[str], documents: Sequence[str], *, seed: int = 0) -> xr.Dataset:
    """Add to each variable its mean over texts and its 95% interval over documents."""
    added: dict[str, xr.DataArray] = {}
    for name in names:
        values = effects[name].transpose("window", ...)
        mean, (low, high) = values.mean("window"), interval(values.values, documents, seed=seed)
        for end, part, words in (
            ("mean", mean.values, "mean over texts"),
            ("low", low, "lower end"),
            ("high", high, "upper end"),
        ):
            attrs = values.attrs | {"long_name": f"{values.attrs.get('long_name', name)}, {words}"}
            added[f"{name}_{end}"] = mean.copy(data=part).assign_attrs(attrs)
    return effects.assign(added)
