"""Reactions to read with a model of chemistry: real reaction classes over common building blocks, as SMILES.

    python benchmarks/reactions.py 120 > reactions.txt

One reaction a line, reactants and product, none twice.
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=120)
    for _, line in zip(range(parser.parse_args().count), reactions(), strict=False):
        print(line)
