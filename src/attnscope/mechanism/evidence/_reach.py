"""Which offsets the mask of a head allows, and what weight at one of them is more than chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from attnscope.attention import AttentionCall
from attnscope.mechanism.arrays import Offsets
from attnscope.mechanism.evidence._rows import pairs_at


@dataclass(frozen=True, eq=False)
class Reach:
    """What the queries of a text may look at, by offset.

    Attributes
    ----------
    offsets
        Lowest and highest offset that the mask allows: up to 0 in a causal layer.
    even
        Sum of the weights at each offset if each query looked alike at all that it may, ``(offset,)``.
    pairs
        How many pairs of positions there are at each offset, whether a query may look or not, ``(offset,)``.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(1, 2, 4, 8)
    >>> reach = Reach.of(AttentionCall(x, x, x, scale=1.0, causal=True), band=2)
    >>> reach.offsets, reach.even.round(2).tolist()
    ((-3, 0), [0.58, 1.08, 2.08, 0.0, 0.0])
    """

    offsets: Offsets
    even: Float[np.ndarray, " offset"]
    pairs: Float[np.ndarray, " offset"]

    @classmethod
    def of(cls, call: AttentionCall, band: int) -> Reach:
        """Read the mask of the first text; that of a head of its own counts as what any head may look at."""
        start, stop = (bound[0].cpu().numpy() for bound in call.extent)
        row = np.arange(len(start))
        seen = stop - start
        if call.mask is not None and not call.is_contiguous:
            seen = np.minimum(seen, call.mask[0].sum(-1).amax(0).cpu().numpy())
        looks = seen > 0
        key = row[:, None] + np.arange(-band, band + 1)
        allowed = (key >= start[:, None]) & (key < stop[:, None])
        share = np.divide(1.0, seen, out=np.zeros(len(seen)), where=looks)
        return cls(
            (int((start - row)[looks].min(initial=0)), int((stop - 1 - row)[looks].max(initial=0))),
            (allowed * share[:, None]).sum(0),
            pairs_at(len(row), call.key.shape[2], band),
        )

    def level(self, chance: float) -> Float[np.ndarray, " offset"]:
        """Mean weight at each offset that a head without any preference among offsets exceeds with this probability.

        A profile varies most if each query puts its whole weight on one key, the same in all texts. Where these keys
        are drawn at random, the number of them at an offset has the Poisson distribution's tail, or less.

        Examples
        --------
        >>> from attnscope.mechanism.evidence import pairs_at
        >>> pairs = pairs_at(128, 128, 1)
        >>> Reach((-127, 127), pairs / 128, pairs).level(1e-4).round(3).tolist()
        [0.047, 0.047, 0.047]
        """
        most = stats.poisson.isf(chance, self.even)
        return np.divide(most, self.pairs, out=np.full(len(most), np.nan), where=self.pairs > 0)
