"""All that a result has to say in sentences, for the terminal, for ``--json`` and for a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnscope.results.reports import REPORTS, report_of
from attnscope.store.runs import skipped_of
from attnscope.support.arguments import validated
from attnscope.support.numbers import count, percent


@dataclass(frozen=True)
class Account:
    """What a result has to say."""

    read: str  # what was read: heads, texts, tokens
    headline: list[str]  # what came out
    notes: list[str]  # what is not as expected, and what could not be found out
    care: list[str]  # how far what came out carries


@validated
def account_of(command: str, result: xr.Dataset | xr.DataTree) -> Account:
    """All that a result has to say, in the sentences of its command's tables."""
    if command in REPORTS:
        report = report_of(command, result)
        return Account(report.read, [*report.finding.sentences], [*report.notes], [*report.care])
    headline, notes = headline_of(command, result), notes_of(command, result)
    if isinstance(result, xr.Dataset):
        headline = [*headline, *_groups(result), *describe_groups(result)]
    care = [sentence for sentence in _CARE[command](result) if sentence]
    return Account(
        describe_read(command, result), headline, [note for note in notes if note not in headline], care
    )


@validated
def describe_read(command: str, result: xr.Dataset | xr.DataTree) -> str:
    """What was read, as the first line of a command's tables has it behind the model's name."""
    return _READ[command](result)


@validated
def describe_groups(results: xr.Dataset) -> list[str]:
    """What differs between texts of a scan that are held apart; that nothing is, where all have one value."""
    if "by" not in results.coords:
        return []
    from attnscope.comparison.contrasts import contrasts, describe_contrasts, field_of

    values = set(results.by.values)
    if len(values) == 1:
        return [f"{field_of(results)}: all texts have the value {values.pop()}, so nothing is held apart."]
    return describe_contrasts(contrasts(results))


def _groups(results: xr.Dataset) -> list[str]:
    if "group_weight" not in results:
        return []
    from attnscope.comparison.spans import group_pairs, said_of

    pairs = group_pairs(results)
    said = said_of(pairs)
    sentences = [f"Groups of tokens: {said[:1].lower()}{said[1:]}."]
    if pairs and pairs[0].above > 0:
        first = pairs[0]
        weight, equal, places = (f"{value:.2f}" for value in (first.weight, first.equal, first.places))
        sentences.append(
            f"Furthest above both is head {first.layer}.{first.head}, {first.query} on {first.key}: weight {weight}, "
            f"equal {equal}, places {places}."
        )
    return sentences


def _read_of_scan(results: xr.Dataset) -> str:
    from attnscope.measure.stored import describe_corpus, describe_layers

    return (
        f"{describe_layers(results)} x {count(results.sizes['head'], 'head')} over {describe_corpus(results)}"
    )


def _read_of_comparison(tree: xr.DataTree) -> str:
    scores = tree["scores"].to_dataset()
    return f"{count(scores.sizes['system'], 'system')} on {count(scores.attrs['sentences'], 'sentence')}"


def _settings(tree: xr.DataTree) -> dict[str, Any]:
    return json.loads(tree.attrs["signature"])["settings"]


def _care_of_scan(results: xr.Dataset) -> list[str]:
    from attnscope.comparison.spans import NULLS
    from attnscope.measure.ranking import rank_heads
    from attnscope.measure.stored import WEIGHTS_NOTE, means_note

    groups = [NULLS] if "group_weight" in results else []
    return [means_note(results, rank_heads(results).values()), *groups, WEIGHTS_NOTE]


def _care_of_comparison(tree: xr.DataTree) -> list[str]:
    from attnscope.lineage.compare_notes import error_rate_note

    scores = tree["scores"].to_dataset()
    return [
        differences_note(scores),
        error_rate_note(scores) if "alignment_error_rate" in scores else "",
        *describe_cut_sentences(scores),
    ]


@validated
def differences_note(scores: xr.Dataset) -> str:
    """By what systems are told apart; empty where there is one, or nothing to tell them by."""
    if scores.sizes["system"] < 2 or bool(scores["p_value"].isnull().all()):  # noqa: PLR2004
        return ""
    return f"p: paired bootstrap over sentences against {scores['system'].values[0]}; one training of each system."


@validated
def describe_cut_sentences(scores: xr.Dataset) -> list[str]:
    """Of which systems how many sentences were cut."""
    cuts = zip(scores["system"].values, scores["sentences_cut"].values, strict=True)
    return [
        f"{name}: {count(int(cut), 'sentence')} longer than it was trained for {'was' if cut == 1 else 'were'} cut"
        for name, cut in cuts
        if cut
    ]


_READ: dict[str, Callable[[Any], str]] = {
    "scan": _read_of_scan,
    "compare": _read_of_comparison,
}
_CARE: dict[str, Callable[[Any], list[str]]] = {
    "scan": _care_of_scan,
    "compare": _care_of_comparison,
}


def headline_of(command: str, opened: Any) -> list[str]:
    """What came out, in sentences."""
    if command in REPORTS:
        return [*report_of(command, opened).finding.sentences]
    return [sentence for sentence in _HEADLINES[command](opened) if sentence]


def notes_of(command: str, opened: Any) -> list[str]:
    """What is not as expected, and what could not be found out."""
    if command in REPORTS:
        return [*report_of(command, opened).notes]
    if isinstance(opened, xr.Dataset):
        from attnscope.measure.stored import notes_of as notes_of_scan

        return list(notes_of_scan(opened).values())
    if not isinstance(opened, xr.DataTree):
        return []
    return _missing(skipped_of(opened).items())


def _missing(reasons: Iterable[tuple[str, str]]) -> list[str]:
    return [f"no {names}: {reason}" for names, reason in reasons]


def _of_scan(results: xr.Dataset) -> list[str]:
    from attnscope.measure.stored import describe_labels

    return [describe_labels(results)]


def _of_training(results: xr.Dataset) -> list[str]:
    names = {"loss": "loss", "bleu": "BLEU"}
    said = [f"{name} {float(results[key]):.2f}" for key, name in names.items() if key in results]
    return [f"Validation: {', '.join(said)}."] if said else []


def _of_alignment(aligned: Any) -> list[str]:
    if aligned.score is None:
        return [f"{len(aligned.links)} sentence pairs, no alignments by people to hold the links against."]
    rates = map(percent, (aligned.score.error_rate, aligned.score.precision, aligned.score.recall))
    said = "{} sentence pairs: error rate {}, precision {}, recall {}."
    headline = [said.format(len(aligned.links), *rates)]
    if aligned.baselines is not None:
        headline.append(f"To compare: {aligned.baselines.in_words(aligned.score.error_rate)}.")
    return headline


def _of_comparison(tree: xr.DataTree) -> list[str]:
    scores = tree["scores"].to_dataset().sel(metric="BLEU")
    rows = zip(
        scores["system"].values, *(scores[name].values for name in ("score", "lower", "upper")), strict=True
    )
    return [
        f"{system}: BLEU {score:.1f}"
        + (f" (95% interval {low:.1f} to {high:.1f})" if np.isfinite(low) else "")
        + "."
        for system, score, low, high in rows
    ]


_HEADLINES: dict[str, Callable[[Any], list[str]]] = {
    "scan": _of_scan,
    "train": _of_training,
    "align": _of_alignment,
    "compare": _of_comparison,
}
