"""What scores and comparisons of translation systems found, as data."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np

from attnscope.measure.documents import FEW, LEAST
from attnscope.results.schema import Finding, Quantity, Report, Row, Table, value_of
from attnscope.support.arguments import reads
from attnscope.support.numbers import count, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import xarray as xr

    from attnscope.lineage.align import Aligned
    from attnscope.lineage.translate import Translations

_ENDS = ("lower", "upper", "difference", "difference_lower", "difference_upper", "p_value")
_EFFORT = (
    Quantity("parameters", unit="count", detail="page"),
    Quantity("training_seconds", "training, s", "count", detail="page"),
    Quantity("training_tokens_per_second", "train tokens/s", "count", "target tokens in training, median of the log"),
    Quantity("sentences_per_second", "lines/s", "rate", "while translating this text"),
    Quantity(
        "alignment_error_rate",
        "AER",
        "percent",
        low="alignment_error_rate_lower",
        high="alignment_error_rate_upper",
        interval=True,
    ),
)
#: Of a system in a comparison, beside what its columns show.
_MORE = ("training_tokens", "alignment_diagonal", "alignment_chance", "alignment_chance_level", "sentences_cut")
CARE = {
    "One training each.": "Intervals and p-values are over sentences; another seed gives another system. Sizes and "
    "training times differ too: see the table.",
    "BLEU of short and long sentences.": "A score of a length is corpus BLEU over its sentences; few sentences give "
    "wide intervals.",
    "Attention was not trained to align.": "A weight is a share of the sum of one head; it does not report whether the "
    "output depends on it.",
}


def score_report(scores: xr.Dataset) -> Report:
    """What `attnscope.score` found."""
    sentences, names = int(scores.attrs["sentences"]), [str(name) for name in scores["system"].values]
    notes = [scores.attrs[name] for name in ("note",) if name in scores.attrs]
    if sentences < FEW:
        untested = f"; not tested: fewer than {LEAST}" if sentences < LEAST else ""
        notes.append(f"No interval of scores: fewer than {FEW} sentences{untested}.")
    return Report(
        command="score",
        title="Scores of translations",
        model=", ".join(names),
        read=count(sentences, "sentence"),
        finding=Finding(_sentences(scores), _certainty(scores)),
        tables=_tables(scores, ()),
        result=scores,
        notes=[*notes, *_signatures(scores.attrs["signature"])],
    )


def alignment_report(aligned: Aligned) -> Report:
    """The alignments that `attnscope.align` made."""
    from attnscope.lineage.links import pharaoh  # torch, which reports of scores do not need

    score, level, pairs = aligned.score, aligned.baselines, count(len(aligned.links), "sentence pair")
    sentences = [f"{pairs}, no alignments by people to hold the links against."]
    if score is not None:
        rates = map(percent, (score.error_rate, score.precision, score.recall))
        sentences = ["{}: error rate {}, precision {}, recall {}.".format(pairs, *rates)]
    if score is not None and level is not None:
        sentences.append(f"To compare: {level.in_words(score.error_rate)}.")
    one = {"layer": aligned.layer, "head": aligned.head, "chosen_on_gold": aligned.chosen_on_gold}
    for values in (score, level):
        one |= {} if values is None else vars(values)
    heads = [] if aligned.heads is None else np.ndenumerate(aligned.heads["error_rate"].values)
    chosen = [] if aligned.layer is None or aligned.head is None else [(aligned.layer, aligned.head)]
    certainty = "the head was chosen on these very sentences" if aligned.chosen_on_gold else ""
    return Report(
        command="align",
        title="Word alignments",
        model=aligned.model,
        read=pairs,
        finding=Finding(sentences, certainty, chosen),
        tables=[
            _data("scores", [one | {"gold_links_outside": aligned.outside}]),
            _data("heads", [{"layer": at[0], "head": at[1], "error_rate": float(rate)} for at, rate in heads]),
            _data("links", [{"line": at, "links": pharaoh(links)} for at, links in enumerate(aligned.links, 1)]),
        ],
        result=aligned,
    )


def translation_report(translations: Translations) -> Report:
    """The translations that `attnscope.translate` made, the best first."""
    rows = [
        {"line": line, "rank": rank, "source": source, "translation": one.text}
        | {"score": one.score, "tokens_cut": one.left_out}
        for line, (source, several) in enumerate(zip(translations.sources, translations, strict=True), 1)
        for rank, one in enumerate(several, 1)
    ]
    finding = Finding([f"{translations.account}."], "not tested")
    read = count(len(translations), "sentence")
    return Report("translate", "Translations", "", read, finding, [_data("translations", rows)], translations)


def _data(name: str, rows: list[Row]) -> Table:
    return Table(name, name, [Quantity(key, detail="data") for key in rows[0]] if rows else [], rows)


@reads("compare")
def report(tree: xr.DataTree) -> Report:
    """What a comparison of systems found."""
    scores, curves = tree["scores"].to_dataset(), tree["curves"].to_dataset()
    names = [str(name) for name in scores["system"].values]
    lines: list[Row] = [
        {"system": name}
        | {str(key): value_of(values.sel(system=name).values[at]) for key, values in curves.data_vars.items()}
        for name in names
        for at in range(curves.sizes["validation"])
        if not math.isnan(float(curves["updates"].sel(system=name)[at]))
    ]
    columns = [Quantity(str(name), detail="data") for name in ("system", *curves.data_vars)]
    notes = [error_rate_note(scores)] if "alignment_error_rate" in scores else []
    return Report(
        command="compare",
        title=f"{count(len(names), 'translation system')} compared",
        model=", ".join(names),
        read=count(int(scores.attrs["sentences"]), "sentence"),
        finding=Finding(_sentences(scores), _certainty(scores)),
        tables=[
            *_tables(scores, _EFFORT),
            Table("learning_curves", "Learning curves", columns, lines, terminal=0, page=0),
        ],
        result=tree,
        notes=[*notes, *cut_sentences(scores), *_signatures(scores.attrs["signature"])],
        care=CARE,
    )


def _sentences(scores: xr.Dataset) -> list[str]:
    bleu = scores.sel(metric=scores["metric"].values[0])
    return [
        f"{system}: {bleu['metric'].item()} {score:.1f}"
        + (f" (95% interval {low:.1f} to {high:.1f})" if math.isfinite(low) else "")
        + "."
        for system, score, low, high in zip(
            bleu["system"].values, *(bleu[name].values for name in ("score", "lower", "upper")), strict=True
        )
    ]


def _certainty(scores: xr.Dataset) -> str:
    tested = bool(scores["p_value"].notnull().any())
    return (
        "p: paired bootstrap over sentences against the first system; one training of each" if tested else "not tested"
    )


def _signatures(text: str) -> list[str]:
    return [f"{metric}|{signature}" for metric, signature in json.loads(text).items()]


def _tables(scores: xr.Dataset, effort: Sequence[Quantity]) -> list[Table]:
    metrics = [str(name) for name in scores["metric"].values]
    alone = [str(name) for name, values in scores.data_vars.items() if values.dims == ("system",)]

    def cells(at: xr.Dataset, of: Mapping[str, str]) -> Row:
        """The values of each metric; `of` has the name of an array by the end of the name in a row."""
        return {
            f"{metric.lower()}{end}": value_of(at[name].sel(metric=metric).item())
            for metric in metrics
            for end, name in of.items()
            if name in at
        }

    systems: list[Row] = []
    lengths: list[Row] = []
    for name in scores["system"].values.tolist():
        at = scores.sel(system=name)
        row: Row = {"system": str(name)} | {key: value_of(at[key].item()) for key in alone}
        systems.append(row | cells(at, {"": "score"} | {f"_{end}": end for end in _ENDS}))
        for bucket in at["bucket"].values.tolist() if "bucket" in scores.dims else ():
            of = at.sel(bucket=bucket)
            line: Row = {"system": str(name), "length": str(bucket), "sentences": int(of["sentences"])}
            ends = {"": "score", "_lower": "lower", "_upper": "upper"}
            lengths.append(line | cells(of, {end: f"{key}_by_length" for end, key in ends.items()}))
    measured = [_score(metric, interval=not effort or metric == "BLEU") for metric in metrics]
    differences = [one for metric in metrics for one in _difference(metric)]
    more = [Quantity(name, detail="data") for name in _MORE if name in alone]
    tables = [Table("systems", "All systems", [Quantity("system"), *measured, *differences, *effort, *more], systems)]
    if lengths:
        title = f"By source length, {scores.attrs['length_in']}"
        words = [Quantity("system"), Quantity("length"), Quantity("sentences", unit="count"), *measured]
        tables.append(Table("lengths", title, words, lengths, least=f"{FEW} or more sentences", terminal=60))
    return tables


def _score(metric: str, *, interval: bool) -> Quantity:
    short = metric.lower()
    return Quantity(short, metric, "score", low=f"{short}_lower", high=f"{short}_upper", interval=interval)


def _difference(metric: str) -> tuple[Quantity, Quantity]:
    name, shown = f"{metric.lower()}_difference", metric == "BLEU"
    meaning = "from the first system"
    detail, low, high = "table" if shown else "data", f"{name}_lower", f"{name}_upper"
    return (
        Quantity(name, "difference", "gain", meaning, detail, low=low, high=high, interval=True),
        Quantity(f"{metric.lower()}_p_value", "p", "p", "paired bootstrap over sentences", detail),
    )


def error_rate_note(scores: xr.Dataset) -> str:
    """Say what the alignment error rates of a comparison are, and what needs no model to reach."""
    text = (
        "AER: links of the best head against the known ones, on sentences on which the head was not chosen, with its "
        "95% interval over sentences."
    )
    diagonal, chance, level = (scores[f"alignment_{name}"] for name in ("diagonal", "chance", "chance_level"))
    if diagonal.isnull().all():
        return text
    return (
        f"{text} To compare: the diagonal {percent(float(diagonal.mean()))}, random words "
        f"{percent(float(chance.mean()))} (below {percent(float(level.mean()))} in 1 of 100)."
    )


def cut_sentences(scores: xr.Dataset) -> list[str]:
    """Of which systems how many sentences were cut."""
    return [
        f"{name}: {count(int(cut), 'sentence')} longer than it was trained for {'was' if cut == 1 else 'were'} cut"
        for name, cut in zip(scores["system"].values, scores["sentences_cut"].values, strict=True)
        if cut
    ]
