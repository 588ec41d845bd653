"""What the verdicts of heads come to, in sentences: one count for the terminal and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import xarray as xr

from attnscope.capture.notes import numbering_note
from attnscope.explanation.ranking import ERROR, READINGS, HeadExplanation, rank_explanations
from attnscope.support.arguments import reads, validated
from attnscope.support.numbers import count


@validated
def summary(rows: Sequence[HeadExplanation]) -> list[str]:
    """What the verdicts come to, each count with what chance would give, in sentences."""
    if not rows:
        return []
    preferring = [row for row in rows if row.prefers]
    positional = [row for row in preferring if row.positional]
    sentences = [_preferring(len(preferring), rows)]
    if any(row.position_share is not None for row in preferring):
        sentences.append(
            f"In {len(positional)} of these {len(preferring)} position gives more than half of the scores' profile."
        )
    if positional and _are_read(rows):
        sentences.append(_agreement(positional))
    return sentences


def _are_read(rows: Sequence[HeadExplanation]) -> bool:
    return any(getattr(row, name) is not None for row in rows for name in READINGS)


def _preferring(count: int, rows: Sequence[HeadExplanation]) -> str:
    heads = (
        f"{count} of {len(rows)} heads {'puts' if count == 1 else 'put'}" if count else f"No head of {len(rows)} puts"
    )
    levels = [f"{row.weight_level:.2g}" for row in rows if row.weight_level is not None]
    level = " to ".join(dict.fromkeys([min(levels, key=float), max(levels, key=float)])) if levels else "–"
    by_offset = ", by offset" if " to " in level else ""
    return (
        f"{heads} more weight on one offset than chance does "
        f"({level}{by_offset}; one head or more in 1 of {1 / ERROR:.0f} models)."
    )


def _agreement(positional: Sequence[HeadExplanation]) -> str:
    known = [row.agree for row in positional]
    agreeing = sum(agree is True for agree in known)
    said = f"In {agreeing} of these {len(positional)} both readings of the scores find the offset of the weights"
    unread = sum(agree is None for agree in known)
    if unread:
        said += f" (in {unread} a reading finds none)"
    chances = _chances(positional)
    if not chances:
        return f"{said}; there are no other heads to tell how often that is an accident."
    said += f"; with the scores of other heads {sum(chances):.2g} of {len(chances)} would"
    if shared := _shared(positional):
        return f"{said}. That has no probability: {shared}."
    probability = _or_more(agreeing, chances)
    said += f" ({agreeing} or more: probability {_rounded(probability)})"
    return f"{said}, so this may be accident." if probability > BY_ACCIDENT else f"{said}."


def _chances(positional: Sequence[HeadExplanation]) -> list[float]:
    """How often the readings of other heads would agree with each; none where that is not known of all."""
    chances = [row.chance for row in positional if row.chance is not None]
    return chances if len(chances) == len(positional) else []


def _shared(rows: Sequence[HeadExplanation]) -> str:
    """Why heads are not so many trials, where layers share weights; else empty."""
    first = {(row.layer if row.weights_of is None else row.weights_of, row.head) for row in rows}
    return f"layers share weights, and the {len(rows)} heads are {len(first)} seen again" * (len(first) < len(rows))


def _rounded(probability: float) -> str:
    return f"{probability:.1g}" if probability >= 0.0001 else "below 0.0001"  # noqa: PLR2004


def _or_more(count: int, chances: list[float]) -> float:
    """Probability of so many successes or more, in independent trials of these probabilities."""
    spread = np.ones(1)
    for chance in chances:
        spread = np.convolve(spread, [1 - chance, chance])
    return float(spread[count:].sum())


@reads("explain")
@validated
def predicted_offsets(tree: xr.DataTree, rows: Sequence[HeadExplanation] | None = None) -> str:
    """In how many heads the position scheme alone predicts the offset, and in how many by chance, in a sentence."""
    judged = _predicted_offsets(rank_explanations(tree) if rows is None else rows)
    if not judged:
        return ""
    agreeing, chances, likely = _of_scheme(judged)
    of = f"{agreeing} of these {len(judged)}"
    said = f"The {scheme_of(tree)} alone foretells the offset of {of} within 1 token ({sum(chances):.1f} by chance)."
    if shared := _shared(judged):
        return f"{said} How often so many come by chance is not known: {shared}."
    if likely < BY_ACCIDENT:
        return said
    return f"{said} So many come by chance in {likely:.0%} of cases, so this may be accident."


def _predicted_offsets(rows: Sequence[HeadExplanation]) -> list[HeadExplanation]:
    return [row for row in rows if row.kernel_agrees is not None]


def _of_scheme(judged: Sequence[HeadExplanation]) -> tuple[int, list[float], float]:
    """In how many the scheme foretells the offset, how often it would in each, and how often in so many or more."""
    chances = [row.kernel_chance for row in judged if row.kernel_chance is not None]
    agreeing = sum(row.kernel_agrees is True for row in judged)
    return agreeing, chances, _or_more(agreeing, chances)


@validated
def peaks_of_noise(rows: Sequence[HeadExplanation]) -> str:
    """How many heads that prefer no offset have a peak in their cross-spectrum, and how many chance would give."""
    idle = [row for row in rows if not row.prefers and row.coherence is not None]
    found = sum(row.offset_of_spectrum is not None for row in idle)
    if not found:
        return ""
    heads = "1 head that prefers" if len(idle) == 1 else f"{len(idle)} heads that prefer"
    said = (
        f"Of {heads} no offset, the cross-spectrum of {found} has a peak; noise alone gives one to "
        f"{ERROR * len(idle):.2g} of {len(idle)}"
    )
    if _shared(idle):
        return f"{said}."
    probability = _or_more(found, [ERROR] * len(idle))
    said += f" ({found} or more: probability {_rounded(probability)})"
    return f"{said}, so this may be accident." if probability > BY_ACCIDENT else f"{said}."


@validated
def independence_note(rows: Sequence[HeadExplanation]) -> str:
    """What a probability in `summary` or `predicted_offsets` takes for granted; empty where they give none."""
    positional = [row for row in rows if row.prefers and row.positional]
    of_readings = _are_read(rows) and bool(_chances(positional)) and not _shared(positional)
    judged = _predicted_offsets(rows)
    if (
        of_readings
        or "probability" in peaks_of_noise(rows)
        or (judged and not _shared(judged) and _of_scheme(judged)[2] >= BY_ACCIDENT)
    ):
        return "The probability takes heads as independent; those that share weights are not."
    return ""


@reads("explain")
@validated
def layer_numbers(tree: xr.DataTree) -> str:
    """Say which of the model's layers the numbers are, where only some attend; else nothing."""
    if "position_content" not in tree.children:
        return ""
    content = tree["position_content"].to_dataset()
    return numbering_note([str(name) for name in content["layer_name"].values]) if "layer_name" in content else ""


@reads("explain")
@validated
def findings(tree: xr.DataTree, rows: Sequence[HeadExplanation] | None = None) -> list[str]:
    """What was found, in sentences, without how it was looked for."""
    rows = rank_explanations(tree) if rows is None else rows
    said = (*summary(rows), peaks_of_noise(rows), predicted_offsets(tree, rows), cause(tree, rows))
    return [sentence for sentence in said if sentence]


@reads("explain")
@validated
def headline(tree: xr.DataTree) -> list[str]:
    """What an explanation comes to, in sentences: those of the terminal, of the page and of a run's description."""
    return [*findings(tree), *filter(None, [mask_note(tree)])]


@reads("explain")
@validated
def skipped_by_reason(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Name the analyses that are not defined for a model, those of one reason together, and the reason."""
    reasons: Any = json.loads(tree.attrs.get("skipped", "{}"))
    if not isinstance(reasons, dict):
        raise ValueError("the attribute 'skipped' is no JSON object")  # noqa: TRY004 as of other text
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(str(reason), []).append(str(name).replace("_", " "))
    return [(", ".join(together), reason) for reason, together in names.items()]


@reads("explain")
@validated
def mask_note(tree: xr.DataTree) -> str:
    """Where peaks are looked for, if a mask keeps heads from some offsets; empty where it does not."""
    if "verdict" not in tree.children:
        return ""
    verdict = tree["verdict"].to_dataset()
    if "lowest_offset" not in verdict.coords:
        return ""
    by_reach: dict[str, list[str]] = {}
    widest = 0
    for layer in verdict["layer"].values:
        low, high = (int(verdict[name].sel(layer=layer)) for name in ("lowest_offset", "highest_offset"))
        by_reach.setdefault(f"{low} to {high}", []).append(str(layer))
        widest += (low, high) == (1 - verdict.attrs["positions"], verdict.attrs["positions"] - 1)
    if widest == verdict.sizes["layer"]:
        return ""
    first, *others = by_reach
    aside = "; ".join(f"layers {', '.join(by_reach[reason])}: {reason}" for reason in others)
    said = f"The mask lets heads look at offsets {first}{f' ({aside})' if aside else ''}."
    read = any(name in verdict and bool(np.isfinite(verdict[name]).any()) for name in READINGS)
    said += " Peaks are looked for there alone" + "; scores are read before the mask" * read
    return f"{said}.".replace("-", "−")


@validated
def said_of(words: str | Callable[[xr.DataTree], str], tree: xr.DataTree) -> str:
    """What a `Section` or a `Picture` says of an explanation: the words themselves, or what is made of it."""
    return words if isinstance(words, str) else words(tree)


@validated
def defined_columns(rows: Sequence[HeadExplanation]) -> set[str]:
    """Name the fields that some head has a value for."""
    names = (field.name for field in fields(HeadExplanation))
    known = {name for name in names if any(getattr(row, name) is not None for row in rows)}
    return known if "agree" in known else known - {"chance"}


def scheme_of(tree: xr.DataTree) -> str:
    """How the position scheme within the scores is called: rotation, bias, or both."""
    kernel = tree["scheme_kernel"].attrs if "scheme_kernel" in tree.children else {}
    return str(kernel.get("scheme", "position scheme"))


@validated
def question(tree: xr.DataTree, rows: Sequence[HeadExplanation]) -> str:
    """What the table of heads asks: of readings of the scores, and of a scheme, where there are any."""
    known = defined_columns(rows)
    clauses = ["where each head looks"]
    if "position_share" in known:
        clauses.append("how much of that its positions explain")
    if "agree" in known:
        clauses.append("whether two readings of its scores and one of its weights find the same offset")
    elif known & set(READINGS):
        clauses.append("which offset two readings of its scores find")
    if "kernel_agrees" in known:
        clauses.append(f"whether the {scheme_of(tree)} alone foretells it")
    *before, last = clauses
    said = f"{', '.join(before)}, and {last}." if before else f"{last}."
    said = said[0].upper() + said[1:]
    if known & set(READINGS):
        said += (
            " The two readings are of one trace, the scores summed along offsets: its peak (cross-correlation) and the "
            "phases of its transform (cross-spectrum). They are not a second source; the weights are."
        )
    return said


BY_ACCIDENT = 0.05  # probability from which as many agreements are called no more than accident
_UNMOVED = 0.01  # change of a profile, root mean square, below which there is nothing to foretell
_HALF = 0.5  # share of the change, below which most of it was not foretold
_NEAR = 0.5  # cycles: as near is the same frequency in a table of another length


@reads("explain")
@validated
def cause(tree: xr.DataTree, rows: Sequence[HeadExplanation] | None = None) -> str:
    """Whether heads change as the cross-spectrum says when its waves leave the position table, in a sentence."""
    rows = rank_explanations(tree) if rows is None else rows
    if "wave_removal" not in tree.children or (rows and not any(row.prefers for row in rows)):
        return ""
    removed = tree["wave_removal"].to_dataset()
    fit, low, high, others, chance, moved = (
        float(removed[name]) for name in ("fit", "fit_low", "fit_high", "fit_of_others", "fit_chance", "moved")
    )
    first, last = removed.attrs["frequencies"]
    said = f"Without the waves of {first} to {last} cycles per {removed.attrs['length']} tokens in the position table, "
    if moved < _UNMOVED:
        if not _has_peak(tree, first, last, removed.attrs["length"]):
            return ""
        return f"{said}profiles hardly change ({moved:.1g}, root mean square): these waves are not seen to be a cause."
    exchanged = "" if np.isnan(others) else f"; with the heads exchanged {others:.2f}"
    interval = "" if np.isnan(low) else f"{low:.2f} to {high:.2f} "
    numbers = f"R² = {fit:.2f} ({interval}over {count(removed.attrs['texts'], 'text')}{exchanged})"
    numbers = numbers.replace("-", "−")
    if low <= 0 or chance > BY_ACCIDENT:
        said += f"heads change otherwise than the cross-spectrum foretells: {numbers}."
    elif fit < _HALF:
        said += f"heads change only in part as the cross-spectrum foretells: {numbers}."
    else:
        said += f"heads change as the cross-spectrum foretells to {numbers}."
    return said


def _has_peak(tree: xr.DataTree, first: int, last: int, length: int) -> bool:
    """Whether the position table has a peak among these waves, cycles in so many tokens; true where it was not read."""
    if "position_spectrum" not in tree.children:
        return True
    spectrum = tree["position_spectrum"].to_dataset().sel(kind="positions")
    cycles = spectrum["frequency"].values * length / spectrum.attrs["positions"]
    near = (cycles >= first - _NEAR) & (cycles <= last + _NEAR)
    return bool(spectrum["is_peak"].values[near].any())
