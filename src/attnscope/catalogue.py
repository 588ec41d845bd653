"""The table of verbs: every function that users import, with the modules of what it leaves behind.

Imports of `attnscope`, the list of commands, run folders, pages, notebooks and the reference derive from it.
"""

from typing import Literal, NamedTuple


class Verb(NamedTuple):
    """Modules of a verb, all below ``attnscope``. The function is in the file of its name in `verbs`."""

    group: str  # heading in the help and in the reference
    result: Literal["Dataset", "DataTree", ""] = ""  # class of xarray; empty: a class of its own
    contains: tuple[str, ...] = ()  # nodes, variables or dimensions that every result has
    report: str = ""  # module with its `report`
    figures: str = ""  # module with `figures`, `captions` and `grid`
    page: str = ""  # module with the `write` of a page that does not consist of figures and tables
    load: str = ""  # module and function that open its run folder
    stored: Literal["by window", "at once", "in steps"] = "by window"  # how its run folder grows
    unit: str = "window"  # what the progress of a run counts


VERBS = {
    "scan": Verb(
        "Look", "Dataset", ("window", "head"), report="results.scan_report", figures="results.figures.scan",
        page="results.page.scan", load="measure.stored:load_scan",
    ),
    "generate": Verb(
        "Look", "Dataset", ("span_weight",), report="comparison.generated", page="results.page.generation",
        load="measure.generation:load_generation", unit="prompt",
    ),
    "roles": Verb(
        "Look", "Dataset", ("role",), report="detection.report", figures="results.figures.roles",
        load="store.runs:load_part",
    ),
    "card": Verb(
        "Look", "Dataset", ("role", "half_score"), report="detection.card_report", figures="results.figures.roles",
        load="store.runs:load_part",
    ),
    "examples": Verb(
        "Look", "Dataset", ("example", "feature"), report="detection.example_report", load="store.runs:load_part",
    ),
    "find": Verb(
        "Look", "Dataset", ("above", "strongest"), report="detection.find_report", load="measure.stored:load_scan",
    ),
    "watch": Verb("Look"),
    "measure_weights": Verb("Look"),
    "weights": Verb("Look"),
    "received": Verb("Look"),
    "view": Verb("Look"),
    "set_language": Verb("Look"),
    "explain": Verb(
        "Explain", "DataTree", report="explanation.report", figures="results.figures.explain",
        load="explanation.explain:load_explanation",
    ),
    "circuits": Verb(
        "Explain", "Dataset", ("composition",), report="explanation.circuit_report",
        figures="results.figures.circuits", load="store.runs:load_part",
    ),
    "attribute": Verb(
        "Explain", "DataTree", ("parts",), report="intervention.attribution_report",
        figures="results.figures.attribution", load="store.runs:load_tree",
    ),
    "walk": Verb("Explain", page="results.page.walk"),
    "intervene": Verb(
        "Test", "DataTree", ("heads", "where"), report="intervention.verdicts", figures="results.figures.intervene",
        load="store.runs:load_tree",
    ),
    "patch": Verb(
        "Test", "DataTree", ("patched",), report="intervention.patch_findings", figures="results.figures.patch",
        load="store.runs:load_tree", unit="pair",
    ),
    "edit": Verb("Test"),
    "head_outputs": Verb("Test"),
    "edges": Verb(
        "Test", "Dataset", ("score", "cpr"), report="intervention.edge_report", figures="results.figures.edges",
        load="store.runs:load_part", unit="pair",
    ),
    "diff": Verb(
        "Compare", "Dataset", ("statistic",), report="comparison.diff", figures="results.figures.diff",
        load="store.runs:load_part",
    ),
    "contrasts": Verb("Compare", "Dataset", ("p",)),
    "expect": Verb("Compare"),
    "train": Verb("Translate", load="lineage.checkpoints:training_results", stored="in steps"),
    "translate": Verb("Translate"),
    "score": Verb("Translate"),
    "align": Verb(
        "Translate", "DataTree", ("pairs", "links"), report="lineage.align", figures="results.figures.alignment",
        load="store.runs:load_tree", unit="pair",
    ),
    "compare": Verb(
        "Translate", "DataTree", ("scores",), report="lineage.score", figures="results.figures.comparison",
        load="lineage.compare:load_comparison", stored="at once",
    ),
    "open_run": Verb("Runs"),
    "runs": Verb("Runs"),
}  # fmt: skip
