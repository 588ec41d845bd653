"""The table of verbs: every function that users import, and the modules of its parts.

Imports of `attnscope`, commands and their help, run folders, pages, notebooks and the reference derive from it.
"""

from typing import Literal, NamedTuple


class Verb(NamedTuple):
    """Modules of a verb, all below ``attnscope``. The function, its command and its signature have the verb's name."""

    module: str  # of the function
    group: str  # heading in the help and in the reference
    command: str = ""  # module of its command, below `cli`; empty: a function of Python alone
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
        "measure.scan", "Look", "verbs", "Dataset", ("window", "head"), "results.scan_report", "results.figures.scan",
        page="results.page.scan", load="measure.stored:load_scan",
    ),
    "generate": Verb(
        "measure.generation", "Look", "verbs", "Dataset", ("span_weight",), "comparison.generated",
        page="results.page.generation", load="measure.generation:load_generation", unit="prompt",
    ),
    "roles": Verb(
        "detection.roles", "Look", "verbs", "Dataset", ("role",), "detection.report", "results.figures.roles",
        load="store.runs:load_part",
    ),
    "card": Verb(
        "detection.card", "Look", "detection", "Dataset", ("role", "half_score"), "detection.card_report",
        "results.figures.roles", load="store.runs:load_part",
    ),
    "examples": Verb(
        "detection.examples", "Look", "verbs", "Dataset", ("example", "feature"), "detection.example_report",
        load="store.runs:load_part",
    ),
    "find": Verb(
        "detection.find", "Look", "detection", "Dataset", ("above", "strongest"), "detection.find_report",
        load="measure.stored:load_scan",
    ),
    "watch": Verb("measure.watched", "Look"),
    "measure_weights": Verb("measure.watched", "Look"),
    "weights": Verb("measure.raw", "Look"),
    "received": Verb("measure.raw", "Look"),
    "view": Verb("results.view", "Look"),
    "set_language": Verb("report.language", "Look"),
    "explain": Verb(
        "explanation.explain", "Explain", "verbs", "DataTree", (), "explanation.report", "results.figures.explain",
        load="explanation.explain:load_explanation",
    ),
    "circuits": Verb(
        "explanation.circuits", "Explain", "circuits", "Dataset", ("composition",), "explanation.circuit_report",
        "results.figures.circuits", load="store.runs:load_part",
    ),
    "attribute": Verb(
        "intervention.attribution", "Explain", "circuits", "DataTree", ("parts",),
        "intervention.attribution_report", "results.figures.attribution", load="store.runs:load_tree",
    ),
    "walk": Verb("lineage.walk", "Explain", "walk", page="results.page.walk"),
    "intervene": Verb(
        "intervention.intervene", "Test", "verbs", "DataTree", ("heads", "where"), "intervention.verdicts",
        "results.figures.intervene", load="store.runs:load_tree",
    ),
    "patch": Verb(
        "intervention.patch", "Test", "circuits", "DataTree", ("patched",), "intervention.patch_findings",
        "results.figures.patch", load="store.runs:load_tree", unit="pair",
    ),
    "edit": Verb("intervention.edit", "Test"),
    "head_outputs": Verb("intervention.edit", "Test"),
    "edges": Verb(
        "intervention.edges", "Test", "circuits", "Dataset", ("score", "cpr"), "intervention.edge_report",
        "results.figures.edges", load="store.runs:load_part", unit="pair",
    ),
    "diff": Verb(
        "comparison.diff", "Compare", "verbs", "Dataset", ("statistic",), "comparison.diff", "results.figures.diff",
        load="store.runs:load_part",
    ),
    "contrasts": Verb("comparison.contrasts", "Compare", result="Dataset", contains=("p",)),
    "expect": Verb("testing.expect", "Compare"),
    "train": Verb(
        "lineage.train", "Translate", "train", load="lineage.checkpoints:training_results", stored="in steps",
    ),
    "translate": Verb("lineage.translate", "Translate", "translation"),
    "score": Verb("lineage.score", "Translate", "translation"),
    "align": Verb(
        "lineage.align", "Translate", "translation", "DataTree", ("pairs", "links"), "lineage.align",
        "results.figures.alignment", load="store.runs:load_tree", unit="pair",
    ),
    "compare": Verb(
        "lineage.compare", "Translate", "translation", "DataTree", ("scores",), "lineage.score",
        "results.figures.comparison", load="lineage.compare:load_comparison", stored="at once",
    ),
    "open_run": Verb("results.open", "Runs"),
    "runs": Verb("results.open", "Runs"),
}  # fmt: skip
