"""Position schemes within the scores (RoPE, T5, ALiBi): the offsets they predict, and the effect of removing them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Complex, Float
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.explanation import profiles
from attnscope.explanation.analyses import verdict
from attnscope.explanation.arrays.shares import covariance, jackknife, without_own
from attnscope.explanation.inputs import Tokens, model_inputs, read_all, token_ids
from attnscope.explanation.projections import projections
from attnscope.explanation.study import (
    SCHEME,
    SHARES,
    Picture,
    Section,
    Study,
    analysis,
    lacks_bias,
    lacks_rotation,
    lacks_rotation_and_bias,
)
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.positions import Rotation, pair_columns
from attnscope.options import Count, Draws, Seed
from attnscope.report.schema import Quantity, Row
from attnscope.statistics.units import units_of
from attnscope.support.checks import check_some

KERNEL = Section(
    "kernel",
    "Prediction of the position scheme",
    "RoPE favours offsets at which mean query and mean key rotate into phase; a position bias favours them directly. "
    "Each gives a curve over offsets that is independent of the words. If the scheme decides, the head attends "
    "where the curve peaks.",
)


_RANDOM = {
    "rotation": "with random phases of the rotation",
    "bias": "with the values of the bias in random order",
    "rotation and bias": "with random phases of the rotation and the values of the bias in random order",
}


def _columns(kernel: xr.Dataset) -> dict[str, Quantity]:
    scheme = str(kernel.attrs.get("scheme", "position scheme"))
    random = _RANDOM.get(scheme, "with its values in random order")
    at = f"offset at which the {scheme} alone is largest"
    named = scheme.replace("rotation", "RoPE").replace("position scheme", "scheme")
    chance = Quantity("kernel_chance", f"{named} if random", "share", f"how often {random}", group=SCHEME)
    share = f"how much of the variance of the mean scores over offsets {named} alone explains, whatever the words"
    agrees = "whether that is within 1 token of the offset of the weights"
    return {
        "offset_of_kernel": Quantity("offset_of_kernel", named, "tokens", at, group=SCHEME),
        "agree": Quantity("kernel_agrees", f"{named} matches", meaning=agrees, group=SCHEME, like=chance.name),
        "chance": chance,
        "share": Quantity("kernel_share", f"{named} share", "share", share, group=SHARES),
    }


def predicted_offsets(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """How many offsets the position scheme alone predicts, and how many by chance, in a sentence."""
    judged = [row for row in rows if row.get("kernel_agrees") is not None]
    if not judged:
        return []
    chances = [row["kernel_chance"] for row in judged if row["kernel_chance"] is not None]
    agreeing = sum(bool(row["kernel_agrees"]) for row in judged)
    certainty = verdict.by_chance(agreeing, chances, judged)
    those = verdict.out_of(agreeing, len(judged))
    return [f"The {verdict.scheme_of(tree)} alone predicts the offset of {those} within 1 token ({certainty})."]


def _of_study(study: Study) -> xr.Dataset:
    """The kernel next to the weights, of heads that favour an offset."""
    kernel = scheme_kernel.alone(study)
    prefers = verdict.weight_peaks(study.evidence).prefers.reindex_like(kernel.agree, fill_value=False)
    return without_flat_curves(kernel, prefers.reset_coords(drop=True))


@analysis(
    "scheme_kernel",
    "Prediction of the position scheme",
    "Position and content",
    explained=_of_study,
    needs=(lacks_rotation_and_bias,),
    section=KERNEL,
    pictures=(
        Picture(
            "scheme-kernel",
            "Scores and position scheme",
            "Mean scores, and the part from RoPE or the bias alone, each about its mean; masked offsets are "
            "left out. Dotted: the offset of the largest weight and the scheme's peak, if significant. Below: the "
            "contribution of each pair of columns. Fast pairs separate neighbouring tokens, slow ones do not.",
            draw="attnscope.results.figures.explain:scheme_kernel",
            of="heads",
        ),
    ),
    units="share",
    few_texts=True,
    columns=_columns,
    findings=predicted_offsets,
)
@torch.no_grad()
def scheme_kernel(
    study: Study, *, band: Count | None = None, draws: Draws = 400, seed: Seed | None = None
) -> xr.Dataset:
    r"""Scores that the position scheme alone predicts at each offset, and whether the head attends where they peak.

    See mathematics.md, Position and content (Kernel of a scheme). Under RoPE the mean query and the mean key over
    all texts and positions, before they turn, give

    .. math:: k(\Delta) = \sum_c |\bar q_c||\bar k_c|\cos(\omega_c\Delta + \varphi_c),

    a sum over pairs of columns c that turn by :math:`\omega_c` a token. Where the scores have a bias
    by distance, its mean over texts is added. Peaks are searched at visible offsets within the band; a curve that
    still rises at its edge has no peak.

    Parameters
    ----------
    band
        Largest offset.
    draws, seed
        Number and seed of the random kernels behind ``chance``.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head, offset, pair``; NaN in layers without rotation and bias. The attribute ``scheme`` is
        ``rotation``, ``bias`` or ``rotation and bias``.

        * ``kernel``: :math:`k(\Delta)` in nats, scale included; NaN at masked offsets.
        * ``scores``: mean scores, as in `position_content`: keys are about their mean over the text.
        * ``share``: share of the variance of ``scores`` over offsets that the kernel accounts for
          (`covariance_share`), with its jackknife interval over documents (windows, with fewer than 6 documents) in
          ``_low`` and ``_high``; NaN with fewer than 6 windows.
        * ``swing``: largest minus smallest value of the kernel, nats.
        * ``offset_of_weights``, ``peak_weight``: offset and size of the largest mean weight.
        * ``offset_of_kernel``: offset of the kernel's peak; NaN without one.
        * ``agree``: whether the two offsets differ by at most 1 token; NaN if the weights have no peak.
        * ``chance``: how often they agree by chance: same amplitudes but random phases :math:`\varphi_c`, and the
          values of a bias in random order.
        * By pair: ``period``, tokens per turn; ``strength``, :math:`|\bar q_c||\bar k_c|` in nats; ``phase``,
          :math:`\varphi_c`; ``pair_share``, the pair's part of ``share``.

        In the tree of `attnscope.explain` ``share``, ``offset_of_weights``, ``agree`` and ``chance`` are NaN for heads
        without a favoured offset, and ``offset_of_kernel`` too if the kernel is flat or a small part of the scores.
    """
    model, windows = study.model, study.first()
    band, seed = band or study.band, study.seed if seed is None else seed
    ids = token_ids(windows, least=2)
    rotations = _rotations(model, ids)
    layers: dict[int, _Layer] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        if site.kind != "cross" and site.index not in layers:
            layers[site.index] = _Layer(site, rotations.get(site.index), band)
        if site.index in layers:
            return layers[site.index].add(call)
        return profiles.profile_and_output(call, 0)[1]

    read_all(model, ids, observe)
    rng = np.random.default_rng(seed)
    units, called = units_of(ids.documents)
    judged = [layers[index].judged(units, draws, rng) for index in sorted(layers)]
    schemes = {
        "rotation": any(layer.rotation is not None for layer in layers.values()),
        "bias": any(layer.biased for layer in layers.values()),
    }
    return _stacked(judged, [layers[index].site for index in sorted(layers)], band).assign_attrs(
        scheme=" and ".join(name for name, present in schemes.items() if present),
        texts=len(ids),
        length=ids.length,
        intervals_over=called,
    )


def _rotations(model: PreTrainedModel, ids: Tokens) -> dict[int, Rotation]:
    """The rotation of queries and keys of each layer that has one."""
    matrices = projections(model, model_inputs(model, ids[:1]))
    return {site.index: layer.rotation for site, layer in matrices.items() if layer.rotation is not None}


def without_flat_curves(kernel: xr.Dataset, prefers: xr.DataArray) -> xr.Dataset:
    """The kernel without the peaks of flat curves, which random weights have too."""
    of_preferring = kernel[["share", "offset_of_weights", "agree", "chance"]].where(prefers)
    makes = (kernel.share_low > verdict.MOST) & (kernel.swing > np.log(2))
    return kernel.assign(of_preferring.data_vars).assign(
        offset_of_kernel=kernel.offset_of_kernel.where(prefers | makes)
    )


_effect = partial(Picture, draw="attnscope.results.figures.panels:scheme_effect", of="heads")
_NEAR = 1.0  # tokens: offsets at most this far apart match
_FLAT = 1e-9  # nats: a kernel with a smaller range has no peak


@dataclass(eq=False)
class _Layer:
    """One layer: its numbers for every text, with one offset beyond the band to detect peaks at its edge."""

    site: Site
    rotation: Rotation | None
    band: int
    biased: bool = False
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    call: AttentionCall | None = None

    def add(self, call: AttentionCall) -> Tensor:
        reach = self.band + 1
        profile, output = profiles.profile_and_output(call, reach)
        bias = profiles.bias_traces(call, reach)
        measured = {"profile": profile, "bias": bias, "scores": profiles.score_traces(call, reach).cpu() + bias}
        if self.rotation is not None:
            # RoPE turns a pair of columns like a complex number, by exp(i omega position) (Su et al. 2021, section 3)
            sides = call.query, call.key.repeat_interleave(call.group, 1)
            first, second = pair_columns(self.rotation.layout, self.rotation.cos.shape[1])
            for name, side in zip(("query", "key"), sides, strict=True):
                mean = self.rotation.undo(side.double()).mean(2).cpu()
                measured[name] = torch.complex(mean[..., first], mean[..., second])
        for name, values in measured.items():
            self.parts.setdefault(name, []).append(values.numpy())
        self.biased = self.biased or call.bias is not None
        self.call = call
        return output

    def judged(self, units: Sequence[Hashable], draws: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """``(head, ...)`` each."""
        assert self.call is not None  # noqa: S101 a layer is made at its first call
        parts = {name: np.concatenate(texts) for name, texts in self.parts.items()}  # (text, head, ...)
        reach = self.band + 1
        allowed = profiles.visible_offsets(self.call, reach) & np.isfinite(parts["bias"]).all((0, 1))
        pairs = profiles.pairs_at(self.call.query.shape[2], self.call.key.shape[2], reach)
        pairs = np.where(allowed & (pairs > 0), pairs, np.nan)
        profile = parts["profile"].mean(0) + 0 * pairs
        offset = _peaks(profile)
        arrays = {
            "offset_of_weights": offset,
            verdict.WEIGHT.name: np.nanmax(profile[:, 1:-1], -1),
            "scores": (parts["scores"].mean(0) / pairs)[:, 1:-1],
        }
        if self.rotation is None and not self.biased:
            return arrays
        turning = None if self.rotation is None else _Turning.of(self.rotation, self.call, reach)
        account = _Account(parts, turning, pairs)
        kernel = account.kernel()
        inner = kernel[:, 1:-1]
        at = _peaks(kernel)
        share = jackknife(account.share(), units, lambda _, subset: account.share(subset))
        arrays |= {
            "kernel": inner,
            "swing": np.nanmax(inner, -1) - np.nanmin(inner, -1),
            "offset_of_kernel": at,
            "agree": np.where(np.isfinite(offset), np.abs(at - offset) <= _NEAR, np.nan),
            "chance": np.mean([np.abs(_peaks(account.kernel(rng)) - offset) <= _NEAR for _ in range(draws)], axis=0)
            + 0 * offset,
            **dict(zip(("share", "share_low", "share_high"), share, strict=True)),
        }
        return arrays | account.by_pair()


@dataclass(frozen=True, eq=False)
class _Turning:
    """The rotation of pairs of columns: the factor of mean query times mean key at each offset."""

    factor: Float[np.ndarray, " pair"]  # scale of the scores, and the rotation's own (YaRN)
    rates: Float[np.ndarray, " pair"]
    waves: Complex[np.ndarray, "pair offset"]  # of a single score
    traces: Complex[np.ndarray, "pair offset"]  # of all scores at an offset, keys about their mean over the text

    @classmethod
    def of(cls, rotation: Rotation, call: AttentionCall, reach: int) -> _Turning:
        rates = rotation.rates.cpu().numpy()
        length = call.query.shape[2]
        turned = np.exp(1j * rates[:, None] * np.arange(length))
        waves = np.exp(1j * rates[:, None] * np.arange(-reach, reach + 1))
        traces = waves * profiles.pairs_at(length, length, reach)
        if call.softcap is None and call.sinks is None:  # as `centred_keys` has it
            # what each query scores with the mean key, summed over the queries that have a key at the offset
            rows = turned.conj() * turned.mean(-1, keepdims=True)
            for column, t in enumerate(range(-reach, reach + 1)):
                traces[:, column] -= rows[:, max(0, -t) : max(0, min(length, length - t))].sum(-1)
        return cls(call.scale * (rotation.cos**2 + rotation.sin**2)[0].double().cpu().numpy(), rates, waves, traces)


@dataclass(frozen=True, eq=False)
class _Account:
    """The kernel and the mean scores of one layer's heads."""

    parts: dict[str, np.ndarray]
    turning: _Turning | None
    pairs: Float[np.ndarray, " offset"]  # NaN at masked offsets

    @property
    def texts(self) -> int:
        return len(self.parts["bias"])

    def product(self, subset: Sequence[int]) -> Complex[np.ndarray, "head pair"]:
        """Mean query times mean key of different texts, so a token's match with itself does not count."""
        assert self.turning is not None  # noqa: S101 called where something turns
        query, key = self.parts["query"][subset].conj(), self.parts["key"][subset]
        return self.turning.factor * without_own(query.mean(0) * key.mean(0), (query * key).mean(0), len(subset))

    def kernel(self, rng: np.random.Generator | None = None) -> Float[np.ndarray, "head offset"]:
        """Nats; with `rng`, of the same amplitudes but random phases, and of biases in random order."""
        bias = self.parts["bias"].mean(0) / self.pairs
        if rng is not None:
            finite = np.isfinite(self.pairs)
            bias[:, finite] = rng.permuted(bias[:, finite], axis=1)
        if self.turning is None:
            return bias
        product = self.product(range(self.texts))
        if rng is not None:
            product = np.abs(product) * np.exp(2j * np.pi * rng.random(product.shape))
        return bias + np.real(product @ self.turning.waves)

    def shares(self, subset: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Shares of the bias ``(head,)`` and of each pair ``(head, pair)`` in the variance of the mean scores."""
        pairs = np.where(np.arange(len(self.pairs)) % (len(self.pairs) - 1), self.pairs, np.nan)  # the band alone
        scores, bias = (self.parts[name][subset] / pairs for name in ("scores", "bias"))
        mean = scores.mean(0)
        variance = covariance(mean, mean)
        variance = np.where(variance > 0, variance, np.nan)
        of_bias = without_own(covariance(bias.mean(0), mean), covariance(bias, scores).mean(0), len(subset))
        if self.turning is None:
            return of_bias / variance, np.zeros((len(variance), 0))
        traces = np.real(self.product(subset)[..., None] * self.turning.traces) / pairs
        return of_bias / variance, covariance(traces, mean[:, None]) / variance[:, None]

    def share(self, subset: Sequence[int] | None = None) -> Float[np.ndarray, " head"]:
        of_bias, of_pairs = self.shares(range(self.texts) if subset is None else subset)
        return of_bias + of_pairs.sum(-1)

    def by_pair(self) -> dict[str, np.ndarray]:
        if self.turning is None:
            return {}
        everything = range(self.texts)
        product = self.product(everything)
        return {
            "strength": np.abs(product),
            "phase": np.angle(product),
            "pair_share": self.shares(everything)[1],
            "period": np.broadcast_to(2 * np.pi / self.turning.rates, product.shape),
        }


def _peaks(values: Float[np.ndarray, "head offset"]) -> Float[np.ndarray, " head"]:
    """Offset of the largest value within ``-reach .. reach``; NaN for flat curves, or a maximum at either end."""
    at = np.where(np.isfinite(values), values, -np.inf).argmax(-1)
    inside = (at > 0) & (at < values.shape[-1] - 1)
    return np.where(
        inside & (np.nanmax(values, -1) - np.nanmin(values, -1) > _FLAT), at - values.shape[-1] // 2, np.nan
    )


_ABOUT: dict[str, tuple[tuple[str, ...], str, str]] = {
    "kernel": (("head", "offset"), "score from the position scheme", "nats"),
    "scores": (("head", "offset"), "mean score", "nats"),
    "share": (("head",), "share of the mean scores' variance over offsets", "share"),
    "share_low": (("head",), "lower end of the 95 % interval", "share"),
    "share_high": (("head",), "upper end of the 95 % interval", "share"),
    "swing": (("head",), "range of the kernel", "nats"),
    "offset_of_weights": (("head",), "offset of the largest mean weight", "tokens"),
    verdict.WEIGHT.name: (("head",), "largest mean weight", "weight"),
    "offset_of_kernel": (("head",), "offset of the kernel's peak", "tokens"),
    "agree": (("head",), "within 1 token", ""),
    "chance": (("head",), "how often random phases agree", "share"),
    "period": (("head", "pair"), "tokens per turn", "tokens"),
    "strength": (("head", "pair"), "amplitude", "nats"),
    "phase": (("head", "pair"), "phase", "radians"),
    "pair_share": (("head", "pair"), "share of the mean scores' variance over offsets", "share"),
}


def _stacked(layers: list[dict[str, np.ndarray]], sites: list[Site], band: int) -> xr.Dataset:
    heads = max(len(layer[verdict.WEIGHT.name]) for layer in layers)
    coordinates = {**layer_coordinates(sites), "head": np.arange(heads), "offset": np.arange(-band, band + 1)}
    return xr.Dataset(profiles.of_layers(_ABOUT, layers, heads), coordinates)


WITHOUT = Section(
    "scheme",
    "Without the position scheme",
    "Each layer gets its usual inputs; only its rotation or bias is changed. The difference is the effect of the "
    "position scheme.",
)


@analysis(
    "rotation_effect",
    "Without the rotation",
    "Effects of the position scheme",
    needs=(lacks_rotation,),
    section=WITHOUT,
    pictures=(
        _effect(
            "rotation-effect",
            "Without the rotation",
            "Black: the model. Each colour rotates only some pairs of columns, by their period in tokens.",
        ),
    ),
    units="share",
    few_texts=True,
)
@torch.no_grad()
def rotation_effect(
    study: Study,
    periods: Mapping[str, tuple[float, float]] | None = None,
    *,
    band: Count | None = None,
    draws: Draws = 1000,
    seed: Seed | None = None,
) -> xr.Dataset:
    """Effect of RoPE: profiles when only some pairs of columns of queries and keys rotate with their positions.

    See mathematics.md, Effects of the position scheme. The rotation of queries and keys is undone, then applied again
    to the chosen pairs only. Each layer gets its usual inputs.

    Parameters
    ----------
    periods
        Names of variants, each with the range of periods of the pairs that rotate: tokens per turn, the end excluded.
        By default `PERIODS`: none, fast (below 16), middle, slow (128 and more).
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents.

    Returns
    -------
    xarray.Dataset
        As of `bias_effect`, with the variants ``model`` and those of `periods`. NaN in layers without RoPE.
    """
    check_some("names of variants with their periods, or None for the usual ones", periods=periods)
    periods = PERIODS if periods is None else periods
    turns = _rotations(study.model, token_ids(study.first()))

    def variants(site: Site, call: AttentionCall) -> dict[str, AttentionCall]:
        turn = turns.get(site.index)
        if turn is None:
            return {}
        query, key = (turn.undo(side.double()) for side in (call.query, call.key))
        changed: dict[str, AttentionCall] = {}
        for name, (first, last) in periods.items():
            partly = turn.keep((turn.periods >= first) & (turn.periods < last))
            new = [partly(side).to(call.query.dtype) for side in (query, key)]
            changed[name] = replace(call, query=new[0], key=new[1])
        return changed

    return profiles.profiles_of_variants(study, variants, band=band, draws=draws, seed=seed)


#: Bands of RoPE by period: tokens per turn of a pair.
PERIODS: Mapping[str, tuple[float, float]] = {
    "none": (0.0, 0.0),
    "fast": (0.0, 16.0),
    "middle": (16.0, 128.0),
    "slow": (128.0, float("inf")),
}


@analysis(
    "bias_effect",
    "Without the bias",
    "Effects of the position scheme",
    needs=(lacks_bias,),
    section=WITHOUT,
    pictures=(
        _effect("bias-effect", "Without the bias", "Black: the model. Colour: with the position bias set to its mean."),
    ),
    units="share",
    few_texts=True,
)
@torch.no_grad()
def bias_effect(
    study: Study, *, band: Count | None = None, draws: Draws = 1000, seed: Seed | None = None
) -> xr.Dataset:
    """Effect of a position bias (T5, ALiBi): the profile minus that with the bias at its mean.

    See mathematics.md, Effects of the position scheme. Each layer gets its usual inputs; only its own bias is changed.

    Parameters
    ----------
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents.

    Returns
    -------
    xarray.Dataset
        Dimensions ``variant, layer, head, offset`` with variants ``model`` and ``without_bias``: ``profile``, the mean
        weight at an offset, and ``effect``, the model's minus the variant's.
    """

    def variants(_: Site, call: AttentionCall) -> dict[str, AttentionCall]:
        return {"without_bias": profiles.without_bias(call)}

    return profiles.profiles_of_variants(study, variants, band=band, draws=draws, seed=seed)
