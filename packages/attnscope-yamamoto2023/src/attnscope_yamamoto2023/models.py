"""The published models, and their recognition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.watch import Site
from attnscope.explanation.arrays.correlation import cross_correlation
from attnscope.explanation.arrays.decomposition import reparametrize
from attnscope.explanation.evidence import Evidence, Layer, inputs_of
from attnscope.explanation.inputs import Windows, batches, read, token_ids, watching_inputs
from attnscope.explanation.profiles import score_traces
from attnscope.explanation.study import Study
from attnscope.explanation.tables import PositionTable
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.measure.labels import cluster_profiles, summarize
from attnscope.support.checks import shortly
from attnscope.support.errors import AttnscopeError
from attnscope_yamamoto2023.arrays.spectrum import amplitude_spectrum
from attnscope_yamamoto2023.positions.table import position_cca
from attnscope_yamamoto2023.positions.waves import query_key_waves, spectra_by_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnscope.read.windows import Window

ROBERTA, GPT2 = "roberta-base", "gpt2"


@dataclass(frozen=True)
class Shape:
    """Marks of a published model: its names on the hub, classes, and sizes in its config."""

    hub: tuple[str, ...]
    classes: tuple[str, ...]
    sizes: Mapping[str, int]


SHAPES = {
    ROBERTA: Shape(
        ("roberta-base", "FacebookAI/roberta-base"),
        ("RobertaForMaskedLM",),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 514,
            "vocab_size": 50265,
        },
    ),
    GPT2: Shape(
        ("gpt2", "openai-community/gpt2"),
        ("GPT2LMHeadModel", "GPT2Model"),
        {
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_size": 768,
            "max_position_embeddings": 1024,
            "vocab_size": 50257,
        },
    ),
}


def is_shaped_like(model: PreTrainedModel, name: str) -> bool:
    """Whether a model has the class and sizes of a published one, ``"roberta-base"`` or ``"gpt2"``."""
    sizes = SHAPES[name].sizes.items()
    return type(model).__name__ in SHAPES[name].classes and all(
        getattr(model.config, size, None) == wanted for size, wanted in sizes
    )


def published_name(hub_name: str, identity: Mapping[str, str]) -> str | None:
    """The published model's name, if loaded from the hub: a folder may contain any weights of the same shape."""
    if "revision" not in identity:
        return None
    return next((name for name, shape in SHAPES.items() if hub_name in shape.hub), None)


def check_published(name: str | None) -> None:
    """Reject names of other models than the published ones."""
    if name is not None and name not in SHAPES:
        raise AttnscopeError(f"--analyses is yamamoto2023={shortly(name)}: expected {' or '.join(SHAPES)}")


PAPER_LENGTH = 512  # tokens; the papers' frequencies are cycles per 512 tokens
PEAK = (40, 60)  # "near f = 50"
FASTEST_PERIOD = 8  # tokens
SLOW_PERIOD = 51.2  # tokens: f = 10 at 512
CLUSTERS = 6
FLAT = ("self", "flat")  # labels of heads without a side
ABOVE_NULL, ABOVE_NULL_LISTED, LOWEST = 3.0, 1.5, 3
LEVEL = 1e-3
LOBES = (20, 40)  # tokens
SCORE_BAND = 30  # offsets of the GPT-2 profiles
FEW_LABELS = 2
NEXT_LEFT = (-3, -2, -1)  # tokens
SHARP = 0.3  # share of the weight at one offset
LEANS = 0.2  # direction above which a head attends mainly to one side


@dataclass(frozen=True, eq=False)
class ShownHead:
    """The head shown as one of the papers'; ``name`` is theirs, ``8.9``, from 1."""

    name: str
    layer: Layer
    head: int

    @property
    def place(self) -> tuple[int, int]:
        """Attention call and head, from 0."""
        return self.layer.site.index, self.head


@dataclass(frozen=True)
class Finding:
    """A measured value: in words, as a number, whether it matches the published one (None: not comparable), remarks."""

    text: str
    number: float | int = float("nan")
    holds: bool | None = None
    note: str = ""


class Subject:
    """A model, its texts and the results of the analyses, each computed on first use."""

    def __init__(self, study: Study) -> None:
        self.study, self.model, self.seed = study, study.model, study.seed
        self.shown: list[ShownHead] | None = None  # heads of the papers' figures, chosen on first use
        # by the papers' layer and head, the heads that replace theirs in a model of another shape
        self.stand_ins: Mapping[tuple[int, int], ShownHead | None] = {}

    @property
    def evidence(self) -> Evidence:
        """The study's layers, tables and words."""
        return self.study.evidence

    @property
    def windows(self) -> list[Window | Sequence[int]]:
        """The study's windows."""
        return self.study.windows

    @property
    def length(self) -> int:
        """Tokens of each text."""
        return self.evidence.length

    def result(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """An analysis of the study, or the result of `make`."""
        stored = self.study.results.get(name)
        return make() if stored is None else stored

    @property
    def table(self) -> PositionTable:
        """The first position table."""
        return self.evidence.tables[0]

    @cached_property
    def spectrum(self) -> xr.Dataset:
        """The spectrum of the position table."""
        return amplitude_spectrum(self.table.rows)

    @cached_property
    def clusters(self) -> xr.Dataset:
        """Labels of all heads in all texts, their shares and their centroids, as `summarize` gives them."""
        return self.result("figure_1", lambda: clustered_heads(self.evidence, seed=self.seed))

    @cached_property
    def labels(self) -> tuple[Float[np.ndarray, "head cluster"], list[str], list[int]]:
        """Label shares of each head over the texts, the labels' names, and heads in each layer."""
        shares = self.clusters.label_share.values
        names = [str(name) for name in self.clusters.cluster.values]
        shares = shares.reshape(-1, len(names))
        return shares[np.isfinite(shares).all(1)], names, [layer.heads for layer in self.evidence.layers]

    @cached_property
    def score_clusters(self) -> xr.Dataset:
        """Two clusters of all heads' scores, summed along offsets before mask and softmax."""
        return self.result("figure_15", lambda: clustered_scores(self.model, self.windows, seed=self.seed))

    @property
    def directed(self) -> np.ndarray:
        """Which heads attend mainly to one side, by their most frequent label."""
        shares, names, _ = self.labels
        return np.array([names[label].split(" ")[0] not in FLAT for label in shares.argmax(1)])

    @cached_property
    def waves(self) -> xr.Dataset:
        """The waves of all heads."""
        return self.result("waves", lambda: query_key_waves(self.study, permutations=0, seed=self.seed))

    @cached_property
    def correlations(self) -> xr.Dataset:
        """Canonical correlations by layer."""
        return self.result("position_cca", lambda: position_cca(self.study))

    @cached_property
    def peak_ratios(self) -> xr.DataArray:
        """Strongest amplitude near f = 50 over the 99% point of white noise, by layer and side."""
        spectra = self.result("spectra", lambda: spectra_by_layer(self.study))
        near = spectra.frequency[in_periods(self.length)]
        if not near.size:
            raise AttnscopeError(f"texts of {self.length} tokens have no frequency near 50 cycles per 512")
        return spectra.maximum.sel(frequency=near).max("frequency") / spectra.null_99

    def head(self, layer: int, head: int) -> tuple[Layer, int]:
        """The head that the papers call head(layer, head), both counted from 1, or the one that replaces it."""
        if (layer, head) in self.stand_ins:
            shown = self.stand_ins[layer, head]
            if shown is None:
                raise AttnscopeError(f"no head of this model attends like head({layer},{head})")
            return shown.layer, shown.head
        layers = self.evidence.layers
        if layer > len(layers) or head > layers[layer - 1].heads:
            raise AttnscopeError(f"no head({layer},{head}) in {len(layers)} layers of {layers[-1].heads} heads")
        return layers[layer - 1], head - 1

    def profile(self, layer: int, head: int) -> Float[np.ndarray, " offset"]:
        """tr_t of a head, mean over texts."""
        place, number = self.head(layer, head)
        return np.mean([sums[number] for sums in place.band_sums], 0)

    def scores(self, layer: int, head: int, *, paper: bool = True) -> xr.Dataset:
        """Cross-correlation of a head: the papers' (first text, no biases), or with the mean X and biases."""
        place, number = self.head(layer, head)
        if place.projections.form != "bilinear":
            raise AttnscopeError(
                f"the scores of head({layer},{head}) have the form {place.projections.form!r}, not bilinear in X"
            )
        return self.correlation(place, number, paper=paper)

    def correlation(self, place: Layer, number: int, *, paper: bool = True) -> xr.Dataset:
        """`scores` of a head that has bilinear scores."""
        if paper:
            states, (query, key) = place.sample, place.matrices(number, affine=False)
        else:
            states, query, key = inputs_of(place, number)
        parts = reparametrize(query, key)
        mode = "paper" if paper else "centre_k"
        return cross_correlation(states @ parts.query, states @ parts.key, parts.values, mode=mode)


def clustered_heads(evidence: Evidence, *, seed: int = 0) -> xr.Dataset:
    """Six clusters of all heads' profiles over all texts, and their dependence on the text: see `summarize`."""
    most = max(layer.heads for layer in evidence.layers)
    sums = np.full((evidence.texts, len(evidence.layers), most, evidence.layers[0].band_sums[0].shape[-1]), np.nan)
    for row, layer in enumerate(evidence.layers):
        sums[:, row, : layer.heads] = np.stack(layer.band_sums)
    half = sums.shape[-1] // 2
    results = xr.Dataset(
        {
            "band_sum": (("window", "layer", "head", "offset"), sums),
            "length": ("window", np.full(evidence.texts, evidence.length)),
        },
        coords={"offset": np.arange(-half, half + 1)},
    )
    return summarize(results, clusters=CLUSTERS, seed=seed).assign_coords(
        layer=[layer.site.index for layer in evidence.layers], head=np.arange(most)
    )


@torch.no_grad()
def clustered_scores(model: PreTrainedModel, windows: Windows, *, seed: int = 0) -> xr.Dataset:
    """Two clusters of the offset traces of all heads' scores, which a causal mask does not cut (EMNLP, appendix C)."""
    ids = token_ids(windows)
    by_layer: dict[int, list[np.ndarray]] = {}

    def observe(site: Site, call: AttentionCall, _: Tensor, __: Tensor) -> Tensor:
        output, _rows = measure(call, Need(band=1))
        if site.kind != "cross":
            by_layer.setdefault(site.index, []).extend(score_traces(call, SCORE_BAND).cpu().numpy())
        return output

    with watching_inputs(model, observe):
        for _, batch in batches(ids):
            read(model, batch)
    traces = np.stack([np.stack(by_layer[layer]) for layer in sorted(by_layer)], 1) / ids.length
    clustering = cluster_profiles(traces.reshape(-1, traces.shape[-1]), clusters=2, seed=seed)
    labels = clustering.labels.reshape(len(ids), len(by_layer), -1)
    names = [f"cluster {number + 1}" for number in range(len(clustering.names))]
    return xr.Dataset(
        {
            "label": (("window", "layer", "head"), labels),
            "label_share": (
                ("layer", "head", "cluster"),
                np.stack([(labels == number).mean(0) for number in range(len(names))], -1),
            ),
            "centroid": (("cluster", "offset"), clustering.centroids, {"units": "mean score"}),
        },
        coords={
            "cluster": np.array(names, dtype=object),
            "layer": sorted(by_layer),
            "head": np.arange(labels.shape[2]),
            "offset": np.arange(-SCORE_BAND, SCORE_BAND + 1),
        },
    )


def in_periods(length: int, band: tuple[int, int] = PEAK) -> np.ndarray:
    """Which frequencies 0..length // 2 have the periods that the band has at 512 tokens."""
    scaled = np.arange(length // 2 + 1) * PAPER_LENGTH / length
    return (scaled >= band[0]) & (scaled <= band[1])
