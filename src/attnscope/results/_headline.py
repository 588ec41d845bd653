"""What a finished run came to, in the sentences that its command prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope._numbers import percent
from attnscope.store import skipped_of

if TYPE_CHECKING:
    from attnscope.translation.alignment import Aligned


@typed
def headline_of(command: str, opened: xr.Dataset | xr.DataTree | Aligned) -> list[str]:
    """What came out, in sentences.

    Parameters
    ----------
    command
        Whose run it is.
    opened
        What `attnscope.open_run` gives; of a scan some of its texts are enough.

    Examples
    --------
    >>> headline_of("train", xr.Dataset({"loss": 4.25, "bleu": 0.5}))
    ['Validation: loss 4.25, BLEU 0.50.']
    """
    return [sentence for sentence in _HEADLINES[command](opened) if sentence]


def notes_of(command: str, opened: Any) -> list[str]:
    """What is not as expected, and what could not be found out."""
    if isinstance(opened, xr.Dataset):
        from attnscope.statistics import notes_of as notes_of_scan

        return list(notes_of_scan(opened).values())
    if not isinstance(opened, xr.DataTree):
        return []
    if command == "explain":
        from attnscope.mechanism.words import skipped_by_reason

        return [*explanation_notes(opened).values(), *_missing(skipped_by_reason(opened))]
    return _missing(skipped_of(opened).items())


@typed
def explanation_notes(tree: xr.DataTree) -> dict[str, str]:
    """How the model of an explanation was read, where that is not as expected, by name.

    Examples
    --------
    >>> explanation_notes(xr.DataTree(xr.Dataset(attrs={"decoder": "Its decoder was read."})))
    {'decoder': 'Its decoder was read.'}
    """
    from attnscope.mechanism.words import layer_numbers

    notes = {"decoder": str(tree.attrs.get("decoder", "")), "layers": layer_numbers(tree)}
    return {name: note for name, note in notes.items() if note}


def _missing(reasons: Iterable[tuple[str, str]]) -> list[str]:
    return [f"no {names}: {reason}" for names, reason in reasons]


def _of_scan(results: xr.Dataset) -> list[str]:
    from attnscope.statistics import kinds_said

    return [kinds_said(results)]


def _of_generation(results: xr.Dataset) -> list[str]:
    from attnscope._turning import said_of_turns, turns

    return [f"{said_of_turns(turns(results))}."]


def _of_explanation(tree: xr.DataTree) -> list[str]:
    from attnscope.mechanism.words import headline

    return headline(tree)


def _of_intervention(tree: xr.DataTree) -> list[str]:
    from attnscope.faithfulness import headline

    return headline(tree)


def _of_patching(tree: xr.DataTree) -> list[str]:
    from attnscope.faithfulness import patch_headline

    return patch_headline(tree)


def _of_difference(changes: xr.Dataset) -> list[str]:
    from attnscope.difference import headline

    return headline(changes)


def _of_roles(result: xr.Dataset) -> list[str]:
    from attnscope.detection import headline

    return headline(result)


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
    "generate": _of_generation,
    "explain": _of_explanation,
    "intervene": _of_intervention,
    "patch": _of_patching,
    "diff": _of_difference,
    "roles": _of_roles,
    "train": _of_training,
    "align": _of_alignment,
    "compare": _of_comparison,
}
