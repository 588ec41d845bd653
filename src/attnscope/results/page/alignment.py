"""Writing the page of a parallel text aligned by a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnscope.lineage.align import MOST_WORDS
from attnscope.results.figures.alignment import alignment_map, error_rate_grid
from attnscope.results.page.parts import STYLES, picture, write_page
from attnscope.results.page.scan import parsed
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import percent

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.lineage.align import Aligned, ShownPair
    from attnscope.lineage.links import AlignmentScore

_MOST_PAIRS = 50  # more than a reader looks at; bounds the page


def write_alignment_report(aligned: Aligned, path: Path | str) -> Path:
    """Write alignments as one HTML page that needs no network, no server and no other file."""
    if aligned.score is None and not aligned.pairs:
        raise AttnscopeError("there is no error rate and no sentence pair that a page could show")
    chosen = (aligned.layer, aligned.head) if aligned.layer is not None and aligned.head is not None else None
    heads = compared_heads(aligned)
    return write_page(
        Path(path),
        "alignment.html.j2",
        styles=STYLES,
        signature=parsed(aligned.signature),
        model=aligned.model,
        count=len(aligned.links),
        whose=whose(aligned),
        chosen_on_gold=aligned.chosen_on_gold and heads is not None,
        score=None if aligned.score is None else _rates(aligned.score),
        interval="" if aligned.baselines is None else aligned.baselines.interval(),
        beside=""
        if aligned.score is None or aligned.baselines is None
        else aligned.baselines.in_words(aligned.score.error_rate),
        outside=aligned.outside,
        grid=None if heads is None else picture(error_rate_grid(heads, chosen)),
        passed_over=aligned.passed_over,
        open=0 if aligned.score is None else len(aligned.pairs[:_MOST_PAIRS]) // 2,  # neither best nor worst
        most_words=MOST_WORDS,
        pairs=[_shown(pair) for pair in aligned.pairs[:_MOST_PAIRS]],
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


def _rates(score: AlignmentScore) -> dict[str, str]:
    return {name: percent(getattr(score, name)) for name in ("error_rate", "precision", "recall")}


def _shown(pair: ShownPair) -> dict[str, str | int]:
    words = pair.words
    figure = alignment_map(
        words.weights,
        words.source,
        words.target,
        links=pair.found,
        sure=pair.sure,
        possible=pair.possible,
    )
    source, width = picture(figure)
    return {
        "line": pair.line,
        "rate": percent(pair.error_rate) if np.isfinite(pair.error_rate) else "",
        "source": " ".join(words.source),
        "target": " ".join(words.target),
        "picture": source,
        "width": width,
    }
