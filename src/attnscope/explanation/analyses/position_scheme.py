"""What a position scheme within the scores does (RoPE, T5, ALiBi): what it predicts, and what is lost without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Complex, Float
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.explanation.analyses.verdict import (
    BY_ACCIDENT,
    MOST,
    SHARE_MEANING,
    WEIGHT,
    or_more,
    scheme_of,
    shared_weights,
    weight_peaks,
)
from attnscope.explanation.arrays.shares import covariance, jackknife, without_own
from attnscope.explanation.inputs import Tokens, model_inputs, read_all, token_ids
from attnscope.explanation.profiles import (
    bias_traces,
    pairs_at,
    profile_and_output,
    profiles_of_variants,
    score_traces,
    visible_offsets,
    without_bias,
)
from attnscope.explanation.projections import projections
from attnscope.explanation.study import BIAS, ROTATION, ROTATION_OR_BIAS, SCHEME, SHARES, Picture, Section, analysis
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.positions import Rotation, pair_columns
from attnscope.measure.documents import units_of
from attnscope.results.schema import Quantity, Row
from attnscope.support.arguments import Count, Draws, Seed
from attnscope.support.checks import check_some

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from transformers import PreTrainedModel

    from attnscope.explanation.study import Study

    Variants = Callable[[Site, AttentionCall], dict[str, AttentionCall]]

KERNEL = Section(
    "kernel",
    "What the position scheme predicts",
    "Rotated queries and keys (RoPE) favour offsets at which their mean turns into phase; a bias favours them "
    "outright. Both give one curve over the offsets, with no word in it. Where it peaks, the head should look, if "
    "the scheme decides.",
)


_RANDOM = {
    "rotation": "if the rotation had random phases",
    "bias": "if the bias had its values in random order",
    "rotation and bias": "if the rotation had random phases, and the bias its values in random order",
}


def _columns(kernel: xr.Dataset) -> dict[str, Quantity]:
    scheme = str(kernel.attrs.get("scheme", "position scheme"))
    random = _RANDOM.get(scheme, "with its values in random order")
    at = f"offset at which the {scheme} alone is largest"
    agrees = "whether that is within 1 token of the weights'"
    return {
        "offset_of_kernel": Quantity("offset_of_kernel", "scheme", "tokens", at, group=SCHEME),
        "agree": Quantity("kernel_agrees", "predicts", meaning=agrees, group=SCHEME),
        "chance": Quantity("kernel_chance", "by chance", "share", f"how often it would be {random}", group=SCHEME),
        "share": Quantity("kernel_share", "of scheme", "share", SHARE_MEANING, group=SHARES),
    }


def _predicted(rows: Sequence[Row]) -> tuple[list[Row], int, list[float], float]:
    """Heads for which a scheme predicts an offset, how many have it, the chances of each, and of so many."""
    judged = [row for row in rows if row.get("kernel_agrees") is not None]
    chances = [row["kernel_chance"] for row in judged if row["kernel_chance"] is not None]
    agreeing = sum(bool(row["kernel_agrees"]) for row in judged)
    return judged, agreeing, chances, or_more(agreeing, chances)


def predicted_offsets(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """In how many heads the position scheme alone predicts the offset, and in how many by chance, in a sentence."""
    judged, agreeing, chances, probability = _predicted(rows)
    if not judged:
        return []
    of = f"{agreeing} of these {len(judged)}"
    text = f"The {scheme_of(tree)} alone predicts the offset of {of} within 1 token ({sum(chances):.1f} by chance)."
    if shared := shared_weights(judged):
        return [f"{text} How often so many come by chance is not known: {shared}."]
    if probability < BY_ACCIDENT:
        return [text]
    return [f"{text} So many come by chance in {probability:.0%} of cases, so this may be accident."]


def gives_probability(rows: Sequence[Row]) -> bool:
    """Whether `predicted_offsets` gives a probability, which takes heads as independent."""
    judged, _, _, probability = _predicted(rows)
    return bool(judged) and not shared_weights(judged) and probability >= BY_ACCIDENT


def _of_study(study: Study) -> xr.Dataset:
    """The kernel next to the weights of heads that prefer an offset; it explains nothing of the others."""
    kernel = scheme_kernel.alone(study)
    prefers = weight_peaks(study.evidence).prefers.reindex_like(kernel.agree, fill_value=False)
    return without_flat_curves(kernel, prefers.reset_coords(drop=True))


@analysis(
    "scheme_kernel",
    "What the position scheme predicts",
    "Position and content",
    explained=_of_study,
    needs=(ROTATION_OR_BIAS,),
    section=KERNEL,
    pictures=(
        Picture(
            "scheme-kernel",
            "The scheme beside the scores",
            "Mean scores, and what rotation or bias alone gives, about their means; the future of causal heads is "
            "left out. Dotted are the offsets of the largest weight and of the scheme's peak, none where the weights"
            " prefer no offset and the scheme is flat or a small part of the scores. Below, which pairs of columns "
            "make it: those that turn once in a few tokens tell neighbours apart, slow ones do not.",
            draw="attnscope.results.figures.positions:scheme_kernel",
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
    r"""What the position scheme alone adds to scores at each offset, and whether a head looks where that peaks.

    See mathematics.md, Position and content (Kernel of a scheme). Under RoPE the mean query and the mean key over
    all texts and positions, before they turn, give

    .. math:: k(\Delta) = \sum_c |\bar q_c||\bar k_c|\cos(\omega_c\Delta + \varphi_c),

    a sum over pairs of columns c that turn by :math:`\omega_c` a token. Where the scores have a bias
    by distance, its mean over texts is added. Peaks are searched where the head may look, within the band; what still
    rises beyond the band is no peak.

    Parameters
    ----------
    band
        Largest offset.
    draws, seed
        Number and seed of the random kernels behind ``chance``.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head, offset, pair``; NaN in layers without rotation and bias. The attribute ``scheme`` says
        what there is: ``rotation``, ``bias`` or ``rotation and bias``.

        * ``kernel``: :math:`k(\Delta)` in nats, scale included; NaN where the head may not look.
        * ``scores``: mean scores, as in `position_content`: keys are about their mean over the text.
        * ``share``: share of the variance of ``scores`` over offsets that the kernel accounts for
          (`covariance_share`), with the jackknife's interval over documents (windows, where there are fewer than 6) in
          ``_low`` and ``_high``, NaN of fewer than 6 windows.
        * ``swing``: largest less smallest value of the kernel, nats.
        * ``offset_of_weights``, ``peak_weight``: where the mean weight is largest, and how large.
        * ``offset_of_kernel``: where the kernel is largest; NaN where it has no peak.
        * ``agree``: whether the two offsets lie within 1 token of each other; NaN where the weights have no peak.
        * ``chance``: how often they would (NaN there too), if the kernel had its amplitudes but random phases
          :math:`\varphi_c` (and a bias its values in random order).
        * By pair: ``period``, tokens for one turn; ``strength``, :math:`|\bar q_c||\bar k_c|` in nats; ``phase``,
          :math:`\varphi_c`; ``pair_share``, the pair's part of ``share``.

        In the tree of `attnscope.explain` ``share``, ``offset_of_weights``, ``agree`` and ``chance`` are NaN for heads
        that prefer no offset, and ``offset_of_kernel`` too if the kernel is flat, or a small part of the scores.
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
        return profile_and_output(call, 0)[1]

    read_all(model, ids, observe)
    rng = np.random.default_rng(seed)
    units, called = units_of(ids.documents)
    judged = [layers[index].judged(units, draws, rng) for index in sorted(layers)]
    schemes = {
        "rotation": any(layer.rotation is not None for layer in layers.values()),
        "bias": any(layer.biased for layer in layers.values()),
    }
    return _stacked(judged, [layers[index].site for index in sorted(layers)], band).assign_attrs(
        scheme=" and ".join(name for name, there in schemes.items() if there),
        texts=len(ids),
        length=ids.length,
        intervals_over=called,
    )


def _rotations(model: PreTrainedModel, ids: Tokens) -> dict[int, Rotation]:
    """The rotation of queries and keys of each layer that has one."""
    matrices = projections(model, model_inputs(model, ids[:1]))
    return {site.index: made.rotation for site, made in matrices.items() if made.rotation is not None}


def without_flat_curves(kernel: xr.Dataset, prefers: xr.DataArray) -> xr.Dataset:
    """The kernel without what says nothing: every curve has a largest value, that of random weights too."""
    of_preferring = kernel[["share", "offset_of_weights", "agree", "chance"]].where(prefers)
    makes = (kernel.share_low > MOST) & (kernel.swing > np.log(2))
    return kernel.assign(of_preferring.data_vars).assign(
        offset_of_kernel=kernel.offset_of_kernel.where(prefers | makes)
    )


_NEAR = 1.0  # tokens: offsets that lie no further apart count as one


_FLAT = 1e-9  # a kernel that moves the scores by less, in nats, has no peak


@dataclass(eq=False)
class _Layer:
    """One layer: what was seen of every text. One offset more than the band is kept, to tell what is a peak."""

    site: Site
    rotation: Rotation | None
    band: int
    biased: bool = False
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    call: AttentionCall | None = None

    def add(self, call: AttentionCall) -> Tensor:
        reach = self.band + 1
        profile, output = profile_and_output(call, reach)
        bias = bias_traces(call, reach)
        measured = {"profile": profile, "bias": bias, "scores": score_traces(call, reach).cpu() + bias}
        if self.rotation is not None:
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
        allowed = visible_offsets(self.call, reach) & np.isfinite(parts["bias"]).all((0, 1))
        pairs = pairs_at(self.call.query.shape[2], self.call.key.shape[2], reach)
        pairs = np.where(allowed & (pairs > 0), pairs, np.nan)
        profile = parts["profile"].mean(0) + 0 * pairs
        offset = _peaks(profile)
        arrays = {
            "offset_of_weights": offset,
            WEIGHT.name: np.nanmax(profile[:, 1:-1], -1),
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
    """How pairs of columns turn: what a product of mean query and mean key gives at each offset."""

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
        traces = waves * pairs_at(length, length, reach)
        if call.softcap is None and call.sinks is None:  # as `centred_keys` has it
            rows = turned.conj() * turned.mean(-1, keepdims=True)
            for place, t in enumerate(range(-reach, reach + 1)):
                traces[:, place] -= rows[:, max(0, -t) : max(0, min(length, length - t))].sum(-1)
        square = (rotation.cos**2 + rotation.sin**2)[0].double().cpu().numpy()
        return cls(call.scale * square, rates, waves, traces)


@dataclass(frozen=True, eq=False)
class _Account:
    """The kernel of one layer's heads beside their mean scores."""

    parts: dict[str, np.ndarray]
    turning: _Turning | None
    pairs: Float[np.ndarray, " offset"]  # NaN where the heads may not look

    @property
    def texts(self) -> int:
        return len(self.parts["bias"])

    def product(self, subset: Sequence[int]) -> Complex[np.ndarray, "head pair"]:
        """Mean query times mean key of different texts, so that what a token shares with itself does not count."""
        assert self.turning is not None  # noqa: S101 called where something turns
        query, key = self.parts["query"][subset].conj(), self.parts["key"][subset]
        return self.turning.factor * without_own(query.mean(0) * key.mean(0), (query * key).mean(0), len(subset))

    def kernel(self, rng: np.random.Generator | None = None) -> Float[np.ndarray, "head offset"]:
        """Nats; with `rng`, of the same amplitudes but random phases, and of biases in random order."""
        bias = self.parts["bias"].mean(0) / self.pairs
        if rng is not None:
            known = np.isfinite(self.pairs)
            bias[:, known] = rng.permuted(bias[:, known], axis=1)
        if self.turning is None:
            return bias
        product = self.product(range(self.texts))
        if rng is not None:
            product = np.abs(product) * np.exp(2j * np.pi * rng.random(product.shape))
        return bias + np.real(product @ self.turning.waves)

    def shares(self, subset: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Of the bias ``(head,)`` and of each pair ``(head, pair)`` in the variance of the mean scores."""
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
    """Offset of the largest of ``-reach .. reach``; NaN where all is flat or the largest lies at either end."""
    known = np.where(np.isfinite(values), values, -np.inf)
    at = known.argmax(-1)
    inside = (at > 0) & (at < values.shape[-1] - 1)
    return np.where(
        inside & (np.nanmax(values, -1) - np.nanmin(values, -1) > _FLAT), at - values.shape[-1] // 2, np.nan
    )


_ABOUT: dict[str, tuple[tuple[str, ...], str, str]] = {
    "kernel": (("offset",), "score that the position scheme adds", "nats"),
    "scores": (("offset",), "mean score", "nats"),
    "share": ((), "share of the mean scores' variance over offsets", "share"),
    "share_low": ((), "lower end of the 95 % interval", "share"),
    "share_high": ((), "upper end of the 95 % interval", "share"),
    "swing": ((), "range of the kernel", "nats"),
    "offset_of_weights": ((), "offset of the largest mean weight", "tokens"),
    WEIGHT.name: ((), "largest mean weight", "weight"),
    "offset_of_kernel": ((), "offset of the kernel's peak", "tokens"),
    "agree": ((), "within 1 token", ""),
    "chance": ((), "how often random phases would agree", "share"),
    "period": (("pair",), "tokens for one turn", "tokens"),
    "strength": (("pair",), "amplitude", "nats"),
    "phase": (("pair",), "phase", "radians"),
    "pair_share": (("pair",), "share of the mean scores' variance over offsets", "share"),
}


def _stacked(layers: list[dict[str, np.ndarray]], sites: list[Site], band: int) -> xr.Dataset:
    """Join layers; NaN where one has no such number, or fewer heads or pairs."""
    variables: dict[str, Any] = {}
    for name, (dims, long_name, units) in _ABOUT.items():
        there = [layer[name] for layer in layers if name in layer]
        if not there:
            continue
        size = np.max([values.shape for values in there], axis=0)
        heads = max(layer[WEIGHT.name].shape[0] for layer in layers)
        whole = np.full((len(layers), heads, *size[1:]), np.nan)
        for number, layer in enumerate(layers):
            if name in layer:
                whole[(number, *map(slice, layer[name].shape))] = layer[name]
        variables[name] = (("layer", "head", *dims), whole, {"long_name": long_name, "units": units})
    return xr.Dataset(
        variables, coords={**layer_coordinates(sites), "offset": np.arange(-band, band + 1)}
    ).assign_coords(head=lambda made: np.arange(made.sizes["head"]))


WITHOUT = Section(
    "scheme",
    "The position scheme taken out",
    "Each layer gets the inputs that it always gets; only its rotation or bias is changed. What is lost was the "
    "scheme's doing.",
)


@analysis(
    "rotation_effect",
    "Without the rotation",
    "Effects of the position scheme",
    needs=(ROTATION,),
    section=WITHOUT,
    pictures=(
        Picture(
            "rotation-effect",
            "Without the rotation",
            "Black is the model; each colour turns only some of the pairs of queries and keys, by their period in "
            "tokens.",
            draw="attnscope.results.figures.panels:scheme_effect",
            of="heads",
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
    """Effect of RoPE: profiles when only some of the pairs of each query and key turn with their positions.

    See mathematics.md, Effects of the position scheme. Queries and keys are turned back by the rotation that the
    model gave them, and then turned again in the chosen pairs. Each layer gets the inputs that it always gets.

    Parameters
    ----------
    periods
        Names of variants, and for each the range of periods (tokens for one turn, from the first up to but without
        the second) of the pairs that turn. By default `PERIODS`: none, fast (below 16), middle, slow (128 and more).
    band
        Largest offset.
    draws, seed
        Number of draws and seed of the bootstrap over documents.

    Returns
    -------
    xarray.Dataset
        As of `bias_effect`, with the variants ``model`` and those of `periods`. NaN in layers that do not rotate.
    """
    check_some("names of variants with their periods, or None for the usual ones", periods=periods)
    model, windows = study.model, study.first()
    band, seed = band or study.band, study.seed if seed is None else seed
    periods = PERIODS if periods is None else periods
    ids = token_ids(windows)
    turns = _rotations(model, ids)

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

    return profiles_of_variants(model, windows, variants, band=band, draws=draws, seed=seed)


#: Bands of RoPE by the tokens that a pair takes for one turn.
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
    needs=(BIAS,),
    section=WITHOUT,
    pictures=(
        Picture(
            "bias-effect",
            "Without the bias",
            "Black is the model; the colour has the position bias of the scores set to its mean.",
            draw="attnscope.results.figures.panels:scheme_effect",
            of="heads",
        ),
    ),
    units="share",
    few_texts=True,
)
@torch.no_grad()
def bias_effect(
    study: Study, *, band: Count | None = None, draws: Draws = 1000, seed: Seed | None = None
) -> xr.Dataset:
    """Effect of a position bias of the scores (T5, ALiBi): the profile as it is less the one with the bias at its mean.

    See mathematics.md, Effects of the position scheme. Each layer gets the inputs that it always gets; only its
    own bias is changed.

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
        weight at an offset, and ``effect``, the model's less the variant's.
    """
    band, seed = band or study.band, study.seed if seed is None else seed
    return profiles_of_variants(
        study.model,
        study.first(),
        lambda _, call: {"without_bias": without_bias(call)},
        band=band,
        draws=draws,
        seed=seed,
    )
