"""Atoms of reactions: reaction SMILES whose atoms are numbered, as the model reads them without the numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.read.files import decode_utf8, read_blocks, shown, unpacked
from attnscope.read.spans import Span
from attnscope.support.errors import AttnscopeError
from attnscope_relations.data import REVERSED, Link, LinkedText, needed

#: The name of the relation from an atom of the product to the atom that it was.
RELATION = "atom mapping"
_FORM = "[CH3:1][OH:2].[CH3:3][Br:4]>>[CH3:1][O:2][CH3:3]"
_ATOM = re.compile(r"\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops*]")
_SIDES = 3  # of a reaction: reactants, agents, products


def of_reaction(value: Mapping[str, Any], where: str) -> LinkedText:
    """A reaction as JSON Lines write it."""
    return _reaction(str(value["reaction"]), where, str(value.get("document", value.get("id", where))))


def reactions(file: Path) -> Iterator[LinkedText]:
    """A reaction a line: SMILES whose atoms have numbers; what follows a space is not read.

    The text is what RXNMapper reads (Schwaller et al. 2021): agents are reactants, every molecule is canonical, and
    molecules are in the order of their letters. Its words are the atoms. An atom of the product has a link to the one
    with its number, or to any that equals it by the symmetry of its molecule, and the other way round.
    """
    name = shown(file)
    content = decode_utf8(b"".join(unpacked(file, read_blocks(file))), name)
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            yield _reaction(line.split()[0], f"{name}, line {number}", f"line {number}")


class _Molecules(NamedTuple):
    """Molecules of one side of a reaction, by atom in the order of their SMILES."""

    smiles: str
    spans: list[Span]
    numbers: list[int]  # 0: none
    kinds: list[int]  # atoms of one kind equal each other by symmetry

    def by_kind(self, at: int) -> tuple[Span, ...]:
        return tuple(span for span, kind in zip(self.spans, self.kinds, strict=True) if kind == self.kinds[at])


def _reaction(written: str, where: str, document: str) -> LinkedText:
    sides = written.split(">")
    if len(sides) != _SIDES or not sides[0] or not sides[2]:
        raise AttnscopeError(
            f"{where}: found {written!r:.60}; expected a reaction with numbers of atoms, such as {_FORM}"
        )
    before = _molecules([*sides[0].split("."), *filter(None, sides[1].split("."))], 0, where)
    after = _molecules(sides[2].split("."), len(before.smiles) + len(">>"), where)
    source = {number: at for at, number in enumerate(before.numbers) if number}
    links: list[Link] = []
    for at, number in enumerate(after.numbers):
        if number in source:
            atom = source[number]
            links.append(Link(RELATION, after.spans[at], before.by_kind(atom)))
            links.append(Link(RELATION + REVERSED, before.spans[atom], after.by_kind(at)))
    return LinkedText(f"{before.smiles}>>{after.smiles}", tuple(links), document, words=(*before.spans, *after.spans))


def _molecules(written: Sequence[str], start: int, where: str) -> _Molecules:
    """Canonical molecules without numbers, in the order of their letters, from some character of the text."""
    chem = needed("rdkit.Chem", "reading reactions", "reactions")
    read: list[tuple[str, list[int]]] = []
    for smiles in written:
        with needed("rdkit.rdBase", "reading reactions", "reactions").BlockLogs():
            molecule = chem.MolFromSmiles(smiles)
        if molecule is None:
            raise AttnscopeError(f"{where}: {smiles!r:.60} is no molecule that RDKit reads: correct or remove the line")
        numbers = [atom.GetAtomMapNum() for atom in molecule.GetAtoms()]
        for atom in molecule.GetAtoms():
            atom.SetAtomMapNum(0)
        canonical = chem.MolToSmiles(molecule)
        order = molecule.GetPropsAsDict(includePrivate=True, includeComputed=True)["_smilesAtomOutputOrder"]
        read.append((canonical, [numbers[at] for at in order]))
    read.sort(key=lambda one: one[0])
    smiles = ".".join(canonical for canonical, _ in read)
    keeping = chem.SmilesParserParams()
    keeping.removeHs = False
    whole = chem.MolFromSmiles(smiles, keeping)
    kinds = [*chem.CanonicalRankAtoms(whole, breakTies=False)]
    spans = [(start + atom.start(), start + atom.end()) for atom in _ATOM.finditer(smiles)]
    return _Molecules(smiles, spans, [number for _, numbers in read for number in numbers], kinds)
