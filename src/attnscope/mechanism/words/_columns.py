"""What a table of heads holds, and how it is read: one source of words for the terminal and the page.

Nothing is said of a column that is not there: a RoPE model has no readings of its scores that could agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import xarray as xr

from attnscope._arguments import typed
from attnscope.mechanism._ranking import HeadExplanation
from attnscope.mechanism._verdict import READINGS, SAME

#: What the columns of a table of heads are called, on the terminal and on the page.
HEADINGS = {
    "layer": "layer",
    "attention": "attention",
    "head": "head",
    "peak_weight": "weight",
    "offset_of_weights": "offset: weights",
    "offset_of_spectrum": "offset: spectrum",
    "offset_of_correlation": "offset: correlation",
    "agree": "agree",
    "chance": "by chance",
    "offset_of_kernel": "offset: scheme",
    "kernel_agrees": "scheme foretells",
    "kernel_chance": "foretold by chance",
    "position_share": "share of position",
    "kernel_share": "share of scheme",
    "prefers": "more than chance",
    "coherence": "coherence",
}

_RANDOM = {
    "rotation": "if the rotation had random phases",
    "bias": "if the bias had its values in random order",
    "rotation and bias": "if the rotation had random phases, and the bias its values in random order",
}


@typed
def known_columns(rows: Sequence[HeadExplanation]) -> set[str]:
    """Name the fields that some head has a value for.

    How often another head's readings would agree is none where of no head it is asked whether its own do.

    Examples
    --------
    >>> head = HeadExplanation(0, None, 0, prefers=True, positional=True, agree=None, peak_weight=0.4, chance=0.5)
    >>> sorted(known_columns([head]))
    ['head', 'layer', 'peak_weight', 'positional', 'prefers']
    """
    names = (field.name for field in fields(HeadExplanation))
    known = {name for name in names if any(getattr(row, name) is not None for row in rows)}
    return known if "agree" in known else known - {"chance"}


def scheme_of(tree: xr.DataTree) -> str:
    """How the position scheme within the scores is called: rotation, bias, or both."""
    kernel = tree["scheme_kernel"].attrs if "scheme_kernel" in tree.children else {}
    return str(kernel.get("scheme", "position scheme"))


@typed
def column_notes(
    tree: xr.DataTree, rows: Sequence[HeadExplanation], names: Mapping[str, str], nothing: str
) -> list[str]:
    """How the columns of a table of heads are read, in sentences; of a column that is not there, none.

    Parameters
    ----------
    tree
        From `explain`.
    rows
        The heads of the table.
    names
        What the table calls its columns, of `HEADINGS`, as it writes them.
    nothing
        What stands where there is no offset.

    Examples
    --------
    >>> named = {"offset_of_weights": "weights", "offset_of_kernel": "scheme", "kernel_agrees": "scheme foretells"}
    >>> head = HeadExplanation(0, None, 0, prefers=True, positional=True, agree=None, offset_of_weights=-1.0)
    >>> for note in column_notes(xr.DataTree(), [head], named, "–"):
    ...     print(note)
    weights: the offset of the largest mean weight; – where that is no more than chance.
    In --json and --csv: weights is offset_of_weights.
    """
    known = known_columns(rows)
    there = {key: name for key, name in names.items() if key in known}
    notes: list[str] = []
    if "offset_of_weights" in there:
        notes.append(
            f"{there['offset_of_weights']}: the offset of the largest mean weight; {nothing} where that is no more "
            "than chance."
        )
    return (
        notes
        + _of_readings(rows, there, nothing)
        + _of_scheme(tree, there, nothing)
        + _of_shares(tree, there, nothing)
        + _in_data(there)
    )


def _in_data(there: Mapping[str, str]) -> list[str]:
    """By which names the columns go where programs read them."""
    others = [f"{name} is {key}" for key, name in there.items() if HEADINGS[key] != key]
    return [f"In --json and --csv: {', '.join(others)}."] if others else []


def _of_readings(rows: Sequence[HeadExplanation], there: Mapping[str, str], nothing: str) -> list[str]:
    notes: list[str] = []
    readings = [there[key] for key in READINGS if key in there]
    if readings:
        noise = " (the spectrum of noise has one in 1 of 100 heads)" if READINGS[0] in there else ""
        many = "two readings" if len(readings) > 1 else "a reading"
        notes.append(
            f"{', '.join(readings)}: {many} of one trace, the scores of queries and keys (without any bias) "
            f"summed along offsets; {nothing} where it has no peak that stands out of noise{noise}."
        )
        found = [getattr(row, key) for row in rows for key in READINGS]
        if any(value is not None and abs(value) <= SAME for value in found):
            notes.append(
                "An offset of about 0 there may be tokens that meet themselves: queries and keys are means over texts, "
                "which keep some of their words; the noise that the readings are held against has no words."
            )
    if "agree" in there:
        notes.append(
            f"{there['agree']}: both lie within half a token of the weights' offset; asked of heads that position "
            "explains."
        )
    if "chance" in there:
        notes.append(f"{there['chance']}: how often the readings of another head would.")
    return notes


def _of_scheme(tree: xr.DataTree, there: Mapping[str, str], nothing: str) -> list[str]:
    scheme = scheme_of(tree)
    said: list[str] = []
    if "offset_of_kernel" in there:
        said.append(
            f"{there['offset_of_kernel']}: the offset at which the {scheme} alone is largest; {nothing} where it has "
            "no peak, and for a head that prefers no offset where it is flat or a small part of the scores"
        )
    if "kernel_agrees" in there:
        said.append(
            f"{there['kernel_agrees']}: whether it is that of the weights, within 1 token, if these prefer one"
        )
    if "kernel_chance" in there:
        by_chance = _RANDOM.get(scheme, "with its values in random order")
        said.append(f"{there['kernel_chance']}: how often it would be {by_chance}")
    return [f"{'; '.join(said)}."] if said else []


def _of_shares(tree: xr.DataTree, there: Mapping[str, str], nothing: str) -> list[str]:
    shares = [there[key] for key in ("position_share", "kernel_share") if key in there]
    if not shares:
        return []
    content = tree["position_content"].attrs if "position_content" in tree.children else {}
    first = f" of the first {content['texts']} windows" if "texts" in content else ""
    said = (
        f"{', '.join(shares)}: of the variance of the mean scores{first} over offsets; {nothing} for a head that "
        "prefers none, where there is nothing to explain. Estimated between different texts, so that noise does not "
        "add to it, a share may leave 0 to 1 a little; far outside, other parts of the scores work against it."
    )
    return [said]


@typed
def order_note(rows: Sequence[HeadExplanation]) -> str:
    """In which order `rank_explanations` has the heads, in a sentence.

    Examples
    --------
    >>> head = HeadExplanation(0, None, 0, prefers=True, positional=True, agree=None, position_share=0.9)
    >>> order_note([head])
    'Heads that position explains come first, then the others; of each those with the largest mean weight.'
    """
    known = known_columns(rows)
    positional = (
        "heads that position explains" if "position_share" in known else "heads that prefer an offset"
    )
    first = (
        f"agreeing heads come first, then other {positional}"
        if "agree" in known
        else f"{positional} come first"
    )
    return f"{first.capitalize()}, then the others; of each those with the largest mean weight."


@typed
def question(tree: xr.DataTree, rows: Sequence[HeadExplanation]) -> str:
    """What the table of heads asks: of readings of the scores, and of a scheme, where there are any.

    Parameters
    ----------
    tree
        From `attnscope.explain`.
    rows
        Heads of the table, from `rank_explanations`.

    Examples
    --------
    >>> head = HeadExplanation(0, None, 0, prefers=True, positional=True, agree=None, kernel_agrees=True)
    >>> kernel = xr.DataTree.from_dict({"scheme_kernel": xr.Dataset(attrs={"scheme": "rotation"})})
    >>> question(kernel, [head])
    'Where each head looks, and whether the rotation alone foretells it.'
    """
    known = known_columns(rows)
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
