"""What an explanation found, as data: a row for each head, whose columns the analyses name, and their sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xarray as xr

from attnscope.capture.notes import numbering_note
from attnscope.explanation.analyses import position_scheme, verdict
from attnscope.explanation.catalogue import analyses_of, known_analyses
from attnscope.explanation.study import GROUPS, WHERE
from attnscope.results.schema import Finding, Quantity, Report, Row, Table
from attnscope.support.arguments import reads, validated
from attnscope.support.numbers import count

#: Columns that name a head; the others are those of the analyses.
_NAMES = (
    Quantity("layer", unit="count", detail="data"),
    Quantity("head", unit="head", group=WHERE),
    Quantity("attention", group=WHERE),
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
    analyses = analyses_of(tree)
    notes = [str(tree.attrs.get("decoder", "")), _layer_numbers(tree)]
    notes += [note for analysis in analyses for note in analysis.notes(tree, rows)]
    care = CARE
    if verdict.gives_probability(rows) or position_scheme.gives_probability(rows):
        care = CARE | {"The probability takes heads as independent; those that share weights are not.": ""}
    return Report(
        command="explain",
        title=f"Why the heads of {model} attend where they do",
        model=model,
        read=f"{count(len(rows), 'head')}{over}",
        finding=Finding(
            [text for analysis in analyses for text in analysis.findings(tree, rows) if text],
            "offsets: one head or more by chance in 1 of 100 models; other sentences have their own probability",
            [(row["layer"], row["head"]) for row in rows if row["prefers"]],
        ),
        tables=[
            Table("heads", "Table of heads", _columns(tree), rows),
            *(analysis.tables(tree, rows) for analysis in analyses if analysis.tables),
        ],
        result=tree,
        notes=[*filter(None, notes), *(f"no {names}: {reason}" for names, reason in skipped(tree))],
        care=care,
        heads=verdict.best_heads(rows),
    )


@reads("explain")
@validated
def rank_explanations(tree: xr.DataTree) -> list[Row]:
    """A row for each head, with the columns that the analyses name, the clearest case first.

    Parameters
    ----------
    tree
        From `explain`.

    Returns
    -------
    list of dict
        First those whose estimates agree, then the other positional ones, then the rest; each of these by the largest
        mean weight. None where a value is not known. Empty where the tree has no verdict.

    Examples
    --------
    >>> grid = ("layer", "head")
    >>> variables = {name: (grid, [[False, True]]) for name in ("prefers", "positional", "asked", "agree")}
    >>> variables[verdict.WEIGHT.name] = (grid, [[0.9, 0.5]])
    >>> node = xr.Dataset(variables, coords={"layer": [0], "head": [0, 1]})
    >>> [row["head"] for row in rank_explanations(xr.DataTree.from_dict({"verdict": node}))]
    [1, 0]
    """
    if "verdict" not in tree.children:
        return []
    columns: dict[str, xr.DataArray | None] = {}
    for node, named in _columns_by_node(tree):
        columns |= {one.name: node.get(name) for name, one in named.items()}
    if "position_content" in tree.children:
        kinds = tree["position_content"].to_dataset().coords.get("layer_kind")
        if kinds is not None and len(set(kinds.values.tolist())) > 1:
            columns["attention"] = kinds
    rows = verdict.ranked_rows(tree["verdict"].to_dataset(), columns)
    for name in (one.name for one in _columns(tree) if one.unit == "words"):
        for row in rows:  # yes or no
            row[name] = bool(row[name]) if isinstance(row.get(name), int | float) else row.get(name)
    return rows


def _columns_by_node(tree: xr.DataTree) -> list[tuple[xr.Dataset, Mapping[str, Quantity]]]:
    """The columns that each analysis names, and its node; an empty one where the model does not admit it."""
    there = tree.children
    analyses = known_analyses().values()
    nodes = [there[one.name].to_dataset() if one.name in there else xr.Dataset() for one in analyses]
    return [(node, one.columns(node)) for one, node in zip(analyses, nodes, strict=True)]


def _columns(tree: xr.DataTree) -> list[Quantity]:
    named = [one for _, columns in _columns_by_node(tree) for one in columns.values()]
    return [*_NAMES, *sorted(named, key=lambda one: (*GROUPS, one.group).index(one.group))]


def _windows(tree: xr.DataTree) -> tuple[int | None, int | None]:
    """How many windows of how many tokens, where the signature tells."""
    try:
        settings = json.loads(tree.attrs["signature"])["settings"]
        return settings.get("windows"), settings.get("window")
    except (KeyError, TypeError, ValueError, AttributeError):
        return None, None


def skipped(tree: xr.DataTree) -> list[tuple[str, str]]:
    """Analyses that are not defined here, those of one reason together, and the reason."""
    try:
        reasons: Any = json.loads(tree.attrs.get("skipped", "{}"))
        together: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            together.setdefault(str(reason), []).append(str(name).replace("_", " "))
    except (TypeError, ValueError, AttributeError):
        return []
    return [(", ".join(names), reason) for reason, names in together.items()]


def _layer_numbers(tree: xr.DataTree) -> str:
    """Which of the model's layers the numbers are, where only some attend; else nothing."""
    if "position_content" not in tree.children:
        return ""
    content = tree["position_content"].to_dataset()
    return numbering_note([str(name) for name in content["layer_name"].values]) if "layer_name" in content else ""
