"""Synthetic proteins: two ideal helices side by side, as files in the PDB format. No such protein was ever measured.

    python benchmarks/hairpins.py 12 hairpins

Sequences are random, with leucine where the helices face each other; lengths differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

import numpy as np

_NAMES = {
    "A": "ALA", "D": "ASP", "E": "GLU", "G": "GLY", "K": "LYS", "L": "LEU", "N": "ASN", "Q": "GLN", "R": "ARG",
    "S": "SER", "T": "THR",
}  # fmt: skip
_LOOP = "GSGNG"
_RISE, _TURN = 1.5, np.radians(100)  # of a residue of an ideal helix, in angstrom and radians
_APART = 8.5  # angstrom between the axes
_RADIUS = {"N": 1.55, "CA": 2.29, "C": 1.65, "CB": 3.3}  # of the atoms, around the axis
_PHASE = {"N": -0.48, "CA": 0.0, "C": 0.46, "CB": -0.4}
_SHIFT = {"N": -0.9, "CA": 0.0, "C": 1.1, "CB": -0.5}  # along the axis


def sequence_of(length: int, seed: int) -> str:
    """A sequence of two helices of equal length."""
    random = np.random.default_rng(seed)
    helix = (length - len(_LOOP)) // 2
    letters = random.choice([*"ADEKNQRST"], 2 * helix)
    letters[np.cos(_TURN * np.arange(2 * helix)) > 0.5] = "L"
    return "".join([*letters[:helix], _LOOP, *letters[helix:]])


def hairpin(sequence: str, missing: Collection[int] = ()) -> str:
    """A structure in the PDB format; residues that are missing, by number from 1, are in its header alone."""
    helix = (len(sequence) - len(_LOOP)) // 2
    lines = ["HEADER    SYNTHETIC, TWO IDEAL HELICES", "TITLE     NOT A MEASURED STRUCTURE"]
    names = [_NAMES[letter] for letter in sequence]
    for row, start in enumerate(range(0, len(names), 13), start=1):
        lines.append(f"SEQRES {row:3d} A {len(names):4d}  {' '.join(names[start : start + 13])}")
    serial = 0
    for number, name in enumerate(names, start=1):
        for atom, point in _points(number - 1, helix, len(sequence)).items():
            if number not in missing and (atom, name) != ("CB", "GLY"):
                serial += 1
                x, y, z = point
                lines.append(
                    f"ATOM  {serial:5d}  {atom:<3s} {name} A{number:4d}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00"
                    f"          {atom[0]:>2s}"
                )
    return "\n".join([*lines, "TER", "END", ""])


def _points(residue: int, helix: int, length: int) -> dict[str, np.ndarray]:
    """The atoms of a residue: up the first helix, over the loop, down the second one."""
    if helix <= residue < helix + len(_LOOP):
        share = np.pi * (residue - helix + 1) / (len(_LOOP) + 1)
        middle = np.array([_APART / 2 * (1 - np.cos(share)), 0.0, _RISE * helix + 4 * np.sin(share)])
        return {atom: middle + [0.0, _RADIUS[atom] - 2.3, 0.5 * _SHIFT[atom]] for atom in _RADIUS}  # noqa: RUF005
    up = residue < helix
    step = residue if up else length - 1 - residue
    turn = _TURN * step if up else np.pi - _TURN * step
    axis = 0.0 if up else _APART
    sign = 1 if up else -1
    return {
        atom: np.array(
            [
                axis + _RADIUS[atom] * np.cos(turn + sign * _PHASE[atom]),
                _RADIUS[atom] * np.sin(turn + sign * _PHASE[atom]),
                _RISE * step + sign * _SHIFT[atom],
            ]
        )
        for atom in _RADIUS
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(arguments.count):
        written = hairpin(sequence_of(37 + 2 * seed, seed))
        (arguments.folder / f"hairpin-{seed}.pdb").write_text(written, encoding="utf-8")
