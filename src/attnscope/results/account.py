"""What came out of a run, and what to know of it, in sentences: for lists and descriptions of runs."""

from __future__ import annotations

from typing import Any

import xarray as xr

from attnscope.results.reports import REPORTS, report_of


def headline_of(command: str, opened: Any) -> list[str]:
    """What came out, in sentences."""
    if command == "scan":  # the attributes of its first piece say it
        from attnscope.measure.stored import describe_labels

        return [describe_labels(opened)]
    if command == "train":
        return _of_training(opened)
    if command == "align":
        from attnscope.lineage.reports import alignment_report

        return [*alignment_report(opened).finding.sentences]
    return [*report_of(command, opened).finding.sentences]


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
