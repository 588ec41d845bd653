"""Readers of files with relations, by their endings: a file each."""

from collections.abc import Callable, Mapping
from typing import Any

from attnscope_relations.data import LinkedText, Reader, json_lines
from attnscope_relations.readers.blimp import of_blimp
from attnscope_relations.readers.dependencies import dependencies
from attnscope_relations.readers.proteins import contact_lists, of_contacts, structures
from attnscope_relations.readers.python_source import python_source
from attnscope_relations.readers.reactions import of_reaction, reactions

READERS: dict[str, Reader] = {
    ".jsonl": json_lines,
    ".conllu": dependencies,
    ".py": python_source,
    **dict.fromkeys((".contacts", ".rr"), contact_lists),
    **dict.fromkeys((".pdb", ".ent", ".cif", ".mmcif"), structures),
    **dict.fromkeys((".rsmi", ".smiles"), reactions),
}
#: Readers of objects of other forms than a text with pairs, by a field that they have.
OBJECTS: dict[str, Callable[[Mapping[str, Any], str], LinkedText]] = {
    "sequence": of_contacts,
    "reaction": of_reaction,
    "sentence_good": of_blimp,
}
