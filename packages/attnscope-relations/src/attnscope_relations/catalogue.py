"""The verb that this package adds to attnscope."""

from attnscope.catalogue import Next, Verb

VERBS = {
    "relations": Verb(
        "Look", "Dataset", ("relation", "score"), function="attnscope_relations.verbs.relations",
        report="attnscope_relations.report", figures="attnscope_relations.figures.relations",
        page="attnscope_relations.page.relations", load="attnscope.measure.stored:load_scan",
        files="attnscope_relations.exports",
        after=(Next("whether this head matters", "intervene", "--heads {head}", needs="query"),),
    ),
}  # fmt: skip
