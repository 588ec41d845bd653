"""The verbs that this package adds to attnscope."""

from attnscope.catalogue import Next, Verb

VERBS = {
    "circuits": Verb(
        "Explain", "Dataset", ("composition",), function="attnscope_circuits.verbs.circuits",
        report="attnscope_circuits.circuit_report", figures="attnscope_circuits.figures.circuits",
        load="attnscope.store.runs:load_part",
        after=(Next("what these heads do on a text", "scan"),),
    ),
    "attribute": Verb(
        "Explain", "DataTree", ("parts",), function="attnscope_circuits.verbs.attribute",
        report="attnscope_circuits.attribution_report", figures="attnscope_circuits.figures.attribution",
        load="attnscope.store.runs:load_tree", files="attnscope_circuits.export",
        after=(
            Next("whether a head carries the answer", "patch", needs="pairs"),
            Next("whether a head matters", "intervene"),
        ),
    ),
    "edges": Verb(
        "Test", "Dataset", ("score", "cpr"), function="attnscope_circuits.verbs.edges",
        report="attnscope_circuits.edge_report", figures="attnscope_circuits.figures.edges",
        load="attnscope.store.runs:load_part", files="attnscope_circuits.export", unit="pair",
        after=(Next("what each head writes", "attribute"),),
    ),
}  # fmt: skip
