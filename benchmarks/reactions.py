"""Reactions to read with a model of chemistry: real reaction classes over common building blocks, as SMILES.

    python benchmarks/reactions.py 120 > reactions.txt
    python benchmarks/reactions.py 120 --mapped > reactions.rsmi

One reaction a line, reactants and product, none twice. With ``--mapped`` each atom has a number, that of the product's
atom the one of the reactant's atom that it was, as the reaction was put together; that needs RDKit.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

_ACYL = (
    "CC",
    "CCC",
    "CC(C)C",
    "c1ccccc1C",
    "C1CCCCC1C",
    "COc1ccc(cc1)C",
    "Clc1ccc(cc1)C",
    "c1ccncc1C",
    "CCCCC",
    "C=CC",
)
_ALCOHOL = ("CO", "CCO", "CC(C)O", "OCc1ccccc1", "OC1CCCCC1", "CCCCO", "OCCOC", "OCC(C)C")
_AMINE = ("CN", "CCN", "NCc1ccccc1", "N1CCOCC1", "N1CCCCC1", "NC1CCCCC1", "Nc1ccccc1", "NCCOC", "CC(C)N")
_HALIDE = ("CCBr", "BrCc1ccccc1", "CCCBr", "BrCC=C", "BrCC(=O)OC", "CCCCBr")
_ARYL = ("c1ccccc1", "c1ccc(OC)cc1", "c1ccc(F)cc1", "c1ccc(C)cc1", "c1ccncc1", "c1ccc(Cl)cc1")


def reactions(seed: int = 0) -> Iterator[str]:
    """Esters and amides of acids and acid chlorides, alkylated amines, and biaryls, in random order."""
    found = [*_esters(), *_amides(), *_alkylations(), *_suzuki()]
    random.Random(seed).shuffle(found)
    yield from dict.fromkeys(found)


def _esters() -> Iterator[str]:
    for acyl in _ACYL:
        for alcohol in _ALCOHOL:
            if alcohol.startswith("O"):
                yield f"{acyl}(=O)O.{alcohol}>>{acyl}(=O){alcohol}"


def _amides() -> Iterator[str]:
    for acyl in _ACYL:
        for amine in _AMINE:
            if amine.startswith("N"):
                yield f"{acyl}(=O)Cl.{amine}>>{acyl}(=O){amine}"


def _alkylations() -> Iterator[str]:
    for halide in _HALIDE:
        for amine in _AMINE:
            if halide.endswith("Br") and amine.startswith("N"):
                yield f"{halide}.{amine}>>{halide.removesuffix('Br')}{amine}"


def _suzuki() -> Iterator[str]:
    for place, first in enumerate(_ARYL):
        for second in _ARYL[place + 1 :]:
            yield f"Br{first}.OB(O){second}>>{_joined(first, second)}"


def _joined(first: str, second: str) -> str:
    """Two rings by a bond between their first atoms."""
    return f"{first.replace('c1', 'c1(', 1)}".replace("c1(", f"c1({second.replace('1', '2')})", 1)


def mapped(reaction: str) -> str:
    """A reaction of `reactions` with numbers at its atoms."""
    from rdkit import Chem

    before, product = (Chem.MolFromSmiles(side) for side in reaction.split(">>"))
    for atom in before.GetAtoms():
        atom.SetAtomMapNum(atom.GetIdx() + 1)
    first, second = Chem.GetMolFrags(before)
    numbers = [*first[:-1], *second]  # the last atom of the first molecule leaves
    if ".OB(O)" in reaction:  # the second ring stands behind the first atom of the first one
        numbers = [first[1], *second[3:], *first[2:]]
    for atom, number in zip(product.GetAtoms(), numbers, strict=True):
        atom.SetAtomMapNum(number + 1)
        if atom.GetSymbol() != before.GetAtomWithIdx(number).GetSymbol():
            raise ValueError(reaction)
    return f"{Chem.MolToSmiles(before)}>>{Chem.MolToSmiles(product)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=120)
    parser.add_argument("--mapped", action="store_true")
    arguments = parser.parse_args()
    for _, line in zip(range(arguments.count), reactions(), strict=False):
        print(mapped(line) if arguments.mapped else line)
