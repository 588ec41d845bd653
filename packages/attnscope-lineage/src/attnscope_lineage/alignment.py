"""Word alignment of a parallel text with a translation model, and its evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnscope.report.schema import HEAD, Finding, Quantity, Report, Row, Table, value_of
from attnscope.report.signature import Signature, package_versions, tokenizer_sha256
from attnscope.store.run import Batch, Job
from attnscope.support.numbers import count, percent
from attnscope.support.progress import Progress, Tell, no_progress
from attnscope_lineage.data import encode_pairs
from attnscope_lineage.links import (
    ForcedPair,
    Forcing,
    Gold,
    Links,
    controls,
    controls_in_words,
    links,
    links_of_line,
    pharaoh,
    score_alignments,
    within,
)
from attnscope_lineage.parallel_text import TaskText, lines_sha256
from attnscope_lineage.verbs.align import align

MOST_WORDS = 40  # of a sentence in a picture


LINKS = "links.txt"  # in a run folder: Pharaoh's format, one pair a line


def _parts(work: Work, measured: xr.Dataset) -> dict[str, xr.Dataset]:
    """The nodes that are computed from the links of all pairs."""
    layer, head, gold = work.layer, work.head, work.gold
    nodes: dict[str, xr.Dataset] = {}
    if work.chooses and gold is not None:
        nodes["heads"] = _judged(measured["links_of_heads"].values, gold)
        rates = nodes["heads"]["error_rate"].values
        layer, head = map(int, np.unravel_index(np.nan_to_num(rates, nan=np.inf).argmin(), rates.shape))
    alignments = [links_of_line(line) for line in _lines(measured, layer, head)]
    rows = [(line, *link) for line, found in enumerate(alignments, 1) for link in sorted(found)]
    columns = zip(("line", "source_word", "target_word"), np.array(rows, np.int64).reshape(-1, 3).T, strict=True)
    of_head = {name: at for name, at in (("layer", layer), ("head", head)) if at is not None}
    nodes["links"] = xr.Dataset({name: ("link", values) for name, values in columns}, of_head)
    lengths = _lengths(measured)
    if gold is not None:
        score = score_alignments(alignments, gold.sure, gold.possible)
        level = controls(alignments, gold, lengths, nodes["heads"]["error_rate"].size if "heads" in nodes else 1)
        pairs = zip(gold.possible, lengths, strict=True)
        outside = sum(len(possible) - len(within(possible, *of_pair)) for possible, of_pair in pairs)
        nodes["scores"] = xr.Dataset(vars(score) | vars(level) | {"gold_links_outside": outside})
    return nodes | _shown(work, alignments, lengths, layer, head)


def links_of(tree: xr.DataTree) -> list[str]:
    """The links of each sentence pair, as lines of Pharaoh's format."""
    return _lines(tree["pairs"].to_dataset(), *_whose(tree["links"]))


def _lines(measured: xr.Dataset, layer: int | None, head: int | None) -> list[str]:
    every = measured.get("links_of_heads")
    return (measured["links"] if every is None else every.isel(layer=layer, head=head)).values.tolist()


def _whose(links: xr.Dataset | xr.DataTree | xr.DataArray) -> tuple[int | None, int | None]:
    """The layer and head of the links; None for a mean."""
    layer, head = (int(links.coords[name]) if name in links.coords else None for name in ("layer", "head"))
    return layer, head


def _judged(every: np.ndarray, gold: Gold) -> xr.Dataset:
    """Error rate, precision and recall of every head, from its links ``(pair, layer, head)``."""
    rates = {name: np.empty(every.shape[1:]) for name in ("error_rate", "precision", "recall")}
    for at in np.ndindex(*every.shape[1:]):
        score = score_alignments([links_of_line(str(line)) for line in every[:, *at]], gold.sure, gold.possible)
        for name, values in rates.items():
            values[at] = getattr(score, name)
    heads = {name: range(size) for name, size in zip(("layer", "head"), every.shape[1:], strict=True)}
    return xr.Dataset({name: (("layer", "head"), values) for name, values in rates.items()}, heads)


def _lengths(measured: xr.Dataset) -> list[tuple[int, int]]:
    """Number of source and target words of each pair."""
    return list(zip(measured["source_words"].values.tolist(), measured["target_words"].values.tolist(), strict=True))


def _fits(lengths: tuple[int, int]) -> bool:
    """Whether a pair with these numbers of words is short enough for a figure."""
    return min(lengths) > 0 and max(lengths) <= MOST_WORDS


def _shown(
    work: Work, alignments: list[Links], lengths: list[tuple[int, int]], layer: int | None, head: int | None
) -> dict[str, xr.Dataset]:
    """Weights of some pairs, from a second pass over these only, to save memory."""
    short = [i for i, of_pair in enumerate(lengths) if _fits(of_pair)]
    gold = work.gold or Gold([frozenset()] * len(alignments), [frozenset()] * len(alignments))
    rates = dict.fromkeys(short, math.nan)
    if work.gold is not None:
        rates = {i: score_alignments([alignments[i]], [gold.sure[i]], [gold.possible[i]]).error_rate for i in short}
        short = sorted((i for i in short if not np.isnan(rates[i])), key=lambda i: rates[i])
        at = np.unique(np.linspace(0, len(short) - 1, min(work.shown, len(short))).round().astype(int))
        short = [short[i] for i in at]
    short = short[: work.shown]
    nodes: dict[str, xr.Dataset] = {}
    for i, pair in zip(short, work.forcing.only(short) if short else (), strict=True):
        weights = pair.words(layer, head, **work.how)
        column = "source_word" if weights.shape[1] == len(pair.source.words) else "column"  # one more, of the marks
        sides = {side: (f"{side}_word", np.array(getattr(pair, side).words, object)) for side in ("source", "target")}
        links = {"links": alignments[i], "sure": gold.sure[i], "possible": gold.possible[i]}
        nodes[f"shown/{i + 1}"] = xr.Dataset(
            {"weights": (("target_word", column), weights), "error_rate": rates[i]}
            | {name: pharaoh(of_pair) for name, of_pair in links.items()},
            sides,
        )
    return nodes


_SCORES = (
    Quantity("layer", unit="count"),
    Quantity("head", unit="count"),
    Quantity("error_rate", "error rate", "percent", low="lower", high="upper", interval=True),
    Quantity("precision", unit="percent"),
    Quantity("recall", unit="percent"),
    Quantity("links", unit="count"),
    Quantity("diagonal", unit="percent", meaning="error rate of diagonal links"),
    Quantity("chance", "random words", "percent", "error rate of the same number of links to random words"),
    *(Quantity(name, detail="data") for name in ("chance_level", "heads", "above", "below", "chosen_on_gold")),
    Quantity("gold_links_outside", unit="count", detail="data"),
)
_HEADS = (*HEAD, *(Quantity(name, name.replace("_", " "), "percent") for name in ("error_rate", "precision", "recall")))
_LINKS = (Quantity("line", detail="data"), Quantity("links", detail="data"))
_CARE = {
    "Attention was not trained to align.": "The model's output may depend on other words. Other heads may align better "
    "or worse.",
    "One row, one step.": "The row of a word is from the step in the settings: the one that predicts it, or the next "
    "one, which reads it. Some models attend to the source of a word one step late.",
}
_BEST = {
    "The best of many heads.": "The head was chosen on the sentences that it is evaluated on, so its error rate is "
    "slightly optimistic. To compare systems, choose it on other sentences."
}


def report(tree: xr.DataTree) -> Report:
    """The report of `align`, the best heads first."""
    lines, (layer, head), chosen_on_gold = links_of(tree), _whose(tree["links"]), "heads" in tree
    pairs = count(len(lines), "sentence pair")
    sentences, headline = [f"{pairs}; no gold alignments to compare with."], f"{pairs} aligned; no gold alignments"
    one: Row = {"layer": layer, "head": head, "chosen_on_gold": chosen_on_gold, "gold_links_outside": 0}
    if "scores" in tree:
        scores = {str(name): value.item() for name, value in tree["scores"].data_vars.items()}
        one |= {name: value_of(value) for name, value in scores.items()}
        error_rate, precision, recall = (percent(scores[name]) for name in ("error_rate", "precision", "recall"))
        sentences = [
            f"{pairs}: error rate {error_rate}, precision {precision}, recall {recall}.",
            f"Controls: {controls_in_words(scores)}.",
        ]
        headline = f"Alignment error rate {error_rate} over {pairs}"
    heads = compared_heads(tree)
    rows: list[Row] = [] if heads is None else heads.to_dataframe().reset_index().to_dict("records")
    rows = [{name: value_of(value) for name, value in row.items()} for row in rows]
    rows.sort(key=lambda row: (row["error_rate"] is None, row["error_rate"]))
    notes: list[str] = []
    outside = one["gold_links_outside"]
    if outside:
        notes.append(f"{count(outside, 'gold link')} beyond the end of the sentence, counted as not found.")
    skipped = sum(not _fits(of_pair) for of_pair in _lengths(tree["pairs"].to_dataset()))
    if skipped:
        passed = count(skipped, "sentence pair")
        notes.append(f"{passed} without a figure: no word, or more than {MOST_WORDS}, on one side.")
    judged = int("scores" in tree)
    links: list[Row] = [{"line": line, "links": found} for line, found in enumerate(lines, 1)]
    return Report(
        title=f"Words aligned by {tree.attrs['model']}",
        read=f"{pairs}, links of {_head_in_words(layer, head)}",
        finding=Finding(
            sentences,
            "the head was chosen on these sentences" if chosen_on_gold else "",
            {} if layer is None or head is None else {"": [(layer, head)]},
            headline=headline,
        ),
        tables=[
            Table("scores", "Comparison with gold alignments", _SCORES, [one], terminal=judged, page=judged),
            Table("heads", "Alignment error rate of every head, best first", _HEADS, rows),
            Table("links", "Links", _LINKS, links, terminal=0, page=0),
        ],
        result=tree,
        notes=notes,
        care=(_CARE if heads is None else _BEST | _CARE),
    )


def compared_heads(tree: xr.DataTree) -> xr.Dataset | None:
    """Error rates of every head, if there is more than one."""
    heads = tree["heads"].to_dataset() if "heads" in tree else None
    return heads if heads is not None and heads["error_rate"].size > 1 else None


def _head_in_words(layer: int | None, head: int | None) -> str:
    if layer is None:
        return "the mean of all layers" + (" and heads" if head is None else f", head {head}")
    return f"the mean of all heads of layer {layer}" if head is None else f"head {layer}.{head}"


UNIT = 16  # batches per work unit


@dataclass
class Work(Job):
    """Inputs of every pass over the text."""

    node, dimension = "pairs", "pair"
    forcing: Forcing
    identity: dict[str, str]
    layer: int | None  # as requested
    head: int | None
    chooses: bool  # whether every head is evaluated and the best one used
    read: dict[str, Any]  # how links are extracted from the weights
    how: dict[str, Any]  # how weights between tokens become weights between words
    gold: Gold | None = None
    tell: Tell = no_progress
    language: str | None = None  # of the targets, for a multilingual tokenizer
    shown: int = 0  # pairs stored with their weights

    def batches(self) -> Iterator[Batch]:
        pairs_in_all, step = self.forcing.count, UNIT * self.forcing.batch_size
        for start in range(0, pairs_in_all, step):
            yield Batch(range(start, min(start + step, pairs_in_all)))
        self.tell(Progress("align", 1.0, {"pairs": pairs_in_all}))

    def measure(self, batch: Batch) -> xr.Dataset:
        """Links of some pairs, as lines of Pharaoh's format."""
        return _labelled([self._linked(pair) for pair in self.forcing.pairs(batch.texts, self.tell)], batch.texts)

    def summarise(self, measured: Iterable[xr.Dataset]) -> dict[str, xr.Dataset]:
        whole = self.joined(measured)
        parts = _parts(self, whole)
        return {self.node: whole} | {name: self.made(name, lambda part=part: part) for name, part in parts.items()}

    def files(self, nodes: dict[str, xr.Dataset]) -> dict[str, bytes]:
        lines = _lines(nodes[self.node], *_whose(nodes["links"]))
        return {LINKS: "".join(f"{line}\n" for line in lines).encode()}

    def sign(self) -> Signature:
        """Everything that the links depend on."""
        text = {
            "pairs": self.forcing.count,
            "source_sha256": lines_sha256(self.forcing.sources),
            "target_sha256": lines_sha256(self.forcing.targets),
        }
        cutting: dict[str, Any] = {"words": self.forcing.cut, "batch_size": self.forcing.batch_size}
        cutting |= {} if self.language is None else {"target_language": self.language}
        if self.gold is not None:  # numbered as it was read
            text["gold_sha256"] = lines_sha256([*map(pharaoh, self.gold.sure), "", *map(pharaoh, self.gold.possible)])
        return Signature(
            "align",
            model=self.identity,
            tokenizer={"sha256": tokenizer_sha256(self.forcing.tokenizer)},
            text=text,
            settings={"layer": self.layer, "head": self.head, **self.how, **cutting, **self.read, "shown": self.shown},
            versions=package_versions(),
        )

    def _linked(self, pair: ForcedPair) -> dict[str, Any]:
        """Of one pair, by the name of the variable."""
        columns = len(pair.source.words)
        linked: dict[str, Any] = {"source_words": columns, "target_words": len(pair.target.words)}
        if not self.chooses:
            weights = pair.words(self.layer, self.head, **self.how)
            return linked | {"links": pharaoh(links(weights[:, :columns], **self.read))}
        of_heads = pair.merged(pair.weights, **self.how)
        found = np.empty(of_heads.shape[:2], dtype=object)
        for at in np.ndindex(*found.shape):
            found[at] = pharaoh(links(of_heads[at][:, :columns], **self.read))
        return linked | {"links_of_heads": found}


def _labelled(pairs: Sequence[dict[str, Any]], lines: range) -> xr.Dataset:
    dims = {"links_of_heads": ("window", "layer", "head")}
    kinds = {"source_words": np.int64, "target_words": np.int64}
    return xr.Dataset(
        {
            name: (dims.get(name, ("window",)), np.array([pair[name] for pair in pairs], kinds.get(name, object)))
            for name in pairs[0]
        },
        coords={"window": np.arange(lines.start, lines.stop)},
    )


@dataclass(frozen=True)
class AligningHead:
    """A head and its alignment error rates."""

    # layer and head of the decoder, from 0, chosen by the error rate on every second sentence pair
    layer: int
    head: int
    scores: xr.Dataset  # its links against the gold ones, on the other sentence pairs, and the controls there

    def rates(self) -> dict[str, float]:
        """Error rate with its interval, precision, recall and the controls, by name."""
        names = ("error_rate", "precision", "recall", "diagonal", "chance", "chance_level")
        rates = {name: self.scores[name].item() for name in names}
        return rates | {f"error_rate_{end}": self.scores[end].item() for end in ("lower", "upper")}


def attends(model: PreTrainedModel) -> bool:
    """Whether the decoder attends to the source; with a fixed vector it does not."""
    return getattr(model.config, "attention", None) != "none"


def best_aligning_head(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: TaskText
) -> AligningHead | None:
    """Find the head that aligns the generated task best, by forced decoding against the gold links."""
    short = encode_pairs(tokenizer, text, longest=int(tokenizer.model_max_length)).index
    if not attends(model) or len(short) < 2:  # noqa: PLR2004 one to choose on, one to judge on
        return None

    def aligned(pairs: Sequence[int], layer: int | None = None, head: int | None = None) -> xr.DataTree:
        links = [frozenset(text.alignments[i]) for i in pairs]
        source, target = ([side[i] for i in pairs] for side in (text.source, text.target))
        return align(model, source, target, gold=Gold(links, links), layer=layer, head=head, tokenizer=tokenizer)

    choice = aligned(short[::2])["links"].coords
    layer, head = int(choice["layer"]), int(choice["head"])
    return AligningHead(layer, head, aligned(short[1::2], layer=layer, head=head)["scores"].to_dataset())
