"""The report of an explanation: a row for each head, with columns, findings and notes of every analysis."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from attnscope.capture.notes import numbering_note
from attnscope.catalogue import IN_PACKAGES
from attnscope.explanation.analyses import verdict
from attnscope.explanation.catalogue import analyses_of, known_analyses
from attnscope.explanation.study import GROUPS, WHERE
from attnscope.measure.stored import WEIGHTS_NOTE
from attnscope.report.reads import reads, signed
from attnscope.report.schema import Finding, Quantity, Report, Row, Table, heads_by
from attnscope.store.runs import skipped_note, skipped_of
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

#: Columns that name a head; the analyses add the others.
_NAMES = (
    Quantity("layer", unit="count", detail="data"),
    Quantity("head", unit="head", group=WHERE),
    Quantity("attention", group=WHERE),
)
CARE = {
    WEIGHTS_NOTE: "To test whether the output depends on a head, use attnscope intervene.",
    "Scores are not weights.": "A peak in the summed scores does not imply attention at that offset.",
    "Compare every peak with its chance level.": "The largest of many heads or columns is large by chance. Grey bands, "
    "dashed lines and shuffled tokens show how large.",
    "The mean of a position is not only position.": "The mean input at a position includes tokens that are always "
    "there, such as [CLS].",
}
INDEPENDENT = "The p-values treat heads as independent; heads that share weights are not."


@reads("explain")
def report(tree: xr.DataTree) -> Report:
    """The report of an explanation: findings, ranked heads, tables and notes."""
    rows = rank_explanations(tree)
    settings = signed(tree).get("settings") or {}
    windows, length = settings.get("windows"), settings.get("window")
    over = f", {count(windows, 'full window')} of {length} tokens" if windows and length else ""
    model = str(tree.attrs.get("model", "the model"))
    analyses = analyses_of(tree)
    notes = [str(tree.attrs.get("decoder", ""))]
    content = tree["position_content"].to_dataset() if "position_content" in tree.children else xr.Dataset()
    if "layer_name" in content:
        notes.append(numbering_note([str(name) for name in content.layer_name.values]))
    notes += [note for analysis in analyses for note in analysis.notes(tree, rows)]
    findings = [text for analysis in analyses for text in analysis.findings(tree, rows) if text]
    notes += [*skipped_note(skipped_of(tree)), *_of_other_packages(tree)]
    return Report(
        title=f"Why the heads of {model} attend where they do",
        read=f"{count(len(rows), 'head')}{over}",
        finding=Finding(
            findings,
            "offsets: p < 0.01 for all heads together if rows are independent",
            heads_by(rows, _preferred),
            headline=_headline(rows),
        ),
        tables=[
            Table("heads", "Table of heads", _columns(tree), rows),
            *(analysis.tables(tree, rows) for analysis in analyses if analysis.tables),
        ],
        result=tree,
        notes=[*filter(None, notes)],
        method="Shifts of queries against keys are measured as by Yamamoto and Matsuzaki (2023). Under the null, every "
        "query attends to one random key; a head favours an offset if its weight there is larger than in 99 of 100 "
        "such models, over all heads and offsets.",
        care=CARE | ({INDEPENDENT: ""} if any("by chance, p" in text for text in (*findings, *notes)) else {}),
        heads=verdict.best_heads(rows),
    )


def _of_other_packages(tree: xr.DataTree) -> list[str]:
    """A sentence for each package that has the figures of some results of a run, and is not installed."""
    names: dict[str, list[str]] = {}
    for name in tree.children:
        if name in IN_PACKAGES and name not in known_analyses():
            names.setdefault(IN_PACKAGES[name], []).append(name.replace("_", " "))
    return [f"To see {', '.join(nodes)}, install {package}." for package, nodes in names.items()]


def _preferred(row: Row) -> str:
    """The offset that a head favours, by the name of its label in `scan`."""
    offset = int(row["offset_of_weights"] or 0)
    named = {-1: "previous", 0: "self", 1: "next"}.get(offset, f"offset {offset:+d}")
    return named if row["prefers"] else ""


def _headline(rows: list[Row]) -> str:
    tested = [bool(row["prefers"]) for row in rows if row.get("prefers") is not None]
    return f"{sum(tested)} of {len(tested)} heads have more weight at one offset than by chance" if tested else ""


@reads("explain")
def rank_explanations(tree: xr.DataTree) -> list[Row]:
    """A row for each head, with the columns that the analyses name: first heads with matching predictions, then other
    positional heads, then the rest; each group by largest mean weight. Empty without a verdict.

    >>> grid = ("layer", "head")
    >>> variables = {name: (grid, [[False, True]]) for name in ("prefers", "positional", "comparable", "agree")}
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
    """The columns of each analysis, and its node; an empty one if the analysis was skipped."""
    children = tree.children
    analyses = known_analyses().values()
    nodes = [children[one.name].to_dataset() if one.name in children else xr.Dataset() for one in analyses]
    columns = [one.columns(node) for one, node in zip(analyses, nodes, strict=True)]
    named_by: dict[str, str] = {}
    for analysis, named in zip(analyses, columns, strict=True):
        for name in (one.name for one in named.values()):
            if named_by.setdefault(name, analysis.name) != analysis.name:
                raise AttnscopeError(
                    f"found a column {name!r} of two analyses, {named_by[name]} and {analysis.name}: rename one"
                )
    return [*zip(nodes, columns, strict=True)]


def _columns(tree: xr.DataTree) -> list[Quantity]:
    named = [one for _, columns in _columns_by_node(tree) for one in columns.values()]
    return [*_NAMES, *sorted(named, key=lambda one: (*GROUPS, one.group).index(one.group))]
