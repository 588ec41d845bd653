"""Residues in contact: lists of pairs (CASP's RR format), and coordinates (PDB, mmCIF)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnscope.read.files import decode_utf8, inner_suffix, read_blocks, shown, unpacked
from attnscope.read.shown import tokens_of
from attnscope.support.errors import AttnscopeError, explaining
from attnscope_relations.contacts import RELATION, SEPARATION, is_protein
from attnscope_relations.data import Link, LinkedText, needed

DISTANCE = 8.0  # angstrom, between C-beta atoms (C-alpha of glycine): closer residues are in contact
_FORM = '{"sequence": "MKTAYIAKQR", "contacts": [[1, 9]]}'
_KEYWORDS = {"PFRMAT", "TARGET", "AUTHOR", "METHOD", "REMARK", "MODEL", "RMODE", "ENDMDL", "END"}
_NUMBERS = 2  # of a contact
_COLUMNS = 72  # of a line in the PDB format: old files have its number behind them


def of_contacts(value: Mapping[str, Any], where: str) -> LinkedText:
    """A protein as JSON Lines write it: its sequence, and pairs of residues, numbered from 1."""
    sequence, pairs = value.get("sequence"), value.get("contacts")
    if not isinstance(sequence, str) or not isinstance(pairs, list):
        raise AttnscopeError(f"{where}: found no sequence with contacts; expected {_FORM}")
    contacts = [_contact(pair, len(sequence), where) for pair in cast("list[Any]", pairs)]
    return _protein(sequence, contacts, str(value.get("document", value.get("id", where))))


def contact_lists(file: Path) -> Iterator[LinkedText]:
    """Proteins as the RR format of CASP has them: the sequence, then a pair of residues a line, numbered from 1.

    Further columns (distances, a probability) are not read: every pair that is listed is a contact. A line ``>NAME``
    begins a further protein.
    """
    name = shown(file)
    protein = _Listed("")
    for number, line in enumerate(decode_utf8(b"".join(unpacked(file, read_blocks(file))), name).splitlines(), start=1):
        columns = line.split()
        if not columns or columns[0] in _KEYWORDS:
            continue
        if columns[0].startswith(">"):
            if protein.sequence:
                yield protein.read(name)
            protein = _Listed(line[1:].strip())
        elif columns[0].isdigit():
            protein.pairs.append((f"{name}, line {number}", columns))
        elif len(columns) == 1 and re.fullmatch(r"[A-Za-z]+", line.strip()):
            protein.sequence += line.strip().upper()
        else:
            raise AttnscopeError(
                f"{name}, line {number}: found {line.strip()!r:.60}; expected letters of a sequence, or two residues "
                "in contact, such as 3 12"
            )
    if not protein.sequence:
        raise AttnscopeError(f"{name} has no sequence; expected it in lines of its own before the pairs (3 12)")
    yield protein.read(name)


@dataclass
class _Listed:
    """A protein of a list of contacts, and its pairs with the lines that they are on."""

    name: str
    sequence: str = ""
    pairs: list[tuple[str, list[str]]] = field(default_factory=list[tuple[str, list[str]]])

    def read(self, file: str) -> LinkedText:
        if not self.sequence:
            raise AttnscopeError(f"{file}: {self.name or 'the first protein'} has pairs and no sequence")
        contacts = [
            _contact([int(number) if number.isdigit() else number for number in columns[:2]], len(self.sequence), where)
            for where, columns in self.pairs
        ]
        return _protein(self.sequence, contacts, self.name or "protein")


def _contact(pair: Any, length: int, where: str) -> tuple[int, int]:
    """Both residues of a contact, from 0."""
    numbers = pair if isinstance(pair, list) and all(isinstance(number, int) for number in pair) else []
    if len(numbers) != _NUMBERS or not all(1 <= number <= length for number in numbers):
        raise AttnscopeError(
            f"{where}: found the contact {pair!r:.60} in a sequence of {length} residues; expected two of their "
            f"numbers, from 1, such as [1, {length}]"
        )
    return numbers[0] - 1, numbers[1] - 1


def _protein(
    sequence: str, contacts: Iterable[tuple[int, int]], document: str, observed: Iterable[int] | None = None
) -> LinkedText:
    """A sequence whose words are its residues, those with coordinates, with links between residues in contact."""
    keys: dict[int, set[int]] = {}
    for first, second in contacts:
        if abs(first - second) >= SEPARATION:
            keys.setdefault(first, set()).add(second)
            keys.setdefault(second, set()).add(first)
    links = tuple(
        Link(RELATION, (residue, residue + 1), tuple((other, other + 1) for other in sorted(others)))
        for residue, others in sorted(keys.items())
    )
    residues = range(len(sequence)) if observed is None else observed
    return LinkedText(sequence, links, document, tuple((residue, residue + 1) for residue in residues))


def structures(file: Path) -> Iterator[LinkedText]:
    """Chains of a structure, of equal ones the first, with links between residues in contact.

    Two residues are in contact if their C-beta atoms (C-alpha of glycine) are closer than 8 angstrom in the first
    model, and 6 or more apart in the sequence. The sequence is that of the header, where there is one, else that of the
    residues with coordinates. Pairs without coordinates do not count.
    """
    gemmi = needed("gemmi", "reading coordinates", "proteins")

    name = shown(file)
    with explaining(f"{name} is no structure in the PDB format or mmCIF", "Correct it, or download it again"):
        content = decode_utf8(b"".join(unpacked(file, read_blocks(file))), name)
        if inner_suffix(file) in {".cif", ".mmcif"}:
            structure = gemmi.make_structure_from_block(gemmi.cif.read_string(content).sole_block())
        else:
            structure = gemmi.read_pdb_string(content, max_line_length=_COLUMNS)
    structure.setup_entities()
    structure.assign_label_seq_id()
    seen: set[str] = set()
    for chain in structure[0] if len(structure) else ():
        protein = _chain(structure, chain, "" if structure.name == "string" else structure.name)
        if protein is not None and protein.text not in seen:
            seen.add(protein.text)
            yield protein
    if not seen:
        raise AttnscopeError(f"{name} has no chain of a protein with coordinates; expected one")


def _chain(structure: Any, chain: Any, document: str) -> LinkedText | None:
    """The protein of a chain; None of another molecule."""
    import gemmi

    polymer = chain.get_polymer()
    if polymer.check_polymer_type() not in {gemmi.PolymerType.PeptideL, gemmi.PolymerType.PeptideD}:
        return None
    residues = [*polymer.first_conformer()]
    entity = structure.get_entity_of(polymer)
    written = [] if entity is None else [gemmi.Entity.first_mon(names) for names in entity.full_sequence]
    if written and all(residue.label_seq is not None for residue in residues):
        places = [residue.label_seq - 1 for residue in residues]
    else:
        written, places = [residue.name for residue in residues], [*range(len(residues))]
    atoms = [residue.find_atom("CB", "*") or residue.find_atom("CA", "*") for residue in residues]
    placed = [(place, atom.pos.tolist()) for place, atom in zip(places, atoms, strict=True) if atom]
    if not placed:
        return None
    numbers = np.array([place for place, _ in placed])
    points = np.array([point for _, point in placed])
    near = np.linalg.norm(points[:, None] - points[None], axis=-1) < DISTANCE
    contacts = numbers[np.argwhere(np.triu(near, 1))]
    return _protein("".join(map(_letter, written)), map(tuple, contacts.tolist()), document, numbers.tolist())


def _letter(name: str) -> str:
    """The letter of a residue, of a modified one that of its parent, or X."""
    import gemmi

    letter = gemmi.find_tabulated_residue(name).one_letter_code.upper()
    return letter if letter.isalpha() else "X"


def for_tokenizer(texts: Sequence[LinkedText], tokenizer: Any) -> list[LinkedText]:
    """Proteins as a tokenizer takes them apart into residues: as they are, or with spaces between residues."""
    return [_taken_apart(text, tokenizer) if is_protein(text) else text for text in texts]


def _taken_apart(text: LinkedText, tokenizer: Any) -> LinkedText:
    for written in (text, _spaced(text)):
        spans = tokens_of(tokenizer, written.text).spans
        if all(len(written.text[start:end].strip()) <= 1 for start, end in spans):
            return written
    raise AttnscopeError(
        f"{text.document}: the tokenizer has tokens of several residues, with spaces between them too; contacts need a "
        "model with a token for each residue"
    )


def _spaced(text: LinkedText) -> LinkedText:
    """The same protein with a space between residues."""

    def moved(span: tuple[int, int]) -> tuple[int, int]:
        return 2 * span[0], 2 * span[0] + 1

    links = tuple(replace(link, query=moved(link.query), keys=(*map(moved, link.keys),)) for link in text.links)
    return replace(text, text=" ".join(text.text), links=links, words=(*map(moved, text.words),))
