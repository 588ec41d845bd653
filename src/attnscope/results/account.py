"""What came out of a run, and what to know of it, in sentences: for lists and descriptions of runs."""

from __future__ import annotations

from typing import Any

import xarray as xr

from attnscope.results.reports import REPORTS, report_of
from attnscope.support.numbers import percent


def headline_of(command: str, opened: Any) -> list[str]:
    """What came out, in sentences."""
    if command == "scan":  # the attributes of its first piece say it
        from attnscope.measure.stored import describe_labels

        return [describe_labels(opened)]
    if command == "train":
        return _of_training(opened)
    return _of_alignment(opened) if command == "align" else [*report_of(command, opened).finding.sentences]


def notes_of(command: str, opened: Any) -> list[str]:
    """What is not as expected, and what could not be found out."""
    if command in REPORTS and command != "scan":
        return [*report_of(command, opened).notes]
    if not isinstance(opened, xr.Dataset):
        return []
    from attnscope.measure.stored import notes_of as notes_of_scan

    return list(notes_of_scan(opened).values())


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
