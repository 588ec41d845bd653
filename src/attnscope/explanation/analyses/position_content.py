"""Position or content: the contribution of each part of X to a head's attention."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.analyses.verdict import POSITION
from attnscope.explanation.arrays.shares import covariance, covariance_share, jackknife, without_own
from attnscope.explanation.inputs import TOKENS_AT_ONCE, Tokens, model_inputs, read, read_all, token_ids
from attnscope.explanation.profiles import (
    Collected,
    bias_traces,
    centred_keys,
    check_self_attention,
    check_target,
    mean_profile,
    pairs_at,
    profile_and_output,
    score_traces,
    visible_offsets,
    with_interval,
    without_bias,
)
from attnscope.explanation.projections import Projections, projections
from attnscope.explanation.study import Picture, Section, Study, analysis
from attnscope.explanation.tables import FirstLayerSplit, first_layer_split
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import output_of
from attnscope.options import Count, Draws, Seed
from attnscope.report.schema import Row
from attnscope.statistics.intervals import jackknife_interval
from attnscope.statistics.units import LEAST, numbered, units_of, without_each
from attnscope.support.checks import check_some
from attnscope.support.errors import AttnscopeError

_PARTS = (
    "Every input is the sum of its mean at that position (P) and the rest (C), so a score has four parts: PP, PC, CP "
    "and CC. Chance similarities between texts count as content. A position bias (B: T5, ALiBi, DeBERTa) counts as "
    "position where all texts share it."
)


def _says(tree: xr.DataTree, rows: Sequence[Row]) -> str:
    attributes = tree["position_content"].attrs
    fewest = FEWEST_EXACT if attributes.get("method") == "exact" else LEAST
    documents = attributes.get("documents", fewest)
    few = f" Position shares have no intervals with fewer than {fewest} documents." if documents < fewest else ""
    if any(row["prefers"] for row in rows) or not rows:
        return _PARTS + few
    return f"{_PARTS}{few} No head favours an offset: the profiles below are flat within their uncertainty."


def _works_against(tree: xr.DataTree, rows: Sequence[Row]) -> list[str]:
    """A note if some head's position share is significantly below 0."""
    high = tree["position_content"].to_dataset().get(f"{POSITION.name}_high")
    scored = [row for row in rows if row[POSITION.name] is not None]
    if high is None or not any(float(high.sel(layer=row["layer"], head=row["head"])) < 0 for row in scored):
        return []
    return ["A position share significantly below 0 means that position works against that head's scores."]


CONTENT = Section("content", "Position or content", _says)


@analysis(
    "position_content",
    "Position or content",
    "Position and content",
    section=CONTENT,
    pictures=(
        Picture(
            "position-content",
            "Parts of the scores",
            "Above: the head's mean weights, and those from position alone. Below: each part's share of the scores, "
            "and its Shapley value for the weight at the head's offset, with 95% intervals.",
            draw="attnscope.results.figures.explain:position_content",
            of="heads",
        ),
    ),
    units="share",
    few_texts=True,
    notes=_works_against,
)
@torch.no_grad()
def position_content(
    study: Study,
    *,
    method: Literal["means", "exact"] = "means",
    layers: Sequence[int] | None = None,
    band: Count | None = None,
    target_offset: Int[np.ndarray, "layer head"] | None = None,
    draws: Draws = 1000,
    seed: Seed | None = None,
) -> xr.Dataset:
    r"""Split the scores of every head into position and content, exactly (mathematics.md, Position and content).

    With queries :math:`q_i = q^P_i + q^C_i` and keys likewise, a score is the sum of four terms,
    :math:`q^P_i\cdot k^P_j` (PP), :math:`q^P_i\cdot k^C_j` (PC), :math:`q^C_i\cdot k^P_j` (CP) and
    :math:`q^C_i\cdot k^C_j` (CC), times the scale. Since queries and keys are linear in X, this is the split X = P + C.
    The bias that a model adds by distance (T5, ALiBi) is a term of its own (B). It belongs to
    position. If it also depends on the words (DeBERTa: content-to-position and position-to-content), its mean over
    texts at a pair of positions counts as position, the rest as content. RoPE is applied first: :math:`q^P_i` is
    rotated, so PP contains the rotated mean content.

    * ``method="means"``, any layer: the position part is the mean over texts at each position (Song & Zhong 2023).
      Then PC and CP vanish in the mean over the same texts. Means over few texts contain some of their content;
      `share` corrects for it.
    * ``method="exact"``, first layer of a model with a position table: the position part is the table's row, passed
      through the LayerNorm with the standard deviation of the whole (`first_layer_split`). Words, token types and
      constants are content.

    Each text's mean key is subtracted from the keys. This does not change the weights, except with capped scores or
    learned sinks, where nothing is subtracted.

    Parameters
    ----------
    method
        ``"means"`` or ``"exact"``.
    layers
        Indices of attention calls; by default all but cross-attention (``"exact"``: those that read a table).
    band
        Largest offset.
    target_offset
        ``(layer, head)``: the offset t\* whose weight is explained. By default, where the mean profile is highest.
    draws, seed
        Number of draws and seed of the bootstrap over documents (windows, where there are fewer than 6): ``_low``
        and ``_high`` are the ends of its 95% interval, NaN of fewer than 6 windows.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head, term, offset``. The term B is there if some layer has a bias.

        * ``trace``: :math:`tr_t` of each term, scale included; NaN at masked offsets.
        * ``share``: `covariance_share` of the mean scores by offset; all add up to 1. For ``"means"`` PP is
          ``trace_split``, B is taken between different texts, and the interval is the jackknife's over documents, NaN
          of fewer than 6 (8 for ``"exact"``).
        * ``position_share``: of PP and B together.
        * ``shapley``: each term's Shapley value for the mean weight at t\*; they add up to ``mass - mass_none``.
        * ``profile``: mean weight at an offset; ``mass``: at t\*. These six have ``_low`` and ``_high``.
        * ``profile_position``: the profile of the softmax of position alone, PP and B.
        * ``mass_none``: the weight at t\* without any term: uniform over the visible tokens.
        * ``key_only``: trace of the scores of the text's mean query, a bias that depends on the key alone.
        * ``target``: t\*.
        * ``trace_split`` (``"means"`` only): of PP, with the means of one half of the texts on the query side and of
          the other on the key side, so that noise in the means does not bias it; the mean over all halvings.
    """
    check_some("layers, or None for all", layers=layers)
    model, windows = study.model, study.first()
    band, seed = band or study.band, study.seed if seed is None else seed
    ids = token_ids(windows, least=2 if method == "means" else 1)
    splitter = ExactSplit(model) if method == "exact" else MeanSplit()
    if method == "exact" and layers is None:
        layers = [site.index for site in first_layer_split(model, model_inputs(model, ids[:1]))]
    first = _FirstPass(layers, band, splitter, keep=len(ids) * ids.length <= TOKENS_AT_ONCE)
    read_all(model, ids, first.observe)
    sites = first.sites()
    if layers is None:
        check_self_attention(model, sites)
    target = first.peaks() if target_offset is None else target_offset
    check_target(target, (len(sites), first.collected.heads), band)
    second = _SecondPass(sites, target, band, splitter, biased=first.biased)
    for text in range(len(ids)):
        splitter.prepare(ids[text : text + 1])
        if first.keep:
            for site in sites:
                second.add(site, first.calls[site.index][text])
        else:
            with watching(model, second.observe):
                read(model, ids[text : text + 1])
    return _dataset(first, second, ids.documents, draws, seed, of_means=method == "means").assign_attrs(
        method=method,
        texts=len(ids),
        length=ids.length,
        documents=numbered(ids.documents)[1],
        intervals_over=units_of(ids.documents)[1],
    )


FEWEST_EXACT = 8  # documents: with fewer, the interval of an exact share covers too rarely


#: The four terms of a product of query and key, query side first: position (P) and content (C).
TERMS = ("PP", "PC", "CP", "CC")


#: The model's position bias (T5, ALiBi, DeBERTa).
BIAS = "B"


def shapley_values(values: Float[np.ndarray, " coalition"]) -> Float[np.ndarray, " player"]:
    r"""Shapley value of each player from the worth of every coalition, whose members are the bits of its index.

    :math:`\varphi_a = \sum_{S\not\ni a} \frac{|S|!\,(n-|S|-1)!}{n!}\,(v(S\cup a) - v(S))` (Shapley 1953).
    """
    players = int(math.log2(len(values)))
    shapley = np.zeros(players)
    for player in range(players):
        for coalition in range(len(values)):
            if not coalition >> player & 1:
                size = coalition.bit_count()
                weight = math.factorial(size) * math.factorial(players - size - 1) / math.factorial(players)
                shapley[player] += weight * (values[coalition | 1 << player] - values[coalition])
    return shapley


@dataclass(eq=False)
class _FirstPass:
    """Profiles of every text, and whatever the splitter wants to learn of it; if few, their calls are chosen."""

    layers: Sequence[int] | None
    band: int
    splitter: MeanSplit | ExactSplit
    keep: bool
    biased: bool = False  # whether some layer adds a bias to its scores
    collected: Collected = field(default_factory=Collected)
    calls: dict[int, list[AttentionCall]] = field(default_factory=dict)  # one a text

    def observe(self, site: Site, call: AttentionCall) -> Tensor:
        if site.kind == "cross" if self.layers is None else site.index not in self.layers:
            return output_of(call)
        profile, output = profile_and_output(call, self.band)
        self.collected.add("profile", site, profile)
        self.splitter.add(site, call)
        self.biased = self.biased or call.bias is not None
        if self.keep:
            self.calls.setdefault(site.index, []).extend(
                call.part(texts=slice(text, text + 1)) for text in range(len(profile))
            )
        return output

    def sites(self) -> list[Site]:
        missing = sorted(set(self.layers or ()) - set(self.collected.sites))
        if missing:
            raise AttnscopeError(f"layer {missing[0]} does not exist: choose others (layers count from 0)")
        return [self.collected.sites[index] for index in sorted(self.collected.sites)]

    def peaks(self) -> np.ndarray:
        """``(layer, head)``: where the mean profile is highest."""
        return np.nan_to_num(self.collected.stacked("profile").mean(0), nan=-1.0).argmax(-1) - self.band


@dataclass(eq=False)
class _SecondPass:
    """Terms, coalitions and the softmax of position alone, of one text after the other."""

    sites: list[Site]
    target: np.ndarray
    band: int
    splitter: MeanSplit | ExactSplit
    biased: bool  # whether some layer has a bias, which is a term then
    collected: Collected = field(default_factory=Collected)
    calls: dict[int, AttentionCall] = field(default_factory=dict)

    def observe(self, site: Site, call: AttentionCall) -> Tensor:
        output = output_of(call)
        if any(each_site.index == site.index for each_site in self.sites):
            self.add(site, call)
        return output

    def add(self, site: Site, call: AttentionCall) -> None:
        """Take apart one layer of one text."""
        target = self.target[[site.index for site in self.sites].index(site.index)]
        self.calls.setdefault(site.index, call)
        for name, values in self._layer(call, self.splitter(site, call), target).items():
            self.collected.add(name, site, values[None])

    def _layer(self, call: AttentionCall, sides: PositionAndContent, target: np.ndarray) -> dict[str, np.ndarray]:
        """``(head, ...)`` each. A coalition of terms is attention with joined queries and keys: no matrix is held."""
        biases = [without_bias(call), call] if self.biased else [call]
        profiles = [mean_profile(coalition, self.band)[0] for bias in biases for coalition in sides.coalitions(bias)]
        traces = [score_traces(term, self.band)[0].cpu() for term in sides.terms(call)]
        if self.biased:
            traces.append(bias_traces(call, self.band)[0])
        heads = torch.arange(len(profiles[0]))
        worth = torch.stack([profile[heads, target[: len(heads)] + self.band] for profile in profiles])
        query, key = sides.query_position + sides.query_content, sides.key_position + sides.key_content
        by_mean = _scoring(call, query.mean(1, keepdim=True).expand_as(query), key)  # a bias of the key only
        return {
            "trace": torch.stack(traces, 1).numpy(),
            "shapley": np.stack([shapley_values(of_head) for of_head in worth.double().cpu().numpy().T]),
            "mass": worth[-1].cpu().numpy(),
            "mass_none": worth[0].cpu().numpy(),
            # coalitions are numbered by the bits of their members, and PP is the first
            "profile_position": profiles[17 if self.biased else 1].nan_to_num(0.0).cpu().numpy(),
            "key_only": score_traces(by_mean, self.band)[0].cpu().numpy(),
        }

    def forbidden(self) -> np.ndarray:
        """``(layer, 1, offset)``: offsets at which a layer has no weight, whatever its scores."""
        return ~np.stack([visible_offsets(self.calls[site.index], self.band) for site in self.sites])[:, None]

    def pairs(self) -> np.ndarray:
        """``(layer, 1, 1, offset)``."""
        sizes = [self.calls[site.index] for site in self.sites]
        pairs = [pairs_at(call.query.shape[2], call.key.shape[2], self.band) for call in sizes]
        return np.maximum(np.stack(pairs), 1)[:, None, None]


def _dataset(
    first: _FirstPass, second: _SecondPass, documents: Sequence[Hashable], draws: int, seed: int, *, of_means: bool
) -> xr.Dataset:
    over, _ = units_of(documents)
    stacked, forbidden, pairs = second.collected.stacked, second.forbidden(), second.pairs()
    trace, key_only = stacked("trace"), stacked("key_only").mean(0)
    trace[np.broadcast_to(forbidden[None, :, :, None], trace.shape)] = np.nan
    key_only[np.broadcast_to(forbidden, key_only.shape)] = np.nan
    variables: dict[str, Any] = {}

    def add(
        name: str, values: np.ndarray, dims: tuple[str, ...], long_name: str, units: str, *, over_texts: bool = False
    ) -> None:
        dims, about = ("layer", "head", *dims), {"long_name": long_name, "units": units}
        if over_texts:
            variables.update(with_interval(name, dims, values, over, draws=draws, seed=seed, attrs=about))
        else:
            variables[name] = dims, values, about

    add("trace", trace, ("term", "offset"), "sum of scores at an offset", "nats", over_texts=True)
    shapley, profile = stacked("shapley"), first.collected.stacked("profile")
    add("shapley", shapley, ("term",), "share of the weight at the target offset", "weight", over_texts=True)
    add("mass", stacked("mass"), (), "mean weight at the target offset", "weight", over_texts=True)
    add("profile", profile, ("offset",), "mean weight at an offset", "weight", over_texts=True)
    add("mass_none", stacked("mass_none").mean(0), (), "mean weight without any term", "weight")
    add("profile_position", stacked("profile_position").mean(0), ("offset",), "mean weight of position alone", "weight")
    add("key_only", key_only, ("offset",), "trace of the key-only bias", "nats")
    add("target", second.target, (), "offset explained", "tokens")
    if of_means:
        split = split_halves(trace)
        add("trace_split", split, ("offset",), "trace of PP, two halves", "nats")
        shares = _shares_of_means(trace, split, pairs[:, :, 0], documents)
    else:
        share = _exact_shares(trace.mean(0) / pairs)
        shares = share, np.full_like(share, np.nan), np.full_like(share, np.nan)
        if numbered(documents)[1] >= FEWEST_EXACT:
            left = [_exact_shares(np.tensordot(weights, trace, 1) / pairs) for weights in without_each(documents)]
            shares = share, *jackknife_interval(share, np.array(left))
    for end, parts in zip(("", "_low", "_high"), shares, strict=True):
        add("share" + end, parts[..., :-1], ("term",), "share of the variance over offsets", "share")
        add(POSITION.name + end, parts[..., -1], (), "share of the variance over offsets", "share")
    terms = [*TERMS, *([BIAS] if second.biased else [])]
    return xr.Dataset(variables, {**second.collected.coordinates(second.band), "term": terms})


def split_halves(trace: Float[np.ndarray, "text *batch term offset"]) -> Float[np.ndarray, "*batch offset"]:
    r"""PP with the means of one half of the texts as queries and of the other half as keys, the mean over all
    halvings.
    """
    return without_own(trace[..., 0, :].mean(0), trace[..., : len(TERMS), :].sum(-2).mean(0), len(trace))


def _exact_shares(terms: np.ndarray) -> np.ndarray:
    """The share of every term, and of PP and B together."""
    share = covariance_share(terms)
    return np.concatenate([share, (share[..., 0] + share[..., len(TERMS) :].sum(-1))[..., None]], -1)


def _shares_of_means(
    trace: np.ndarray, split: np.ndarray, pairs: np.ndarray, documents: Sequence[Hashable]
) -> tuple[np.ndarray, ...]:
    """Shares of the terms and of position, and their jackknife interval over documents."""
    texts, total = len(trace), trace.sum(-2) / pairs
    bias = trace[..., len(TERMS) :, :].sum(-2) / pairs

    def shares(split: np.ndarray, chosen: list[int]) -> np.ndarray:
        mean = total[chosen].mean(0)
        variance = covariance(mean, mean)
        together = covariance(bias[chosen].mean(0), mean)
        within_texts = covariance(bias[chosen], total[chosen]).mean(0)
        parts = [covariance(split / pairs, mean), without_own(together, within_texts, len(chosen))]
        of_products, of_bias = (part / np.where(variance > 0, variance, np.nan) for part in parts)
        none, position = 0 * of_products, of_products + of_bias
        return np.stack([*[of_products, none, none, 1 - position, of_bias][: trace.shape[-2]], position], -1)

    def without(text: int, chosen: list[int]) -> np.ndarray:
        # the mean over the n other texts is P - C / n, where C is the content of the text left out: so the PP of these
        # means is PP - (PC + CP) / n + CC / n^2
        left_out, others = trace[text], texts - 1
        moved = (
            left_out[..., 0, :] - (left_out[..., 1, :] + left_out[..., 2, :]) / others + left_out[..., 3, :] / others**2
        )
        return shares(without_own(moved, trace[chosen][..., : len(TERMS), :].sum(-2).mean(0), others), chosen)

    return jackknife(shares(split, list(range(texts))), documents, without)


@dataclass(frozen=True, eq=False)
class PositionAndContent:
    """Position and content of the queries and keys of one layer and one text, ``(head or kv_head, position, r)``."""

    query_position: Tensor
    query_content: Tensor
    key_position: Tensor
    key_content: Tensor

    def terms(self, call: AttentionCall) -> list[AttentionCall]:
        """Calls whose scores are PP, PC, CP and CC."""
        return [
            _scoring(call, query, key)
            for query in (self.query_position, self.query_content)
            for key in (self.key_position, self.key_content)
        ]

    def coalitions(self, call: AttentionCall) -> Iterator[AttentionCall]:
        """Calls whose scores are every choice of PP, PC, CP and CC, by the bits of their number; keys about their
        mean.
        """
        queries = _choices(call, self.query_position, self.query_content)
        keys = _choices(call, *centred_keys(call, [self.key_position, self.key_content]))
        for members in range(16):
            met = members & 3, members >> 2  # keys that the queries' position and their content meet
            if met[0] == met[1]:
                yield _scoring(call, queries[3], keys[met[0]])
            else:
                pairs = [(queries[side], keys[met[side - 1]]) for side in (1, 2) if met[side - 1]]
                query, key = (torch.cat(parts, -1) for parts in zip(*pairs, strict=True))
                yield _scoring(call, query, key)


def _choices(call: AttentionCall, position: Tensor, content: Tensor) -> list[Tensor]:
    """Nothing, position, content and both, in the type that is attended in."""
    whole = [torch.zeros_like(position), position, content, position + content]
    return [part.to(_attended(call)).contiguous() for part in whole]


def _attended(call: AttentionCall) -> torch.dtype:
    return call.query.dtype if call.query.dtype == torch.float64 else torch.float32


def _scoring(call: AttentionCall, query: Tensor, key: Tensor) -> AttentionCall:
    """The call of one text with other queries and keys, and values of no width to speak of."""
    single = _attended(call)
    return replace(
        call,
        query=query[None].to(single),
        key=key[None].to(single).contiguous(),
        value=key.new_zeros(1, *key.shape[:-1], 1, dtype=single),
    )


@dataclass(eq=False)
class MeanSplit:
    """The position part is the mean over texts."""

    sums: dict[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # site: query and key, each (head, position, r)
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, site: Site, call: AttentionCall) -> None:
        query, key = (side.double().sum(0) for side in (call.query, call.key))
        before = self.sums.get(site.index, (0, 0))
        self.sums[site.index] = before[0] + query, before[1] + key
        self.counts[site.index] = self.counts.get(site.index, 0) + len(call.query)

    def prepare(self, tokens: Tokens) -> None:
        """Nothing depends on the text."""

    def __call__(self, site: Site, call: AttentionCall) -> PositionAndContent:
        query, key = (side[0].double() for side in (call.query, call.key))
        query_mean, key_mean = (part / self.counts[site.index] for part in self.sums[site.index])
        return PositionAndContent(query_mean, query - query_mean, key_mean, key - key_mean)


@dataclass(eq=False)
class ExactSplit:
    """The position part is what the table adds."""

    model: PreTrainedModel
    splits: dict[int, FirstLayerSplit] = field(default_factory=dict)
    matrices: dict[int, Projections] = field(default_factory=dict)

    def add(self, site: Site, call: AttentionCall) -> None:
        """Nothing is learned from other texts."""

    def prepare(self, tokens: Tokens) -> None:
        inputs = model_inputs(self.model, tokens)
        self.splits = {site.index: split for site, split in first_layer_split(self.model, inputs).items()}
        if not self.matrices:
            self.matrices = {site.index: layer for site, layer in projections(self.model, inputs).items()}

    def __call__(self, site: Site, call: AttentionCall) -> PositionAndContent:
        if site.index not in self.splits:
            raise AttnscopeError(
                f"layer {site.index} does not read a position table: choose one of {sorted(self.splits)}, or "
                "method='means'"
            )
        split, matrix = self.splits[site.index], self.matrices[site.index]
        if matrix.form != "bilinear":
            raise AttnscopeError(
                f"the scores of layer {site.index} ({matrix.form}) are not bilinear in X: use method='means'"
            )
        heads, device = call.query.shape[1], call.query.device
        weights = [matrix.of_head(head) for head in range(heads)]
        query = np.stack([split.position @ W_Q for W_Q, _, _, _ in weights])
        key = np.stack([split.position @ weights[head][2] for head in range(0, heads, call.group)])
        # a model may scale its queries before the call: the matrices' scale holds all factors
        query_position = torch.from_numpy(query * matrix.scale / call.scale).to(device)
        key_position = torch.from_numpy(key).to(device)
        return PositionAndContent(
            query_position, call.query[0].double() - query_position, key_position, call.key[0].double() - key_position
        )
