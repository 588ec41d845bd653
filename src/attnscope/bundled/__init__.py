"""Data of attnscope: small trained models and texts."""

from pathlib import Path

_HERE = Path(__file__).parent
#: Folder of the bundled masked language model (configs/bundled/small-mlm.yaml).
MODEL = _HERE / "small-mlm"
#: Folders of all bundled models, by the name that verbs take. ``bundled:pronoun`` names the noun that each "it" stands
#: for (configs/bundled/pronoun.yaml); ``bundled:tasks`` is causal and does the tasks of `attnscope.pairs`
#: (scripts/task_model.py).
MODELS = {"bundled": MODEL, "bundled:pronoun": _HERE / "pronoun", "bundled:tasks": _HERE / "tasks"}
#: The one that says at each "it", as it stands, what it stands for.
ANSWERS_IT = "bundled:pronoun"
#: Folder of the bundled sample texts, in English and Japanese.
TEXT = _HERE / "text"
#: Held-out sentences of ``bundled:pronoun``, one a line, and the same with the noun in place of "it".
SENTENCES, NOUNS = _HERE / "pronoun" / "sentences.txt", _HERE / "pronoun" / "nouns.txt"
#: Texts that a bundled model reads by default, one a line; other models read `TEXT`.
OWN_TEXTS = {"bundled:pronoun": SENTENCES, "bundled:tasks": _HERE / "tasks" / "sentences.txt"}
#: File of pairs of a clean and a corrupted text for the bundled model: "part of" and "due to", and others.
PAIRS = _HERE / "pairs.jsonl"


def example_for(model: object) -> str:
    """A sentence to begin with: one of its own for a bundled model that has its own texts."""
    if isinstance(model, str) and model in OWN_TEXTS:
        return OWN_TEXTS[model].read_text(encoding="utf-8").partition("\n")[0]
    return "The keeper lit the lamp before the tide came in, and the lamp burned until the morning."
