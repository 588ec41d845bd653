"""Which measure finds the heads and tokens that matter, in models where that is known.

    python benchmarks/zoo.py --markdown             # 6 models of every kind and form: some minutes
    python benchmarks/zoo.py --each 2 --by-kind     # a quick look, and every kind by itself
    python benchmarks/zoo.py --each 4 --only search # recall of the search by random sets on 200 models

Each row is a method: AUROC and precision at k, means over the models of `attnscope.testing`, with 95% bootstrap
intervals
over kinds; k is the number of heads (or tokens of a prediction) that matter. A method ranks the heads of one planted,
or the tokens that one prediction could see. A kind misleads a method if its AUROC is below 0.5 in more models of the
kind than chance allows, and the method is blind to a kind if it is neither below nor above 0.5 in more of them (sign
test, 5% over all kinds; a kind of too few models to tell is not named).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import xarray as xr
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import binomtest
from torch import Tensor

from attnscope.capture.borrow import LoadedModel
from attnscope.capture.watch import Site
from attnscope.capture.watching import watching
from attnscope.explanation.study import Study
from attnscope.intervention.ablation import effects, search_heads
from attnscope.intervention.predictions import ABLATIONS, PredictionSession, Questions
from attnscope.intervention.tokens import token_contributions
from attnscope.kernels.call import AttentionCall, Need
from attnscope.kernels.engines import measure
from attnscope.kernels.full import attend_in_full
from attnscope.measure.documents import by_document
from attnscope.measure.passes import WindowBatch
from attnscope.measure.rows import indicator_columns, reduce_call
from attnscope.read.windows import Batch, Window
from attnscope.testing.catalogue import Zoo, names, zoo
from attnscope.testing.zoo import PlantedModel

CIRCUITS = {re.sub(r"-(decoder|encoder|encoder-decoder)-\d+$", "", name) for name in names(1)}
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
        super().__init__(LoadedModel(planted.model, None, planted.name, {}), windows, "next", batch_size=len(windows))
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
    return next(effects(_Asked(planted), ABLATIONS, steps=5)).mean("window")


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


def judge_heads(planted: PlantedModel, method: Method) -> tuple[float, float]:
    """AUROC and precision at k."""
    truth, scores = (
        np.asarray(one, dtype=kind).ravel() for one, kind in ((planted.heads, bool), (method(planted), float))
    )
    judged = np.ones_like(truth)
    return float(auroc(truth, scores, judged)), float(precision_at_k(truth, scores, judged))


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

    def add(self, planted: PlantedModel, judged: tuple[float, float] | None) -> None:
        if judged is not None:
            self.auroc.append(judged[0])
            self.precision.append(judged[1])
            self.kinds.append(planted.circuit)

    def by_kind(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """AUROC and precision of the models of each kind."""
        kinds, values = np.array(self.kinds), (np.array(self.auroc), np.array(self.precision))
        return {kind: tuple(one[kinds == kind] for one in values) for kind in dict.fromkeys(self.kinds)}

    def cells(self) -> list[str]:
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


def interval(values: list[float], kinds: list[str]) -> str:
    """Mean with a 95% bootstrap interval over kinds, whose models are alike."""
    found = by_document(np.array(values), kinds)
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


def scored(models: Zoo) -> dict[str, dict[str, Column]]:
    """Both questions, every method."""
    found = {"heads": {name: Column() for name in METHODS}, "tokens": {name: Column() for name in TOKEN_METHODS}}
    for planted in track(models, "models", console=Console(file=sys.stderr)):
        for name, method in METHODS.items():
            found["heads"][name].add(planted, judge_heads(planted, method))
        for name, method in TOKEN_METHODS.items():
            found["tokens"][name].add(planted, judge_tokens(planted, method))
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
    options = parser.parse_args()
    for methods in (METHODS, TOKEN_METHODS):
        for name in [name for name in methods if (options.only or "") not in name]:
            del methods[name]
    torch.set_num_threads(1)
    models = zoo(options.each)
    found = scored(models)
    rows = [
        [question, name, *column.cells()] for question, methods in found.items() for name, column in methods.items()
    ]
    headings = ["which", "method", "AUROC", "precision at k", "misled by", "blind to"]
    show(f"{len(models)} models", headings, rows, markdown=options.markdown)
    for question, methods in found.items():
        if not (options.by_kind and methods):
            continue
        by_kind = [column.by_kind() for column in methods.values()]
        of_kinds = [
            [kind, *(" / ".join(f"{values.mean():.2f}" for values in column[kind]) for column in by_kind)]
            for kind in by_kind[0]
        ]
        print()
        show(f"AUROC / precision, {question}", ["kind", *methods], of_kinds, markdown=options.markdown)


if __name__ == "__main__":
    main()
