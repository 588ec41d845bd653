"""What the position scheme foretells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.explanation.passes.kernel import scheme_kernel as of_model
from attnscope.explanation.ranking import MOST, weight_peaks
from attnscope.explanation.study import ROTATION_OR_BIAS, Analysis, Picture, Section, few_texts, studied
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

KERNEL = Section(
    "kernel",
    "What the position scheme foretells",
    (
        "Rotated queries and keys (RoPE) favour offsets at which their mean turns into phase; a bias "
        "favours them outright. Both give one curve over the offsets, with no word in it. Where it "
        "peaks, the head should look, if the scheme decides."
    ),
)


@validated
def scheme_kernel(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    band: int = 10,
    draws: int = 400,
    seed: int = 0,
) -> xr.Dataset:
    """What the position scheme alone adds to scores at each offset, and whether a head looks where that peaks.

    See docs/mathematics.md, Position and content (Kernel of a scheme).

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    band, draws, seed
        See `attnscope.explanation.passes.kernel.scheme_kernel`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.passes.kernel.scheme_kernel`: over ``layer, head, offset`` (tokens) ``kernel`` and
        ``scores``
        (nats); over ``layer, head`` ``share``, ``offset_of_kernel``, ``offset_of_weights`` (tokens), ``agree``,
        ``chance``. In the tree of `attnscope.explain` ``share`` and the last three are NaN of heads that prefer no
        offset, and ``offset_of_kernel`` too where the kernel is flat, or a small part of the scores.

    Raises
    ------
    AttnscopeError
        If queries and keys are not turned by positions and no bias is added to the scores; if there are fewer than two
        full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.scheme_kernel import scheme_kernel
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(
    ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> kernel = scheme_kernel(LlamaModel(config).eval(), [[5, 6, 7, 8], [8, 5, 6, 5]], band=2)
    >>> kernel.scheme, kernel.kernel.dims
    ('rotation', ('layer', 'head', 'offset'))

    A model with a table of positions is refused:

    >>> scheme_kernel("bundled", limit=2)
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: scheme_kernel is not defined for small-mlm: queries and keys are not turned by \
    positions, and no bias is added. Choose another analysis
    """
    given = few_texts(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_model(given.model, given.first(limit), band=band, draws=draws, seed=seed)


def _of_study(study: Study) -> xr.Dataset:
    """The kernel beside the weights of heads that prefer an offset; of the others it is not asked what it explains."""
    kernel = of_model(study.model, study.first(), band=study.band, seed=study.seed)
    prefers = weight_peaks(study.evidence).prefers.reindex_like(kernel.agree, fill_value=False)
    return without_flat_curves(kernel, prefers.reset_coords(drop=True))


def without_flat_curves(kernel: xr.Dataset, prefers: xr.DataArray) -> xr.Dataset:
    """The kernel without what says nothing: every curve has a largest value, that of random weights too."""
    asked = kernel[["share", "offset_of_weights", "agree", "chance"]].where(prefers)
    makes = (kernel.share_low > MOST) & (kernel.swing > np.log(2))
    return kernel.assign(asked.data_vars).assign(
        offset_of_kernel=kernel.offset_of_kernel.where(prefers | makes)
    )


ANALYSIS = Analysis(
    "scheme_kernel",
    "What the position scheme foretells",
    "Position and content",
    _of_study,
    needs=(ROTATION_OR_BIAS,),
    section=KERNEL,
    pictures=(
        Picture(
            "scheme-kernel",
            "The scheme beside the scores",
            (
                "Mean scores, and what rotation or bias alone gives, about their means; the future of "
                "causal heads is left out. Dotted are the offsets of the largest weight and of the "
                "scheme's peak, none where the weights prefer no offset and the scheme is flat or a small part of "
                "the scores. Below, which pairs of columns make it: those that turn once in a few "
                "tokens tell neighbours apart, slow ones do not."
            ),
            draw="attnscope.results.figures.positions:scheme_kernel",
            of="heads",
        ),
    ),
    units="share",
)
