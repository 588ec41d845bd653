"""Word alignment of a parallel text with a translation model, and its evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import xarray as xr
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attnscope.capture.borrow import verb
from attnscope.capture.load import Model, load_model
from attnscope.capture.parameters import AlignmentReading, loading
from attnscope.lineage.data import encode_pairs
from attnscope.lineage.links import (
    LEAST_WEIGHT,
    AlignmentScore,
    Baselines,
    ForcedPair,
    Forcing,
    Gold,
    Links,
    WordAlignment,
    baselines,
    links,
    links_of_line,
    pharaoh,
    read_gold,
    read_links,
    score_alignments,
    within,
)
from attnscope.lineage.parallel_text import Lines, TaskText, check_parallel, is_unsegmented, lines_of_text, lines_sha256
from attnscope.read.windows import TargetTokenizer
from attnscope.results.schema import HEAD, Finding, Quantity, Report, Row, Table, value_of
from attnscope.store.arrays import in_a_row
from attnscope.store.files import VIEWS, InUseError, explained, local_folder
from attnscope.store.folder import OwnedFolder
from attnscope.store.signature import Signature, package_versions, tokenizer_sha256
from attnscope.store.units import Parts, Task, do_share, pending, task_for
from attnscope.support.arguments import Count, Natural
from attnscope.support.checks import check_real, check_whole, shortly
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count, percent, with_nulls
from attnscope.support.progress import Progress, Tell, no_progress


@verb()
def align(
    model: Model,
    texts: Lines,
    targets: Lines,
    *,
    gold: str | Path | Gold | None = None,
    gold_first: int = 1,
    layer: Natural | None = None,
    head: Natural | None = None,
    end: Literal["drop", "keep", "null"] = "drop",
    step: Literal["predicts", "reads"] = "predicts",
    words: Literal["space", "piece"] = "space",
    rule: Literal["argmax", "intersection", "threshold"] = "argmax",
    threshold: float | None = None,
    shown: Natural = 0,
    batch_size: Count = 16,
    **reading: Unpack[AlignmentReading],
) -> Aligned:
    """Align the words of a parallel text by cross-attention; evaluate it against human alignments.

    Attention was not trained to align: the mean of a layer is often poor where a single head is good. With gold
    alignments and neither `layer` nor `head`, every head is evaluated and the best one is used. Its error rate is then
    slightly optimistic, because it was chosen on the same sentences.

    Parameters
    ----------
    model
        An encoder-decoder: see `attnscope.scan`.
    texts, targets
        Sentences and their translations: lists of strings, or the `Path` of a file with one sentence per line.
    gold
        Gold alignments by people (see `read_gold`), with words split at spaces.
    gold_first
        The number of the first word in that file.
    layer, head
        Layer and head of the decoder, counted from 0; None for the mean of all.
    end
        Treatment of weight on marks such as ``</s>``: ``drop`` it, ``keep`` it as one more column, or ``null``: a word
        that prefers a mark has no link.
    step
        The decoder step whose row belongs to a word: the one that ``predicts`` it, or the one that ``reads`` it.
    words, batch_size
        Unit of alignment: ``space`` (words between spaces) or ``piece`` (tokens); sentence pairs at a time.
    rule, threshold
        As in `links`; the threshold, 0.2 by default, is only for the rule ``threshold``.
    shown
        Number of sentence pairs stored with their weights, in `Aligned.pairs` and in ``run.json`` next to
        ``links.txt``. Pairs with no word, or more than 40, on one side are skipped and counted in
        `Aligned.passed_over`. Draw one with `attnscope.results.figures.alignment.pair_map`.

    Returns
    -------
    Aligned

    Raises
    ------
    AttnscopeError
        If line counts differ, a text has no spaces between words, the model is not an encoder-decoder, an option does
        not exist, the folder cannot be used, or a part of it is damaged.
    """
    part = task_for(align, locals())
    check_whole(0, 1, gold_first=gold_first)
    check_real(0.0, 1.0, threshold=threshold)
    if threshold is not None and rule != "threshold":
        raise AttnscopeError(
            f"found a threshold (--threshold) with the rule {shortly(rule)}: leave it out, or use --rule threshold"
        )
    sources, targets = lines_of_text(texts, "the text"), lines_of_text(targets, "the target")
    for name, lines in (("the text", sources), ("the target", targets)) if words == "space" else ():
        if is_unsegmented(lines):
            raise AttnscopeError(
                f"{name} has no spaces between words: align tokens with --words piece, or put spaces between the words"
            )
    judges = read_gold(gold, gold_first) if isinstance(gold, str | Path) else gold
    sides: dict[str, Sequence[object]] = {"the text": sources, "the target": targets}
    check_parallel(sides if judges is None else {**sides, "the gold file": judges.sure})
    loaded, language, out = load_model(model, **loading(reading)), reading["target_language"], reading["out"]
    tokenizer = loaded.tokenizer if language is None else TargetTokenizer(loaded.tokenizer, language).tokenizer
    work = Work(
        Forcing(loaded.model, tokenizer, sources, targets, words=words, batch_size=batch_size),
        {"name": loaded.name, **loaded.identity},
        layer,
        head,
        judges is not None and layer is None and head is None,
        {"rule": rule, **({"threshold": threshold or LEAST_WEIGHT} if rule == "threshold" else {})},
        {"end": end, "step": step},
        judges,
        reading["progress"] or no_progress,
        language,
    )
    if out is not None:
        return stored(work, out, part, shown)
    return aligned_of(work, in_a_row([unit for unit in work.units() if unit is not None]), shown)


MOST_WORDS = 40  # of a sentence in a picture


@dataclass(frozen=True, eq=False)
class ShownPair:
    """A sentence pair for a figure: its weights, the extracted links, and gold links if any."""

    line: int  # from 1
    words: WordAlignment
    found: Links
    sure: Links
    possible: Links
    error_rate: float


@dataclass(frozen=True, eq=False)
class Aligned:
    """A parallel text aligned by a model."""

    model: str  #: its name
    layer: int | None  #: whose weights were read; None for the mean of all
    head: int | None
    #: whether layer and head were chosen by the lowest error rate on these gold alignments
    chosen_on_gold: bool
    links: list[Links]  #: for each sentence pair its links
    score: AlignmentScore | None  #: against the gold alignments
    heads: xr.Dataset | None  #: ``error_rate``, ``precision`` and ``recall (layer, head)``, if every head was evaluated
    outside: int  #: number of gold links beyond the end of their sentence
    #: sentence pairs for figures; with gold alignments, evenly from the best to the worst
    pairs: list[ShownPair]
    signature: str  #: JSON of model, texts, settings and versions
    task: str = ""  #: message of a task that finished before others; there are no links then
    #: error rates of the diagonal and of random links, if there are gold alignments
    baselines: Baselines | None = None
    #: number of sentence pairs without a figure, because a side has no word or more than 40
    passed_over: int = 0

    @property
    def attrs(self) -> dict[str, str]:
        """Attributes, as an xarray result has them."""
        return {"signature": self.signature, "model": self.model}

    @property
    def compared_heads(self) -> xr.Dataset | None:
        """Error rates of every head, if there is more than one."""
        return self.heads if self.heads is not None and self.heads["error_rate"].size > 1 else None


def aligned_of(work: Work, measured: xr.Dataset, shown: int) -> Aligned:
    """Totals over the links of all pairs."""
    layer, head, gold = work.layer, work.head, work.gold
    heads = None
    if work.chooses and gold is not None:
        heads = _judged(measured["links_of_heads"].values, gold)
        rates = heads["error_rate"].values
        layer, head = map(int, np.unravel_index(np.nanargmin(rates), rates.shape))
        lines = measured["links_of_heads"].values[:, layer, head]
    else:
        lines = measured["links"].values
    alignments = [links_of_line(str(line)) for line in lines]
    lengths = list(zip(*(measured[name].values.tolist() for name in ("source_words", "target_words")), strict=True))
    score = level = None
    outside = 0
    if gold is not None:
        score = score_alignments(alignments, gold.sure, gold.possible)
        level = baselines(alignments, gold, lengths, 1 if heads is None else heads["error_rate"].size)
        pairs = zip(gold.possible, lengths, strict=True)
        outside = sum(len(possible) - len(within(possible, *of_pair)) for possible, of_pair in pairs)
    return Aligned(
        work.identity["name"],
        layer,
        head,
        work.chooses,
        alignments,
        score,
        heads,
        outside,
        _pairs(work, alignments, lengths, layer, head, shown),
        work.signature(layer, head).to_json(),
        baselines=level,
        passed_over=sum(not _fits(of_pair) for of_pair in lengths),
    )


def _judged(every: np.ndarray, gold: Gold) -> xr.Dataset:
    """Error rate, precision and recall of every head, from its links ``(pair, layer, head)``."""
    rates = {name: np.empty(every.shape[1:]) for name in ("error_rate", "precision", "recall")}
    for at in np.ndindex(*every.shape[1:]):
        score = score_alignments([links_of_line(str(line)) for line in every[:, *at]], gold.sure, gold.possible)
        for name, values in rates.items():
            values[at] = getattr(score, name)
    return _by_head(rates)


def _by_head(rates: Mapping[str, Any]) -> xr.Dataset:
    dataset = xr.Dataset({name: (("layer", "head"), np.array(rows, dtype=np.float64)) for name, rows in rates.items()})
    return dataset.assign_coords({name: range(dataset.sizes[name]) for name in ("layer", "head")})


def _fits(lengths: tuple[int, int]) -> bool:
    """Whether a pair with these numbers of words is short enough for a figure."""
    return min(lengths) > 0 and max(lengths) <= MOST_WORDS


def _pairs(
    work: Work, alignments: list[Links], lengths: list[tuple[int, int]], layer: int | None, head: int | None, shown: int
) -> list[ShownPair]:
    """Weights of some pairs, from a second pass over these only, to save memory."""
    short = [i for i, of_pair in enumerate(lengths) if _fits(of_pair)]
    nothing: Links = frozenset()
    gold = work.gold or Gold([nothing] * len(alignments), [nothing] * len(alignments))
    rates = dict.fromkeys(short, math.nan)
    if work.gold is not None:
        rates = {i: score_alignments([alignments[i]], [gold.sure[i]], [gold.possible[i]]).error_rate for i in short}
        short = sorted((i for i in short if not np.isnan(rates[i])), key=lambda i: rates[i])
        at = np.unique(np.linspace(0, len(short) - 1, min(shown, len(short))).round().astype(int))
        short = [short[i] for i in at]
    short = short[:shown]
    if not short:
        return []
    forced = (pair.words(layer, head, **work.how) for pair in work.forcing.only(short))
    return [
        ShownPair(i + 1, words, alignments[i], gold.sure[i], gold.possible[i], rates[i])
        for i, words in zip(short, forced, strict=True)
    ]


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


def report(aligned: Aligned) -> Report:
    """The report of `align`, the best heads first."""
    score, level, pairs = aligned.score, aligned.baselines, count(len(aligned.links), "sentence pair")
    sentences, headline = [f"{pairs}; no gold alignments to compare with."], f"{pairs} aligned; no gold alignments"
    if score is not None:
        error_rate, precision, recall = map(percent, (score.error_rate, score.precision, score.recall))
        sentences = [f"{pairs}: error rate {error_rate}, precision {precision}, recall {recall}."]
        headline = f"Alignment error rate {error_rate} over {pairs}"
    if score is not None and level is not None:
        sentences.append(f"Baselines: {level.in_words(score.error_rate)}.")
    one: Row = {"layer": aligned.layer, "head": aligned.head, "chosen_on_gold": aligned.chosen_on_gold}
    for values in (score, level):
        one |= {} if values is None else {name: value_of(value) for name, value in vars(values).items()}
    heads = aligned.compared_heads
    rows: list[Row] = [] if heads is None else heads.to_dataframe().reset_index().to_dict("records")
    rows = [{name: value_of(value) for name, value in row.items()} for row in rows]
    rows.sort(key=lambda row: (row["error_rate"] is None, row["error_rate"]))
    notes: list[str] = []
    if aligned.outside:
        notes.append(f"{count(aligned.outside, 'gold link')} beyond the end of the sentence, counted as not found.")
    if aligned.passed_over:
        passed = count(aligned.passed_over, "sentence pair")
        notes.append(f"{passed} without a figure: no word, or more than {MOST_WORDS}, on one side.")
    best = aligned.chosen_on_gold and heads is not None
    links: list[Row] = [{"line": line, "links": pharaoh(own)} for line, own in enumerate(aligned.links, 1)]
    return Report(
        title=f"Words aligned by {aligned.model}",
        read=f"{pairs}, links of {_whose(aligned)}",
        finding=Finding(
            sentences,
            "the head was chosen on these sentences" if aligned.chosen_on_gold else "",
            [] if aligned.layer is None or aligned.head is None else [(aligned.layer, aligned.head)],
            headline=headline,
        ),
        tables=[
            Table(
                "scores",
                "Comparison with gold alignments",
                _SCORES,
                [one | {"gold_links_outside": aligned.outside}],
                terminal=int(score is not None),
                page=int(score is not None),
            ),
            Table("heads", "Alignment error rate of every head, best first", _HEADS, rows),
            Table("links", "Links", _LINKS, links, terminal=0, page=0),
        ],
        result=aligned,
        notes=notes,
        care=(_BEST if best else {}) | _CARE,
    )


def _whose(aligned: Aligned) -> str:
    """The layer and head of the weights, in words."""
    if aligned.layer is None:
        return "the mean of all layers" + (" and heads" if aligned.head is None else f", head {aligned.head}")
    if aligned.head is None:
        return f"the mean of all heads of layer {aligned.layer}"
    return f"head {aligned.layer}.{aligned.head}"


_REQUESTED = "requested"  # in the state of the folder: the signature of the whole request


def stored(work: Work, out: str | Path | Callable[[Signature], Path], task: Task | None, shown: int) -> Aligned:
    """The alignment of a text, read from its folder or made and written there."""
    signature = work.signature(work.layer, work.head, every_head=work.chooses, shown=shown)
    folder = local_folder(out(signature)) if callable(out) else Path(out)
    there = _there(OwnedFolder(folder, "align").look(), signature)
    if there is not None:
        return there
    if task is None:
        with OwnedFolder(folder, "align") as owned:
            return _written(work, owned, signature, shown)
    message = pending(task, folder, signature)["task"]
    waiting = Aligned(work.identity["name"], None, None, False, [], None, None, 0, [], signature.to_json(), message)
    if not do_share(task, folder, signature, work.units, {}).is_whole():
        return waiting
    try:
        owned = OwnedFolder(folder, "align").__enter__()
    except InUseError:  # another process finished at the same moment
        return waiting
    with owned:
        return _there(owned, signature) or _written(work, owned, signature, shown)


def _there(folder: OwnedFolder, signature: Signature) -> Aligned | None:
    """The requested alignment, if an earlier process made it and it is undamaged."""
    if folder.state.get(_REQUESTED) != signature.to_dict() or folder.damaged([LINKS, RECORD]):
        return None
    return load_alignment(folder)


def _written(work: Work, folder: OwnedFolder, signature: Signature, shown: int) -> Aligned:
    """Make the alignment, from the parts of tasks if these are complete, and write it."""
    parts = Parts(folder.path, signature)
    whole = parts.results() if parts.is_whole() else in_a_row([unit for unit in work.units() if unit is not None])
    aligned = aligned_of(work, whole, shown)
    where = "Choose another folder with --out, or free some disk space"
    with (
        explained(f"write to {folder.path}", where),
        folder.replacing(LINKS, RECORD, *VIEWS, views=None, **{_REQUESTED: signature.to_dict()}) as new,
    ):
        write_alignment(aligned, new)
    parts.drop()
    return load_alignment(folder)


LINKS, RECORD = "links.txt", "run.json"
_AS_IT_IS = ("model", "layer", "head", "chosen_on_gold", "outside", "passed_over")  # in the record


def write_alignment(aligned: Aligned, folder: Path) -> None:
    """Write ``links.txt`` (Pharaoh's format, one pair a line) and ``run.json`` (all else) into a folder."""
    (folder / LINKS).write_text("".join(f"{pharaoh(links)}\n" for links in aligned.links), encoding="utf-8")
    heads = aligned.heads
    record: dict[str, Any] = {name: getattr(aligned, name) for name in _AS_IT_IS} | {
        "signature": json.loads(aligned.signature),
        "score": aligned.score and vars(aligned.score),
        "baselines": aligned.baselines and vars(aligned.baselines),
        "heads": None if heads is None else {str(name): rates.values.tolist() for name, rates in heads.items()},
        "pairs": [
            {"line": pair.line, "error_rate": pair.error_rate, "sure": sorted(pair.sure)}
            | {"possible": sorted(pair.possible), **vars(pair.words), "weights": pair.words.weights.tolist()}
            for pair in aligned.pairs
        ],
    }
    (folder / RECORD).write_text(json.dumps(with_nulls(record), sort_keys=True) + "\n", encoding="utf-8")


def load_alignment(folder: OwnedFolder) -> Aligned:
    """Read the result of `align` from its folder."""
    record: dict[str, Any] = json.loads(folder.read(RECORD))
    folder.read(LINKS)  # checks it
    alignments = read_links(folder.path / LINKS)
    pairs: list[ShownPair] = []
    for pair in record["pairs"]:
        words = WordAlignment(pair["source"], pair["target"], np.array(pair["weights"], dtype=np.float64))
        sure, possible = (frozenset((int(i), int(j)) for i, j in pair[name]) for name in ("sure", "possible"))
        error_rate = _with_nan(pair)["error_rate"]
        pairs.append(ShownPair(pair["line"], words, alignments[pair["line"] - 1], sure, possible, error_rate))
    return Aligned(
        **{name: record[name] for name in _AS_IT_IS},
        links=alignments,
        score=record["score"] and AlignmentScore(**_with_nan(record["score"])),
        heads=record["heads"] and _by_head(record["heads"]),
        pairs=pairs,
        signature=Signature.of(record["signature"]).to_json(),
        baselines=record["baselines"] and Baselines(**_with_nan(record["baselines"])),
    )


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """Restore numbers from JSON, which has no NaN."""
    return {name: math.nan if value is None else value for name, value in record.items()}


UNIT = 16  # batches per work unit


@dataclass
class Work:
    """Inputs of every pass over the text."""

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

    def units(self, done: Callable[[range], bool] = lambda _: False) -> Iterator[xr.Dataset | None]:
        """Links of each work unit, as lines of Pharaoh's format; None for a finished one."""
        pairs_in_all, step = self.forcing.count, UNIT * self.forcing.batch_size
        for start in range(0, pairs_in_all, step):
            lines = range(start, min(start + step, pairs_in_all))
            if done(lines):
                yield None
            else:
                yield _labelled([self._linked(pair) for pair in self.forcing.pairs(lines, self.tell)], lines)
        self.tell(Progress("align", 1.0, {"pairs": pairs_in_all}))

    def signature(self, layer: int | None, head: int | None, **settings: Any) -> Signature:
        """Everything that the links of that layer and head depend on."""
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
            settings={"layer": layer, "head": head, **self.how, **cutting, **self.read, **settings},
            versions=package_versions(),
        )

    def _linked(self, pair: ForcedPair) -> dict[str, Any]:
        """Of one pair, by the name of the variable."""
        columns = len(pair.source.words)
        linked: dict[str, Any] = {"source_words": columns, "target_words": len(pair.target.words)}
        if not self.chooses:
            weights = pair.words(self.layer, self.head, **self.how).weights
            return linked | {"links": pharaoh(links(weights[:, :columns], **self.read))}
        of_heads = pair.words_of_heads(**self.how).weights
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
    score: AlignmentScore  # its links against the gold ones, on the other sentence pairs
    baselines: Baselines  # error rates of the diagonal and of random links on these pairs

    def rates(self) -> dict[str, float]:
        """Error rate with its interval, precision, recall and the baselines, by name."""
        score, level = vars(self.score), vars(self.baselines)
        return (
            {name: score[name] for name in ("error_rate", "precision", "recall")}
            | {name: level[name] for name in ("diagonal", "chance", "chance_level")}
            | {f"error_rate_{end}": level[end] for end in ("lower", "upper")}
        )


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

    def aligned(pairs: Sequence[int], **head: int | None) -> Aligned:
        links = [frozenset(text.alignments[i]) for i in pairs]
        texts = ([side[i] for i in pairs] for side in (text.source, text.target))
        return align(model, *texts, tokenizer=tokenizer, gold=Gold(links, links), **head)

    choice = aligned(short[::2])
    judged = aligned(short[1::2], layer=choice.layer, head=choice.head)
    if judged.score is None or judged.baselines is None or choice.layer is None or choice.head is None:
        return None
    return AligningHead(choice.layer, choice.head, judged.score, judged.baselines)
