"""Position or content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.explanation.passes.content import FEWEST_EXACT
from attnscope.explanation.passes.content import position_content as of_model
from attnscope.explanation.ranking import rank_explanations
from attnscope.explanation.study import Analysis, Picture, Section, few_texts, studied
from attnscope.measure.documents import LEAST
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    import numpy as np
    import xarray as xr
    from jaxtyping import Int

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

_PARTS = (
    "Every input is split into its mean at that position (P) and the rest (C). The products of "
    "queries and keys then have exactly four parts: PP, PC, CP and CC. What texts share at a "
    "position by chance is counted as content. A bias by distance (B: T5, ALiBi, DeBERTa) belongs "
    "to position, as far as all texts share it."
)


def _says(tree: xr.DataTree) -> str:
    rows = rank_explanations(tree)
    attributes = tree["position_content"].attrs
    fewest = FEWEST_EXACT if attributes.get("method") == "exact" else LEAST
    documents = attributes.get("documents", fewest)
    few = (
        f" The share of position has no interval: fewer than {fewest} documents."
        if documents < fewest
        else ""
    )
    if any(row.prefers for row in rows) or not rows:
        return _PARTS + few
    flat = "No head prefers an offset: what follows are parts of profiles that are flat as far as is known."
    return f"{_PARTS}{few} {flat}"


CONTENT = Section("content", "Position or content", _says)


@validated
def position_content(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    method: Literal["means", "exact"] = "means",
    layers: Sequence[int] | None = None,
    band: int = 10,
    target_offset: Int[np.ndarray, "layer head"] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """Split the scores of every head into position and content, exactly (docs/mathematics.md, Position and content).

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    method, layers, band, target_offset, draws, seed
        See `attnscope.explanation.passes.content.position_content`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.passes.content.position_content`: over ``layer, head, term, offset`` (tokens)
        ``trace`` (nats);
        over ``layer, head, term`` ``share``; over ``layer, head`` ``position_share``, and ``mass``, the weight at
        ``target``.

    Raises
    ------
    AttnscopeError
        If there is no such layer, or ``method="exact"`` cannot be had with this model; if there are fewer than two full
        windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.position_content import position_content
    >>> position_content("bundled", limit=2, layers=[0]).share.dims
    ('layer', 'head', 'term')
    """
    given = few_texts(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_model(
            given.model,
            given.first(limit),
            method=method,
            layers=layers,
            band=band,
            target_offset=target_offset,
            draws=draws,
            seed=seed,
        )


ANALYSIS = Analysis(
    "position_content",
    "Position or content",
    "Position and content",
    lambda study: of_model(study.model, study.first(), band=study.band, seed=study.seed),
    section=CONTENT,
    pictures=(
        Picture(
            "position-content",
            "What the parts give",
            (
                "Above, the head's weights and those that position alone would give. Below, the parts' "
                "shares of the scores' profile and their Shapley values for the weight at the head's "
                "offset, with 95% intervals."
            ),
            draw="attnscope.results.figures.explain:position_content",
            of="heads",
        ),
    ),
    units="share",
)
