"""The matrices of every head of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._arguments import typed
from attnscope.capture import borrowed
from attnscope.mechanism._study import study
from attnscope.mechanism.evidence import FOR_MATCHING, Projections, model_inputs, token_ids
from attnscope.mechanism.evidence import projections as projections_of_model

if TYPE_CHECKING:
    from attnscope.capture import Model, Site, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism._study import Study


@typed
def projections(
    model: Model | Study | None = None, texts: Sources = None, *, tokenizer: Tokenizer = None
) -> dict[Site, Projections]:
    """Query, key, value and output matrices of every head, found and verified on a window of text.

    Parameters
    ----------
    model, texts, tokenizer
        See `attnscope.mechanism.study`.

    Examples
    --------
    >>> from attnscope import mechanism
    >>> by_site = mechanism.projections("bundled")
    >>> {matrices.form for matrices in by_site.values()}
    {'bilinear'}
    """
    given = study(model, texts, tokenizer=tokenizer, limit=2)
    with borrowed(given.model):
        return projections_of_model(
            given.model, model_inputs(given.model, token_ids(given.windows)[:1].start(FOR_MATCHING))
        )
