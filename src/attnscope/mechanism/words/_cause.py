"""Whether the waves held responsible are a cause, in a sentence."""

from __future__ import annotations

import numpy as np
import xarray as xr

from attnscope._arguments import typed
from attnscope._numbers import count
from attnscope._returned import reads
from attnscope.mechanism._ranking import rank_explanations

BY_ACCIDENT = 0.05  # probability from which as many agreements are called no more than accident
_UNMOVED = 0.01  # change of a profile, root mean square, below which there is nothing to foretell
_HALF = 0.5  # share of the change, below which most of it was not foretold
_NEAR = 0.5  # cycles: as near is the same frequency in a table of another length


@reads("explain")
@typed
def cause(tree: xr.DataTree) -> str:
    """Whether heads change as the cross-spectrum says when its waves leave the position table, in a sentence.

    Empty where that was not tried, where no head prefers an offset that could have a cause, and where profiles hardly
    change and the table has no peak among these waves.

    Examples
    --------
    >>> fit = {"fit": 0.9, "fit_low": 0.85, "fit_high": 0.93, "fit_of_others": -0.4, "fit_chance": 0.0}
    >>> removed = xr.Dataset(fit | {"moved": 0.1}, attrs={"frequencies": [3, 9], "length": 64, "texts": 8})
    >>> print(cause(xr.DataTree.from_dict({"wave_removal": removed})))
    Without the waves of 3 to 9 cycles per 64 tokens in the position table, heads change as the cross-spectrum \
foretells to R² = 0.90 (0.85 to 0.93 over 8 texts; with the heads exchanged −0.40).
    """
    rows = rank_explanations(tree)
    if "wave_removal" not in tree.children or (rows and not any(row.prefers for row in rows)):
        return ""
    removed = tree["wave_removal"].to_dataset()
    fit, low, high, others, chance, moved = (
        float(removed[name])
        for name in ("fit", "fit_low", "fit_high", "fit_of_others", "fit_chance", "moved")
    )
    first, last = removed.attrs["frequencies"]
    said = f"Without the waves of {first} to {last} cycles per {removed.attrs['length']} tokens in the position table, "
    if moved < _UNMOVED:
        if not _has_peak(tree, first, last, removed.attrs["length"]):
            return ""
        return f"{said}profiles hardly change ({moved:.1g}, root mean square): these waves are not seen to be a cause."
    exchanged = "" if np.isnan(others) else f"; with the heads exchanged {others:.2f}"
    numbers = (
        f"R² = {fit:.2f} ({low:.2f} to {high:.2f} over {count(removed.attrs['texts'], 'text')}{exchanged})"
    )
    numbers = numbers.replace("-", "−")
    if low <= 0 or chance > BY_ACCIDENT:
        said += f"heads change otherwise than the cross-spectrum foretells: {numbers}."
    elif fit < _HALF:
        said += f"heads change only in part as the cross-spectrum foretells: {numbers}."
    else:
        said += f"heads change as the cross-spectrum foretells to {numbers}."
    return said


def _has_peak(tree: xr.DataTree, first: int, last: int, length: int) -> bool:
    """Whether the position table has a peak among these waves, cycles in so many tokens; true where it was not read."""
    if "position_spectrum" not in tree.children:
        return True
    spectrum = tree["position_spectrum"].to_dataset().sel(kind="positions")
    cycles = spectrum["frequency"].values * length / spectrum.attrs["positions"]
    near = (cycles >= first - _NEAR) & (cycles <= last + _NEAR)
    return bool(spectrum["is_peak"].values[near].any())
