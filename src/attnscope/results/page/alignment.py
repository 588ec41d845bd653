"""The page of a parallel text aligned by a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.lineage.align import MOST_WORDS
from attnscope.results.figures.alignment import error_rate_grid, pair_map
from attnscope.results.page.parts import picture, write_page
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import percent

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from attnscope.lineage.align import Aligned

_MOST_PAIRS = 50  # more than a reader looks at; bounds the page


def write_alignment_report(aligned: Aligned, path: Path | str) -> Path:
    """Write alignments as one HTML page that needs no network, no server and no other file."""
    score, baselines = aligned.score, aligned.baselines
    if score is None and not aligned.pairs:
        raise AttnscopeError("there is no error rate and no sentence pair that a page could show")
    chosen = (aligned.layer, aligned.head) if aligned.layer is not None and aligned.head is not None else None
    heads, pairs = compared_heads(aligned), aligned.pairs[:_MOST_PAIRS]
    rates = ("error_rate", "precision", "recall")
    return write_page(
        path,
        "alignment",
        signature=aligned.signature,
        model=aligned.model,
        count=len(aligned.links),
        whose=whose(aligned),
        chosen_on_gold=aligned.chosen_on_gold and heads is not None,
        score=None if score is None else {name: percent(getattr(score, name)) for name in rates},
        interval="" if baselines is None else baselines.interval(),
        beside="" if score is None or baselines is None else baselines.in_words(score.error_rate),
        outside=aligned.outside,
        grid=None if heads is None else picture(error_rate_grid(heads, chosen)),
        passed_over=aligned.passed_over,
        open=0 if score is None else len(pairs) // 2,  # neither best nor worst
        most_words=MOST_WORDS,
        pairs=[
            (
                pair.line,
                percent(pair.error_rate) if np.isfinite(pair.error_rate) else "",
                picture(pair_map(pair), title=" ".join(pair.words.source), reading=" ".join(pair.words.target)),
            )
            for pair in pairs
        ],
    )


def whose(aligned: Aligned) -> str:
    """Whose weights were read, in words."""
    if aligned.layer is None:
        return "the mean of all layers" + (" and heads" if aligned.head is None else f", head {aligned.head}")
    if aligned.head is None:
        return f"the mean of all heads of layer {aligned.layer}"
    return f"layer {aligned.layer}, head {aligned.head}"


def compared_heads(aligned: Aligned) -> xr.Dataset | None:
    """What every head would give, where there is more than one: a single head is neither the best nor a grid."""
    heads = aligned.heads
    return heads if heads is not None and heads["error_rate"].size > 1 else None
