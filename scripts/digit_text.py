"""Write pictures of digits as sentences of patches, for the lesson on heads (configs/lessons/digits.yaml).

    python scripts/digit_text.py runs/lesson-text

A picture of 8 x 8 pixels, black or white, is 16 patches of 2 x 2: words p0 to p15 by their pixels, row by row. The
first word is "digit", in whose place the target has the number. Pictures are those of scikit-learn (`load_digits`:
E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998, CC BY 4.0); for training each is also
moved by a pixel. One in eight is held out; `pictures.json` has the first held-out picture of each digit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
INK = 8  # of 16 levels of grey: black from there on
HELD_OUT = 8  # one in this number


def patches(picture: np.ndarray) -> list[str]:
    """The words of a picture: 8 x 8 pixels of 0 and 1."""
    squares = picture.reshape(4, 2, 4, 2).transpose(0, 2, 1, 3).reshape(16, 4)
    return [f"p{number}" for number in squares @ [8, 4, 2, 1]]


def moved(picture: np.ndarray) -> list[np.ndarray]:
    """The picture, and moved by a pixel to each side."""
    wide = np.pad(picture, 1)
    return [wide[1 + y : 9 + y, 1 + x : 9 + x] for y, x in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    data = load_digits()
    pictures, digits = (data["images"] >= INK).astype(int), data["target"]
    held_out = np.arange(len(digits)) % HELD_OUT == 0
    for name, chosen in (("train", ~held_out), ("valid", held_out)):
        pairs = [
            (NAMES[digit], " ".join(patches(each)))
            for picture, digit in zip(pictures[chosen], digits[chosen], strict=True)
            for each in (moved(picture) if name == "train" else [picture])
        ]
        for ending, first in (("picture", None), ("digit", True)):
            lines = "".join(f"{digit if first else 'digit'} {words}\n" for digit, words in pairs)
            (folder / f"{name}.{ending}.txt").write_text(lines, encoding="utf-8")
    first = [int(np.flatnonzero(held_out & (digits == digit))[0]) for digit in range(10)]
    (folder / "pictures.json").write_text(json.dumps([pictures[i].tolist() for i in first]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
