"""Which measure finds the heads and tokens that matter, in models where that is known.

    python benchmarks/zoo.py --markdown             # 6 models of every kind and form: some minutes
    python benchmarks/zoo.py --each 2 --by-kind     # a quick look, and every kind by itself
    python benchmarks/zoo.py --each 4 --only search # recall of the search by random sets on 200 models
    python benchmarks/zoo.py --question circuits --by-kind --markdown  # weights, attribution and edges, by kind

Each row is a method: AUROC and precision at k, means over the models of `attnscope_zoo`, with 95% bootstrap
intervals over kinds (by kind: over models); k is the number of heads (or tokens of a prediction) that matter. A method
ranks the heads of one planted, its pairs of heads, or the tokens that one prediction could see. A kind misleads a
method if its AUROC is below 0.5 in more models of the kind than chance allows, and the method is blind to a kind if it
is neither below nor above 0.5 in more of them (sign test, 5% over all kinds; a kind of too few models to tell
is not named).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import xarray as xr
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import binomtest
from torch import Tensor

import attnscope_circuits
from attnscope.capture.borrow import LoadedModel
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.study import Study
from attnscope.intervention.ablation import effects, search_heads
from attnscope.intervention.pairs import EncodedPairs
from attnscope.intervention.predictions import PredictionSession
from attnscope.intervention.questions import Questions
from attnscope.intervention.replacements import ABLATIONS
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.measure.passes import WindowBatch
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.models.common import IGNORED
from attnscope.read.windows import Batch, Window
from attnscope.statistics.effects import by_document
from attnscope.support.errors import AttnscopeError
from attnscope_circuits.attribution import Attribution
from attnscope_circuits.edge_scores import EdgeRuns, Graph
from attnscope_lineage.weights.tokens import token_contributions
from attnscope_zoo.catalogue import CIRCUITS, Zoo, zoo
from attnscope_zoo.zoo import PlantedModel

LEVEL = 0.05  # of chance, over all kinds
Method = Callable[[PlantedModel], "Tensor | np.ndarray"]


# What a method sees


@lru_cache(maxsize=1)
def attention_of(planted: PlantedModel) -> tuple[Tensor, ...]:
    """Weights of every call, (text, head, query, key)."""
    found: list[Tensor] = []

    def observe(_: Site, call: AttentionCall) -> Tensor:
        output, weights = attend_in_full(call)
        found.append(weights)
        return output

    with torch.no_grad(), watching(planted.model, observe):
        planted.model(**planted.inputs)
    return tuple(found)


def statistic(name: str, sign: float, planted: PlantedModel) -> Tensor:
    """A statistic of `attnscope.scan`, mean over texts."""
    found: list[Tensor] = []

    def observe(_: Site, call: AttentionCall) -> Tensor:
        queries, keys = (torch.ones(len(one), one.shape[2], dtype=torch.bool) for one in (call.query, call.key))
        need = Need(entropy=True, largest=True, collision=True, columns=indicator_columns(keys, ~keys))
        output, rows = measure(call, need)
        found.append(reduce_call(rows, [name], queries, keys)[name].mean(0))
        return output

    with torch.no_grad(), watching(planted.model, observe):
        planted.model(**planted.inputs)
    return sign * torch.stack(found)


# Which heads matter: (layer, head)


def zero_ablation(planted: PlantedModel) -> Tensor:
    """Change of the loss when one head's output is 0."""
    before = planted.loss(planted.logits())
    found = torch.zeros(planted.heads.shape)
    for layer, head in np.ndindex(*planted.heads.shape):

        def silence(site: Site, call: AttentionCall, layer: int = layer, head: int = head) -> Tensor:
            output = attend_in_full(call)[0]
            if site.index == layer:
                output[:, head] = 0.0
            return output

        with torch.no_grad(), watching(planted.model, silence):
            found[layer, head] = (planted.loss(planted.model(**planted.inputs).logits) - before).abs()
    return found


def plain_window(ids: list[int], number: int) -> Window:
    """Token ids as a window, none of them special."""
    return Window(tuple(ids), (False,) * len(ids), ((0, 0),) * len(ids), f"text {number}", 0, ("",) * len(ids))


class _Asked(PredictionSession):
    """An planted's task as `attnscope.intervene` asks questions: each text one window, all in one batch."""

    def __init__(self, planted: PlantedModel) -> None:
        windows = [plain_window(ids, number) for number, ids in enumerate(planted.ids.tolist())]
        super().__init__(
            LoadedModel(planted.model, planted.tokenizer, planted.name, {}), windows, "next", batch_size=len(windows)
        )
        self.planted = planted

    def batch(self, place: slice) -> Questions:
        """Some of the texts."""
        read = [self.planted.ids, self.planted.ids if self.planted.target is None else self.planted.target]
        text, target = (
            Batch(ids[place], torch.ones_like(ids[place], dtype=torch.bool), torch.zeros_like(ids[place]).bool())
            for ids in read
        )
        labels = self.planted.labels[place]
        places = torch.arange(labels.shape[1]).expand_as(labels)
        return Questions(WindowBatch(text, target), places, labels, self.windows[place])


@lru_cache(maxsize=1)
def effects_of(planted: PlantedModel) -> xr.Dataset:
    """Effects under every ablation and their estimates, by means over texts."""
    return next(effects(_Asked(planted), [*ABLATIONS], steps=5)).mean("window")


def effect(ablation: str, planted: PlantedModel) -> np.ndarray:
    """Size of the change of the loss when something stands in for a head."""
    return np.abs(effects_of(planted).loss_change.sel(ablation=ablation).values)


def estimate(estimator: str, ablation: str, planted: PlantedModel) -> np.ndarray:
    """Size of the change as a gradient estimates it."""
    return np.abs(effects_of(planted).estimate.sel(estimator=estimator, ablation=ablation).values)


def importance(planted: PlantedModel) -> np.ndarray:
    """Head importance of Michel et al. (2019)."""
    return effects_of(planted).importance.values


def searched(planted: PlantedModel) -> np.ndarray:
    """Size of each head's part in what random sets of heads change, by sparse regression."""
    return np.abs(search_heads(_Asked(planted)).searched.values)


def random_heads(planted: PlantedModel) -> Tensor:
    """The null."""
    return torch.rand(planted.heads.shape, generator=own_generator(planted))


def own_generator(planted: PlantedModel) -> torch.Generator:
    return torch.Generator().manual_seed(planted.seed)


@lru_cache(maxsize=1)
def circuits_of(planted: PlantedModel) -> xr.Dataset:
    """Circuits from the weights alone."""
    return attnscope_circuits.circuits(planted.model)


def copying(planted: PlantedModel) -> np.ndarray:
    """OV copying: sum of the eigenvalues over the sum of their sizes."""
    return circuits_of(planted).copying_sum.values


def offset_peak(planted: PlantedModel) -> np.ndarray:
    """Highest score of an offset over the mean of all offsets, nats."""
    scores = circuits_of(planted).offset_score
    return (scores.max("offset") - scores.mean("offset")).values


def same_token(planted: PlantedModel) -> np.ndarray:
    """Score of a token with itself over others, in standard deviations."""
    return circuits_of(planted).same_token.values


@lru_cache(maxsize=1)
def attributed(planted: PlantedModel) -> np.ndarray:
    """Size of each head's part of the answer's logit over that of the mean token, mean over texts."""
    session = _Asked(planted)
    count = len(session.windows)
    found = Attribution(session, [(None, None)] * count, None, None).of_batch(slice(0, count))
    parts, scores = (found.part - found.random).mean("window"), np.zeros(planted.heads.shape)
    heads = parts.where(parts.kind == "head", drop=True)
    scores[heads.layer.values, heads["head"].values] = np.abs(heads.values)  # no encoder adds to a logit directly
    return scores


def pairs_of(planted: PlantedModel) -> EncodedPairs:
    """Texts, each with another that has another answer at the same position."""
    labels, chosen = planted.labels.numpy(), list[tuple[int, int, int]]()
    for text in range(len(labels)):
        for place in np.flatnonzero(labels[text] != IGNORED)[1:][::-1]:
            others = np.flatnonzero((labels[:, place] != IGNORED) & (labels[:, place] != labels[text, place]))
            if len(others):
                chosen.append((text, int(others[0]), int(place)))
                break
    own, other, place = torch.tensor(chosen[:EDGE_PAIRS]).T
    answers = planted.labels[own, place][:, None], planted.labels[other, place][:, None]
    targets = None if planted.target is None else (planted.target[own], planted.target[other])
    return EncodedPairs(planted.ids[own], planted.ids[other], place[:, None], *answers, (), (), targets)


@lru_cache(maxsize=2)
def edges_of(planted: PlantedModel, steps: int) -> tuple[Graph, np.ndarray]:
    """Mean score of every edge by EAP (0 steps) or EAP-IG."""
    pairs = pairs_of(planted)
    graph = Graph(planted.model, pairs)
    return graph, np.where(graph.exist, EdgeRuns(graph, pairs).attributed(steps).mean(0), 0.0)


def edges_out(steps: int, planted: PlantedModel) -> np.ndarray:
    """Sum of the sizes of all edges that leave a head."""
    graph, scores = edges_of(planted, steps)
    sizes = dict(zip(graph.senders, np.abs(scores).sum(1), strict=True))
    return np.array(
        [[sizes[f"a{call}.h{head}"] for head in range(planted.heads.shape[1])] for call in range(len(planted.heads))]
    )


EDGE_PAIRS, STEPS = 16, 5

CIRCUIT_METHODS: dict[str, Method] = {
    "random (the null)": random_heads,
    "attribution to the logit": attributed,
    "edges out, EAP": partial(edges_out, 0),
    "edges out, EAP-IG": partial(edges_out, STEPS),
    "OV copying": copying,
}

# Which heads have a role: by their weights, each with its own truth

ROLES: dict[str, tuple[str, Method]] = {
    "copies its token: OV copying": ("induction head", copying),
    "attends to an offset: peak by offset": ("to offset|previous-token", offset_peak),
    "attends to the same word: same token": ("same word", same_token),
}

# Which pairs of heads compose: (kind, from_layer, from_head, layer, head)

COMPOSED = {"induction": 1, "spare": 1, "gate": 0, "relay": 2, "chain": 2}  # number of query, key or value


def composed(planted: PlantedModel) -> np.ndarray | None:
    """Pairs of heads that work together by construction; None if there are none."""
    if planted.circuit not in COMPOSED:
        return None
    idle = re.compile("idle|sink|random")
    steps = sorted({call for call, roles in enumerate(planted.roles) if not all(map(idle.match, roles))})
    truth = np.zeros((3, *planted.heads.shape, *planted.heads.shape), dtype=bool)
    for early, late in pairwise(steps):
        for first, second in product(
            *([h for h, role in enumerate(planted.roles[at]) if not idle.match(role)] for at in (early, late))
        ):
            truth[COMPOSED[planted.circuit], early, first, late, second] = True
    return truth


def composition(planted: PlantedModel) -> np.ndarray:
    """Composition in the weights."""
    return circuits_of(planted).composition.values


def edges_between(steps: int, planted: PlantedModel) -> np.ndarray:
    """Sizes of the edges between heads."""
    graph, scores = edges_of(planted, steps)
    found = np.full((3, *planted.heads.shape, *planted.heads.shape), np.nan)
    for sender, receiver in zip(*np.nonzero(graph.exist), strict=True):
        own, other = (
            re.fullmatch(r"a(\d+)\.h(\d+)(?:<(.)>)?", names[at])
            for names, at in ((graph.senders, sender), (graph.receivers, receiver))
        )
        if own and other:
            ends = int(own[1]), int(own[2]), int(other[1]), int(other[2])
            found["qkv".index(other[3]), *ends] = abs(scores[sender, receiver])
    return found


def random_pairs(planted: PlantedModel) -> np.ndarray:
    """The null."""
    return np.random.default_rng(planted.seed).random((3, *planted.heads.shape, *planted.heads.shape))


PAIR_METHODS: dict[str, Method] = {
    "random (the null)": random_pairs,
    "composition": composition,
    "edges, EAP": partial(edges_between, 0),
    "edges, EAP-IG": partial(edges_between, STEPS),
}


METHODS: dict[str, Method] = {
    "random (the null)": random_heads,
    "zero ablation": zero_ablation,
    "largest weight": partial(statistic, "max_weight", 1.0),
    "low entropy": partial(statistic, "entropy", -1.0),
    "concentration, ΣA²": partial(statistic, "gini_simpson", -1.0),
    "little on the first token": partial(statistic, "first_token", -1.0),
    "mean ablation": partial(effect, "mean"),
    "resample ablation": partial(effect, "resample"),
    "mask search, a quarter of the passes": searched,
    "gradient importance": importance,
    "attribution patching (mean)": partial(estimate, "attribution", "mean"),
    "attribution patching (resample)": partial(estimate, "attribution", "resample"),
    "integrated gates (mean)": partial(estimate, "integrated", "mean"),
    "EAP-IG (resample)": partial(estimate, "eap_ig", "resample"),
}


# Which tokens matter: (text, query, token)


def onto_inputs(planted: PlantedModel) -> list[Tensor]:
    """Weights whose queries are asked and whose keys are the tokens judged: beside an encoder, cross-attention."""
    calls = attention_of(planted)
    if planted.target is None:
        return list(calls)
    encoder = len(calls) // 3  # encoders and decoders of the zoo have as many layers
    return list(calls[encoder + 1 :: 2])


def mean_weight(planted: PlantedModel) -> Tensor:
    """Mean over all heads."""
    return torch.stack(onto_inputs(planted)).mean((0, 2))


def last_layer(planted: PlantedModel) -> Tensor:
    """Mean over the heads of the last layer."""
    return onto_inputs(planted)[-1].mean(1)


def strongest_weight(planted: PlantedModel) -> Tensor:
    """Largest over all heads."""
    return torch.stack(onto_inputs(planted)).amax((0, 2))


def random_offsets(planted: PlantedModel) -> Tensor:
    """The null: what a positional head drawn at random looks at."""
    length = planted.ids.shape[1]
    weight = torch.rand(2 * length, generator=own_generator(planted))
    place = torch.arange(length)
    return weight[place - place[:, None] + length].expand(len(planted.ids), -1, -1)


def exchange(planted: PlantedModel) -> Tensor:
    """Change of the answer's log-probability when a token is exchanged for any other token of the texts."""
    generator = own_generator(planted)
    before = answers(planted, planted.inputs)
    found = torch.zeros(*planted.labels.shape, planted.ids.shape[1])
    every = planted.ids.unique()
    for place in range(planted.ids.shape[1]):
        ids = planted.ids.clone()
        others = (every != ids[:, place, None]).double()
        ids[:, place] = every[torch.multinomial(others, 1, generator=generator)[:, 0]]
        found[:, :, place] = (answers(planted, planted.inputs | {"input_ids": ids}) - before).abs()
    return found


@torch.no_grad()
def answers(planted: PlantedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Log-probability of what is asked, (text, query)."""
    told = planted.model(**inputs).logits.log_softmax(-1)
    return told.gather(-1, planted.labels.clamp_min(0)[..., None])[..., 0]


@lru_cache(maxsize=1)
def contributions(planted: PlantedModel) -> xr.DataArray:
    """Scores of the tokens judged by every kind of `token_contributions`, (kind, text, query, token): some predictions
    of the first texts, NaN for all others.
    """
    kinds = list(TOKEN_ROWS.values())
    found = np.full((len(kinds), *planted.labels.shape, planted.ids.shape[1]), np.nan)
    assert planted.tokens is not None  # noqa: S101 asked of models that have them
    hangs = planted.tokens.any(-1)
    for text in range(TEXTS):
        places = hangs[text].nonzero().flatten().tolist()[:PLACES]
        if places:
            one = Study(planted.model, [_window(planted, text)], name=planted.name)
            outcomes = planted.labels[text, places].tolist()
            scores = token_contributions(one, positions=places, outcomes=outcomes, estimators=kinds).score
            found[:, text, places] = scores.values[:, :, (scores.side == "source").values]
    return xr.DataArray(found, dims=("estimator", "window", "query", "token"), coords={"estimator": kinds})


def contribution(kind: str, planted: PlantedModel) -> np.ndarray:
    """One kind of `token_contributions`."""
    return contributions(planted).sel(estimator=kind).values


def _window(planted: PlantedModel, text: int) -> Window:
    """A text as `attnscope.scan` cuts windows, with what a decoder reads beside it."""
    target = None if planted.target is None else plain_window(planted.target[text].tolist(), text)
    return replace(plain_window(planted.ids[text].tolist(), text), target=target)


TEXTS, PLACES = 3, 6  # of a planted model, that the slow methods are asked of
TOKEN_ROWS = {
    "norms, mean of layers": "norms_mean",
    "block norms, rollout": "block_norms_rollout",
    "rollout": "rollout",
    "flow": "flow",
    "gradient x attention": "gradient_attention",
    "gradient x input": "gradient_input",
    "hidden from all heads": "leave_one_out",
}

TOKEN_METHODS: dict[str, Method] = {
    "random by offset (the null)": random_offsets,
    "token exchanged": exchange,
    "weight, mean of heads": mean_weight,
    "weight, last layer": last_layer,
    "weight, largest of heads": strongest_weight,
    **{name: partial(contribution, kind) for name, kind in TOKEN_ROWS.items()},
}


# How good a ranking is


def auroc(truth: np.ndarray, scores: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Of each row: the share of pairs of a true and a false one that are in the right order, ties counting half."""
    pairs = (truth & judged)[..., :, None] & (~truth & judged)[..., None, :]
    first, second = scores[..., :, None], scores[..., None, :]
    return ((first > second) + 0.5 * (first == second)).sum((-2, -1), where=pairs) / pairs.sum((-2, -1))


def precision_at_k(truth: np.ndarray, scores: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Of each row: the share of true ones among the k best, k being how many there are; ties count by their share."""
    ranked = np.where(judged, scores, -np.inf)
    count = (truth & judged).sum(-1, keepdims=True)
    bound = np.take_along_axis(-np.sort(-ranked, axis=-1), count - 1, axis=-1)
    above, tied = ranked > bound, ranked == bound
    places = count - above.sum(-1, keepdims=True)
    share = (truth & tied).sum(-1, keepdims=True) / tied.sum(-1, keepdims=True)
    return (((truth & above).sum(-1, keepdims=True) + share * places) / count)[..., 0]


def judged_by(truth: Any, scores: Any) -> tuple[float, float] | None:
    """AUROC and precision at k among defined scores; None without a true and a false one."""
    truth, scores = np.asarray(truth, dtype=bool).ravel(), np.asarray(scores, dtype=float).ravel()
    judged = np.isfinite(scores)
    if len(np.unique(truth[judged])) < 2:
        return None
    return float(auroc(truth, scores, judged)), float(precision_at_k(truth, scores, judged))


def judge_heads(planted: PlantedModel, method: Method) -> tuple[float, float] | None:
    """AUROC and precision at k."""
    return judged_by(planted.heads, method(planted))


def judge_roles(planted: PlantedModel, method: tuple[str, Method]) -> tuple[float, float] | None:
    """The same for heads of one role."""
    truth = [[bool(re.search(method[0], role)) for role in roles] for roles in planted.roles]
    return judged_by(truth, method[1](planted))


def judge_pairs(planted: PlantedModel, method: Method) -> tuple[float, float] | None:
    """The same for pairs of heads; None if no heads compose."""
    truth = composed(planted)
    return None if truth is None else judged_by(truth, method(planted))


def judge_tokens(planted: PlantedModel, method: Method) -> tuple[float, float] | None:
    """Means over the predictions of a planted model that hang on tokens; None if no single token decides."""
    if planted.tokens is None:
        return None
    every = np.asarray(method(planted), dtype=float)
    hangs = planted.tokens.any(-1).numpy() & ~np.isnan(every).any(-1)  # slow methods are asked of some predictions
    truth, scores = planted.tokens.numpy()[hangs], every[hangs]
    judged = np.ones_like(truth)
    if planted.form == "decoder":
        judged = np.arange(truth.shape[1]) <= hangs.nonzero()[1][:, None]
    return float(auroc(truth, scores, judged).mean()), float(precision_at_k(truth, scores, judged).mean())


@dataclass
class Column:
    """What a method got, by planted."""

    auroc: list[float] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)  # names of models that the method does not take

    def add(self, planted: PlantedModel, judged: tuple[float, float] | None) -> None:
        if judged is not None:
            self.auroc.append(judged[0])
            self.precision.append(judged[1])
            self.kinds.append(planted.circuit)

    def by_kind(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """AUROC and precision of the models of each kind."""
        kinds, values = np.array(self.kinds), (np.array(self.auroc), np.array(self.precision))
        return {kind: tuple(one[kinds == kind] for one in values) for kind in dict.fromkeys(self.kinds)}

    def cell(self, kind: str) -> str:
        """AUROC of a kind with its interval over models, and precision."""
        if kind not in self.kinds:
            return "—"
        values, precision = self.by_kind()[kind]
        return f"{interval(values, range(len(values)))} / {precision.mean():.2f}"

    def cells(self) -> list[str]:
        if not self.kinds:
            return ["—"] * 4
        kinds = {kind: judged for kind, judged in self.by_kind().items() if tells(len(judged[0]))}
        misled = [kind for kind, (values, _) in kinds.items() if is_rare(values < 0.5, values > 0.5)]
        found = [kind for kind, (values, _) in kinds.items() if is_rare(values > 0.5, values < 0.5)]
        blind = [kind for kind in kinds if kind not in misled + found]
        return [
            interval(self.auroc, self.kinds),
            interval(self.precision, self.kinds),
            listed(misled, kinds),
            listed(blind, kinds),
        ]


def is_rare(on_one_side: np.ndarray, on_the_other: np.ndarray) -> bool:
    """Whether so many on one side of chance are more than chance gives, in as many tests as there are kinds."""
    count = int(on_one_side.sum())
    tried = count + int(on_the_other.sum())
    return tried > 0 and binomtest(count, tried, alternative="greater").pvalue < LEVEL / len(CIRCUITS)


def tells(models: int) -> bool:
    """Whether so many models, were all on one side, would be more than chance gives."""
    return is_rare(np.ones(models, dtype=bool), np.zeros(0, dtype=bool))


def listed(chosen: list[str], of: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    if not of:
        return "too few models"
    return f"all {len(of)}" if len(chosen) == len(of) else ", ".join(chosen) or "none"


def interval(values: Sequence[float] | np.ndarray, kinds: Sequence[Hashable]) -> str:
    """Mean with a 95% bootstrap interval over kinds, whose models are alike; without one of fewer than 6."""
    found = by_document(np.asarray(values), kinds)
    if np.isnan(found.low):
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} [{max(found.low, 0):.2f}, {min(found.high, 1):.2f}]"


#: Methods by question, in two groups: what happens on texts, and circuits.
QUESTIONS: dict[str, dict[str, tuple[dict[str, Any], Callable[..., tuple[float, float] | None]]]] = {
    "effects": {"heads": (METHODS, judge_heads), "tokens": (TOKEN_METHODS, judge_tokens)},
    "circuits": {
        "heads": (CIRCUIT_METHODS, judge_heads),
        "roles": (ROLES, judge_roles),
        "pairs of heads": (PAIR_METHODS, judge_pairs),
    },
}


def scored(models: Zoo, questions: dict[str, Any]) -> dict[str, dict[str, Column]]:
    """Every question, every method."""
    found = {question: {name: Column() for name in methods} for question, (methods, _) in questions.items()}
    for planted in track(models, "models", console=Console(file=sys.stderr)):
        for question, (methods, judge) in questions.items():
            for name, method in methods.items():
                try:
                    found[question][name].add(planted, judge(planted, method))
                except AttnscopeError:  # a model without this measure
                    found[question][name].rejected.append(planted.name)
    return found


def show(title: str, headings: list[str], rows: list[list[str]], *, markdown: bool) -> None:
    if markdown:
        lines = [headings, ["---"] * len(headings), *rows]
        print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
        return
    table = Table(*headings, title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=6, help="PlantedModels of every kind and form")
    parser.add_argument("--markdown", action="store_true", help="Print Markdown")
    parser.add_argument("--by-kind", action="store_true", help="Print AUROC and precision by kind as well")
    parser.add_argument("--only", help="Part of the name of the methods that are tried; by default all")
    parser.add_argument("--question", choices=[*QUESTIONS], default="effects", help="What is ranked")
    options = parser.parse_args()
    questions = QUESTIONS[options.question]
    for methods, _ in questions.values():
        for name in [name for name in methods if (options.only or "") not in name]:
            del methods[name]
    torch.set_num_threads(1)
    models = zoo(options.each)
    found = scored(models, questions)
    rows = [
        [question, name, *column.cells()] for question, methods in found.items() for name, column in methods.items()
    ]
    headings = ["which", "method", "AUROC", "precision at k", "misled by", "blind to"]
    show(f"{len(models)} models", headings, rows, markdown=options.markdown)
    for question, methods in found.items():
        if not (options.by_kind and methods):
            continue
        kinds = [kind for kind in CIRCUITS if any(kind in column.kinds for column in methods.values())]
        of_kinds = [[kind, *(column.cell(kind) for column in methods.values())] for kind in kinds]
        print()
        show(f"AUROC / precision, {question}", ["kind", *methods], of_kinds, markdown=options.markdown)
    for question, methods in found.items():
        for name, column in methods.items():
            if column.rejected:
                print(f"{question}, {name}: rejected {', '.join(column.rejected)}", file=sys.stderr)


if __name__ == "__main__":
    main()
