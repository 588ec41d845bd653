"""The verb that this package adds to attnscope."""

from attnscope.catalogue import Next, Verb

VERBS = {
    "card": Verb(
        "Look", "Dataset", ("role", "half_score"), function="attnscope_cards.verbs.card",
        report="attnscope_cards.report", figures="attnscope_cards.figures", load="attnscope.store.runs:load_part",
        files="attnscope_cards.head_files",
        after=(Next("whether the loss stays with less cache", "card", "--check"),),
    ),
}  # fmt: skip
