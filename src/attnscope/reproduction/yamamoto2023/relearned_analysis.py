"""Positions learned anew, as an analysis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from attnscope.explanation.arrays.checks import NotDefinedError
from attnscope.explanation.study import Analysis, Picture, Section
from attnscope.reproduction.yamamoto2023.relearn import Relearning
from attnscope.store.files import explained
from attnscope.support.checks import check_whole
from attnscope.support.progress import Progress

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.explanation.study import Study

ANEW = Section(
    "relearned",
    "Positions learned anew",
    "Every token is followed by unknown ones; the position table is drawn at random and trained alone. A head that "
    "finds its neighbour by position then looks for it at the new distance. After few steps it does not yet: the "
    "loss tells how far the learning has come.",
)


def relearned(steps: int) -> Analysis:
    """Positions learned anew for so many steps, for ``attnscope.explain(more=...)``: see `relearn_positions`."""
    check_whole(1, relearn=steps)
    return replace(
        RELEARNED,
        compute=partial(_relearn, steps=steps),
        check=partial(_check_relearning, steps=steps),
        settings={"relearn": steps},
    )


def _relearning(study: Study, steps: int) -> Relearning:
    """What is about to be trained, checked and cut once."""
    made = study.shared.get("relearning")
    if not isinstance(made, Relearning):
        if study.loaded is None or study.corpus is None:
            raise NotDefinedError("it wants a tokenizer and texts: ask through attnscope.explain")
        made = Relearning(study.loaded, study.corpus, steps=steps, seed=study.seed)
        study.shared["relearning"] = made
    return made


def _check_relearning(study: Study, steps: int) -> None:
    _relearning(study, steps)


def _relearn(study: Study, steps: int) -> xr.Dataset:
    def tell(at: Progress) -> None:
        study.tell(replace(at, share=study.share))

    relearning, run = _relearning(study, steps), study.stored.run
    model, relearned = relearning.run(band=study.band, progress=tell)
    if run is not None:
        advice = "Free some room and give the same command again"
        with explained("write the relearned model", advice), run.replacing("relearned/") as new:
            relearning.save(model, new / "relearned")
    return relearned


RELEARNED = Analysis(
    "relearned",
    "Positions learned anew",
    "The papers' numbers",
    partial(_relearn, steps=1000),
    section=ANEW,
    pictures=(
        Picture(
            "relearned-table",
            "The table before and after",
            "Where the blue line stands above the dashed one, learning has made waves. A peak at the spacing says "
            "that rows of tokens and rows of unknown tokens differ: only the former are asked for anything.",
            draw="attnscope.reproduction.yamamoto2023.drawing:relearned_table",
        ),
        Picture(
            "relearned-profiles",
            "Where the sharpest heads look",
            "Black is plain text. With unknown tokens between, the head still looks at the next place and finds an "
            "unknown token; with positions learned anew, the peak should stand where the neighbour is now. Means "
            "over tokens, not over unknown ones.",
            draw="attnscope.reproduction.yamamoto2023.drawing:relearned_profiles",
        ),
        Picture(
            "relearned-maps",
            "Weights with positions learned anew",
            "A spaced text; dots are unknown tokens, ␣ is a space. Stripes beside the diagonal go from token to token.",
            draw="attnscope.reproduction.yamamoto2023.drawing:relearned_maps",
            with_tokens=True,
        ),
    ),
    units="nats",
)


@dataclass(frozen=True)
class Finding:
    """What was found: in words, as a number, whether the published value holds (None: nothing to hold), remarks."""

    text: str
    number: float | int = float("nan")
    holds: bool | None = None
    note: str = ""
