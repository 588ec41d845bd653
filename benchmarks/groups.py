"""How far above both nulls heads are by chance: `scan --groups` with random groups.

    python benchmarks/groups.py                              # the bundled model and sample, 20 random groupings
    python benchmarks/groups.py MODEL --window 256 --limit 40 --times 10

Each token is in one of three groups at random, in 10%, 30% and 60% of places. So no head prefers a group, and any that
is above what its places alone give is so by chance.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

import attnscope
from attnscope.comparison.groups import group_pairs
from attnscope.statistics.effects import by_document
from attnscope.statistics.units import units_of


def at_random(seed: int) -> Callable[[Sequence[str]], list[str]]:
    """Groups by the number of tokens and the lengths of each, which say nothing of any head."""

    def rule(tokens: Sequence[str]) -> list[str]:
        drawn = np.random.default_rng([seed, *map(len, tokens)]).choice(3, len(tokens), p=[0.1, 0.3, 0.6])
        return ["abc"[number] for number in drawn]

    return rule


def main() -> None:
    """Scan with each grouping, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="bundled")
    parser.add_argument("--window", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--times", type=int, default=20)
    given = parser.parse_args()
    away: list[np.ndarray] = []
    excluded: list[np.ndarray] = []
    leading = []
    told = 0
    for seed in range(given.times):
        found = attnscope.scan(
            given.model,
            groups=at_random(seed),
            statistics="entropy",
            window=given.window,
            limit=given.limit,
            device="cpu",
        )
        each = (found.group_weight - found.position_group_weight).transpose("window", ...).values
        units, called = units_of(found.source.values.tolist())
        interval = by_document(each, units)
        away.append(interval.mean.ravel())
        excluded.append(((interval.low > 0) | (interval.high < 0)).ravel())
        pairs = group_pairs(found)
        leading += pairs
        told += any(pair["beyond_chance"] for pair in pairs)
    print(f"{given.model}: {found.sizes['window']} windows, intervals over {len(set(units))} {called}")
    print(
        f"weight less that of the places, any head: {np.abs(np.concatenate(away)).mean():.4f} in the mean, "
        f"{np.abs(np.concatenate(away)).max():.4f} at most; interval without 0: {np.concatenate(excluded).mean():.1%}"
    )
    above = np.array([pair["above"] for pair in leading])
    print(
        f"the leading head of a pair, above both: {above.mean():.4f} in the mean, {above.max():.4f} at most; interval "
        f"above 0: {np.mean([pair['low'] > 0 for pair in leading]):.1%} of {len(leading)}"
    )
    print(f"tables with a head that is called above both beyond chance: {told} of {given.times}")


if __name__ == "__main__":
    main()
