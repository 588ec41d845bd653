"""Data of attnscope: a small trained model and texts."""

from pathlib import Path

#: Folder of the bundled masked language model (configs/bundled/small-mlm.yaml).
MODEL = Path(__file__).parent / "small-mlm"
#: Folder of the bundled sample texts, in English and Japanese.
TEXT = Path(__file__).parent / "text"
#: File of pairs of a clean and a corrupted text for the bundled model: "part of" and "due to", and others.
PAIRS = Path(__file__).parent / "pairs.jsonl"
