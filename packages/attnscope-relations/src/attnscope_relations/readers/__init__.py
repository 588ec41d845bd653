"""Readers of files with relations, by their endings: a file each."""

from attnscope_relations.data import Reader, json_lines
from attnscope_relations.readers.dependencies import dependencies

READERS: dict[str, Reader] = {".jsonl": json_lines, ".conllu": dependencies}
