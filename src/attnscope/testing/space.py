"""The parts of the residual stream, each with directions of its own."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

#: Norm of the direction that is the same for every token: it makes LayerNorm and RMSNorm multiply by about 1.
CONSTANT = 60.0


class Space:
    """Orthogonal parts of the residual stream, side by side; what is left over is ``junk``, which nobody reads."""

    def __init__(self, width: int, **parts: int) -> None:
        self.width = width
        sizes = {"constant": 1, **parts}
        sizes["junk"] = width - sum(sizes.values())
        starts = np.cumsum([0, *sizes.values()])
        self._at = {
            name: slice(int(start), int(start) + size)
            for (name, size), start in zip(sizes.items(), starts[:-1], strict=True)
        }

    def rows(
        self, part: str, which: Int[np.ndarray, " row"] | list[int] | None = None
    ) -> Float[np.ndarray, "row width"]:
        """Unit vectors of a part, all or those that are named by number."""
        at = np.arange(self.width)[self._at[part]]
        at = at if which is None else at[which]
        rows = np.zeros((len(at), self.width))
        rows[np.arange(len(at)), at] = 1.0
        return rows

    @property
    def one(self) -> Float[np.ndarray, "1 width"]:
        """What gives 1 for every token."""
        return self.rows("constant") / CONSTANT
