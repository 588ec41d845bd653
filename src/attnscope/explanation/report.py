"""What an explanation found, as data: a row for each head, and what its numbers mean."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from attnscope.explanation.analyses.interventions import CHANGES
from attnscope.explanation.ranking import READINGS, SAME, HeadExplanation, rank_explanations
from attnscope.explanation.sentences import (
    defined_columns,
    findings,
    independence_note,
    layer_numbers,
    mask_note,
    scheme_of,
    skipped_by_reason,
)
from attnscope.results.schema import Finding, Quantity, Report, Row, Table
from attnscope.support.arguments import reads
from attnscope.support.numbers import count, with_nulls

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

_WHERE, _ESTIMATES, _SCHEME, _SHARES = ("Where it attends", "Estimates from its scores", "Position scheme", "Shares")
_READ = (
    "offset at which the scores of queries and keys (without any bias), summed along offsets, have a peak that stands "
    "out of noise"
)
_SHARE = (
    "share of the variance of the mean scores over offsets, for heads that prefer an offset; estimated between "
    "different texts, so that it may leave 0 to 1 a little"
)
#: What is reported of a head, in the order of its columns.
HEADS = (
    Quantity("layer", unit="count", detail="data"),
    Quantity("head", unit="head", group=_WHERE),
    Quantity("attention", group=_WHERE),
    Quantity("peak_weight", "weight", "share", "largest mean weight at one offset", group=_WHERE),
    Quantity(
        "offset_of_weights", "offset", "tokens", "offset of that weight, if it is more than chance gives", group=_WHERE
    ),
    Quantity("prefers", "more than chance", meaning="whether it is more", detail="page", group=_WHERE),
    Quantity("weight_level", unit="share", detail="data", meaning="mean weight that chance gives there"),
    Quantity("positional", detail="data", meaning="whether position gives more than half of its scores' profile"),
    Quantity("offset_of_spectrum", "spectrum", "shift", _READ, group=_ESTIMATES),
    Quantity("offset_of_correlation", "correlation", "shift", _READ, group=_ESTIMATES),
    Quantity(
        "agree",
        meaning="both estimates are within half a token of the offset of the weights, of heads that position explains",
        group=_ESTIMATES,
    ),
    Quantity("chance", "by chance", "share", "how often the estimates of another head would be", group=_ESTIMATES),
    Quantity("coherence", unit="share", detail="page", meaning="coherence of queries and keys", group=_ESTIMATES),
    Quantity("weights_of", unit="count", detail="data", meaning="earlier layer with the same matrices"),
    Quantity("offset_of_kernel", "scheme", "tokens", "offset at which the {scheme} alone is largest", group=_SCHEME),
    Quantity("kernel_agrees", "predicts", meaning="whether that is within 1 token of the weights'", group=_SCHEME),
    Quantity("kernel_chance", "by chance", "share", "how often it would be {random}", group=_SCHEME),
    Quantity("position_share", "position", "share", _SHARE, group=_SHARES),
    Quantity("kernel_share", "of scheme", "share", _SHARE, group=_SHARES),
)
_RANDOM = {
    "rotation": "if the rotation had random phases",
    "bias": "if the bias had its values in random order",
    "rotation and bias": "if the rotation had random phases, and the bias its values in random order",
}
_CHANGES = (
    Quantity("layer", unit="count", detail="data"),
    Quantity("head", unit="head"),
    Quantity("change"),
    Quantity("offset", unit="tokens", meaning="the offset with the largest weight in the head's mean profile"),
    Quantity("weight_before", "before", "weight", "mean weight there"),
    Quantity("weight_after", "after", "weight", "mean weight there, after words or positions were changed"),
    Quantity("weight_change", "difference", "change", "of the two", low="weight_change_low", high="weight_change_high"),
)
_FORMS = (
    Quantity("layer", unit="count"),
    Quantity("form"),
    Quantity("error", unit="error", meaning="largest difference of the scores that the matrices give, relative"),
    Quantity("reason", "remark", "text"),
)
CARE = {
    "Weights are not explanations.": "They are shares of a sum: whether the model's output depends on a token takes an "
    "intervention on the output.",
    "Scores are not weights.": "That the summed scores peak at an offset does not by itself put the weights there.",
    "Compare everything with its noise level.": "The largest of many heads or columns is large in noise too. Grey "
    "bands, dashed lines and shuffled tokens show what chance alone gives.",
    "The mean of a position is not only position.": "P is the mean input at a position over the texts; a mark such as "
    "[CLS] that is always there is part of it.",
}


@reads("explain")
def report(tree: xr.DataTree) -> Report:
    """What an explanation found; heads are ranked here, once."""
    rows = rank_explanations(tree)
    windows, length = _windows(tree)
    over = f" over {count(windows, 'full window')} of {length} tokens" if windows and length else ""
    model = str(tree.attrs.get("model", "the model"))
    notes = [
        str(tree.attrs.get("decoder", "")),
        layer_numbers(tree),
        mask_note(tree),
        _about_zero(rows),
        _works_against(tree, rows),
    ]
    independence = independence_note(rows)
    return Report(
        command="explain",
        title=f"Why the heads of {model} attend where they do",
        model=model,
        read=f"{count(len(rows), 'head')}{over}",
        finding=Finding(
            findings(tree, rows),
            "offsets: one head or more by chance in 1 of 100 models; other sentences have their own probability",
            [(row.layer, row.head) for row in rows if row.prefers],
        ),
        tables=_tables(tree, rows),
        result=tree,
        notes=[*filter(None, notes), *(f"no {names}: {reason}" for names, reason in skipped(tree))],
        care=({independence: ""} if independence else {}) | CARE,
    )


def _windows(tree: xr.DataTree) -> tuple[int | None, int | None]:
    """How many windows of how many tokens, where the signature tells."""
    try:
        settings = json.loads(tree.attrs["signature"])["settings"]
        return settings.get("windows"), settings.get("window")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, None


def skipped(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Analyses that are not defined here, and why, those of one reason together."""
    try:
        return skipped_by_reason(tree)
    except (TypeError, ValueError):
        return []


def _tables(tree: xr.DataTree, rows: Sequence[HeadExplanation]) -> list[Table]:
    scheme, known = scheme_of(tree), defined_columns(rows)
    words = {"scheme": scheme, "random": _RANDOM.get(scheme, "with its values in random order")}
    heads = [replace(one, meaning=one.meaning.format(**words)) for one in HEADS]
    if "agree" not in known:
        heads = [one for one in heads if one.name != "chance"]
    tables = [Table("heads", "Table of heads", heads, [asdict(row) for row in rows])]
    if "interventions" in tree.children:
        tables.append(
            Table(
                "interventions",
                "The weight at a head's offset, before and after each change of its input",
                _CHANGES,
                changes_of_heads(tree, rows),
                reading="; ".join(
                    f"{name}: {CHANGES[name]}"
                    for name in tree["interventions"].change.values.tolist()
                    if name in CHANGES
                ),
            )
        )
    if "forms" in tree.children:
        forms = tree["forms"].to_dataset()
        of_layer = {name: forms[name].values.tolist() for name in ("layer", "form", "error", "reason")}
        lines: list[Row] = [dict(zip(of_layer, line, strict=True)) for line in zip(*of_layer.values(), strict=True)]
        title = "How each layer makes its scores, and how well the matrices reproduce them"
        tables.append(Table("forms", title, _FORMS, with_nulls(lines), terminal=0))
    return tables


def changes_of_heads(tree: xr.DataTree, rows: Sequence[HeadExplanation]) -> list[Row]:
    """The weight at the offset of each head that prefers one, by change of words or positions."""
    changed = tree["interventions"].to_dataset()
    lines: list[Row] = []
    for row in rows:
        at = changed.sel(layer=row.layer, head=row.head)
        if not math.isfinite(at.target):
            continue
        for name in changed.change.values.tolist():
            after = at.sel(change=name)
            values = {"offset": at.target, "weight_before": at.mass_before, "weight_after": after.mass_after}
            values |= {f"weight_change{end}": after[f"mass_change{end}"] for end in ("", "_low", "_high")}
            line = {key: value.item() for key, value in values.items()}
            lines.append(with_nulls({"layer": row.layer, "head": row.head, "change": str(name)} | line))
    return lines


def _works_against(tree: xr.DataTree, rows: Sequence[HeadExplanation]) -> str:
    """That position works against some head, where its share is below 0 with all of its interval."""
    if "position_content" not in tree.children or "position_share_high" not in tree["position_content"]:
        return ""
    high = tree["position_content"].to_dataset()["position_share_high"]
    if not any(float(high.sel(layer=row.layer, head=row.head)) < 0 for row in rows if row.position_share is not None):
        return ""
    return "A share of position below 0, with all of its interval: position works against that head's scores."


def _about_zero(rows: Sequence[HeadExplanation]) -> str:
    """What an estimate from the scores of about 0 may be."""
    found = [getattr(row, key) for row in rows for key in READINGS]
    if not any(value is not None and abs(value) <= SAME for value in found):
        return ""
    return (
        "An offset of about 0 from the scores may be tokens that meet themselves: queries and keys are means over "
        "texts, which contain some of their words; noise has no words."
    )
