"""The verbs that this package adds to attnscope."""

from attnscope.catalogue import Verb

VERBS = {
    "walk": Verb(
        "Explain", function="attnscope_lineage.verbs.walk", command="attnscope_lineage.commands.walk",
        page="attnscope_lineage.page.walk",
    ),
    "lesson": Verb(
        "Explain", function="attnscope_lineage.verbs.lesson", command="attnscope_lineage.commands.lesson",
    ),
    "train": Verb(
        "Translate", function="attnscope_lineage.verbs.train", command="attnscope_lineage.commands.train",
        report="attnscope_lineage.training", load="attnscope_lineage.checkpoints:training_results", stored="in steps",
    ),
    "translate": Verb(
        "Translate", function="attnscope_lineage.verbs.translate", command="attnscope_lineage.commands.translate",
    ),
    "score": Verb(
        "Translate", function="attnscope_lineage.verbs.score", command="attnscope_lineage.commands.score",
    ),
    "align": Verb(
        "Translate", "DataTree", ("pairs", "links"), function="attnscope_lineage.verbs.align",
        command="attnscope_lineage.commands.align", report="attnscope_lineage.alignment",
        figures="attnscope_lineage.figures.alignment", load="attnscope.store.runs:load_tree", unit="pair",
    ),
    "compare": Verb(
        "Translate", "DataTree", ("scores",), function="attnscope_lineage.verbs.compare",
        command="attnscope_lineage.commands.compare", report="attnscope_lineage.scores",
        figures="attnscope_lineage.figures.comparison", load="attnscope_lineage.comparison:load_comparison",
        stored="at once",
    ),
}  # fmt: skip
