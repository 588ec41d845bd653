"""The verb that this package adds to attnscope."""

from attnscope.catalogue import Verb

VERBS = {
    "relations": Verb(
        "Look", "Dataset", ("relation", "score"), function="attnscope_relations.verbs.relations",
        report="attnscope_relations.report", figures="attnscope_relations.figures.relations",
        page="attnscope_relations.page.relations", load="attnscope.measure.stored:load_scan",
        files="attnscope_relations.exports",
        after="attnscope intervene --heads HEAD (whether it matters)",
    ),
}  # fmt: skip
