"""What a number format changes: every head's mean profile and entropy beside those in float32, on the same windows.

    python benchmarks/precision.py MODEL [TEXT...] [--limit 40] [--window 128]

Printed is the largest change over all heads: of the mean weight at any offset, and of the mean entropy of a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import attnscope

FORMATS = ("float64", "float16", "bfloat16", "int8", "int4")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", nargs="*", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--window", type=int, default=128)
    given = parser.parse_args()
    same = {"limit": given.limit, "window": given.window}
    full = attnscope.scan(given.model, given.text or None, dtype="float32", **same).mean("window")
    print("| format | largest change of a mean weight | of a mean entropy (nats) |\n|---|---|---|")
    for name in FORMATS:
        other = attnscope.scan(given.model, given.text or None, dtype=name, **same).mean("window")
        weight, entropy = (float(abs(other[one] - full[one]).max()) for one in ("profile", "entropy"))
        print(f"| {name} | {weight:.1g} | {entropy:.1g} |", flush=True)
