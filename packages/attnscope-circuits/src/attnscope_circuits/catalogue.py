"""The verbs that this package adds to attnscope."""

from attnscope.catalogue import Verb

VERBS = {
    "circuits": Verb(
        "Explain", "Dataset", ("composition",), function="attnscope_circuits.verbs.circuits",
        report="attnscope_circuits.circuit_report", figures="attnscope_circuits.figures.circuits",
        load="attnscope.store.runs:load_part",
        after="attnscope scan (what these heads do on a text)",
    ),
    "attribute": Verb(
        "Explain", "DataTree", ("parts",), function="attnscope_circuits.verbs.attribute",
        report="attnscope_circuits.attribution_report", figures="attnscope_circuits.figures.attribution",
        load="attnscope.store.runs:load_tree", files="attnscope_circuits.export",
        after="attnscope patch (whether a head carries the answer)",
    ),
    "edges": Verb(
        "Test", "Dataset", ("score", "cpr"), function="attnscope_circuits.verbs.edges",
        report="attnscope_circuits.edge_report", figures="attnscope_circuits.figures.edges",
        load="attnscope.store.runs:load_part", files="attnscope_circuits.export", unit="pair",
        after="attnscope attribute (what each head writes)",
    ),
}  # fmt: skip
