"""How often `attnscope.diff` finds a change between groups of models that do not differ.

    python benchmarks/seeds.py
    python benchmarks/seeds.py --changes 1152 --repeats 400

Every model has values of its own, drawn alike for both groups, so that each finding is false. Values of one model are
independent, share a part over all of its changes (`correlated`), are exponential, have Student's t with 3 degrees of
freedom, or differ three times as much in the second group (`unequal`). Printed is the share of comparisons with any
significant change at a false discovery rate of 5%, and with p <= 0.05 and p <= 0.1 by all groupings. The last columns
are the power: the share of changes of 5 standard deviations, a tenth of all, that are found.
"""

from __future__ import annotations

import argparse

import numpy as np

from attnscope.statistics.effects import changes_by_model

GROUPS = ((3, 3), (2, 4), (5, 5))
KINDS = ("normal", "correlated", "exponential", "heavy", "unequal")


def drawn(kind: str, sizes: tuple[int, int], changes: int, generator: np.random.Generator) -> np.ndarray:
    """Values of models, ``(model, change)``."""
    shape = sum(sizes), changes
    if kind == "exponential":
        return generator.exponential(size=shape)
    if kind == "heavy":
        return generator.standard_t(3, size=shape)
    values = generator.standard_normal(shape)
    if kind == "correlated":
        values += 2 * generator.standard_normal((sum(sizes), 1))
    if kind == "unequal":
        values[sizes[0] :] *= 3
    return values


def rates(kind: str, sizes: tuple[int, int], changes: int, repeats: int) -> list[float]:
    """Shares of comparisons that find a change: by the false discovery rate, and by groupings at 5% and 10%; power."""
    generator = np.random.default_rng(0)
    found: list[list[float]] = []
    for _ in range(repeats):
        values = drawn(kind, sizes, changes, generator)
        none, chance, _ = changes_by_model(values[: sizes[0]], values[sizes[0] :])
        values[sizes[0] :, : changes // 10] += 5
        some, _, _ = changes_by_model(values[: sizes[0]], values[sizes[0] :])
        found.append([none.changed.any(), chance <= 0.05, chance <= 0.1, some.changed[: changes // 10].mean()])
    return np.mean(found, 0).tolist()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=280)
    parser.add_argument("--repeats", type=int, default=1000)
    given = parser.parse_args()
    print(f"{given.changes} changes, {given.repeats} comparisons")
    print("models   values       any change  groupings 5%  10%    power")
    for sizes in GROUPS:
        for kind in KINDS:
            any_change, low, high, power = rates(kind, sizes, given.changes, given.repeats)
            print(f"{sizes[0]} v {sizes[1]}    {kind:12} {any_change:10.3f}  {low:12.3f}  {high:5.3f}  {power:5.2f}")


if __name__ == "__main__":
    main()
