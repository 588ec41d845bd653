"""Without the rotation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.explanation.passes.kernel import rotation_effect as of_model
from attnscope.explanation.study import ROTATION, Analysis, Picture, Section, few_texts, studied
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    from collections.abc import Mapping

    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources

SCHEME = Section(
    "scheme",
    "The position scheme taken out",
    (
        "Each layer gets the inputs that it always gets; only its rotation or bias is changed. What is "
        "lost was the scheme's doing."
    ),
)


@validated
def rotation_effect(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    periods: Mapping[str, tuple[float, float]] | None = None,
    band: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """Effect of RoPE: profiles when only some of the pairs of each query and key turn with their positions.

    See docs/mathematics.md, Effects of the position scheme.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    periods, band, draws, seed
        See `attnscope.explanation.passes.kernel.rotation_effect`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.passes.kernel.rotation_effect`: over ``variant, layer, head, offset`` (tokens)
        ``profile``, the
        mean weight (share), and ``effect``, the model's less the variant's.

    Raises
    ------
    AttnscopeError
        If no layer turns queries and keys by their positions; if there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.rotation_effect import rotation_effect
    >>> from transformers import LlamaConfig, LlamaModel
    >>> config = LlamaConfig(
    ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=9
    ... )
    >>> effects = rotation_effect(LlamaModel(config).eval(), [[5, 6, 7, 8], [8, 5, 6, 5]], band=2)
    >>> effects.variant.values.tolist()
    ['model', 'none', 'fast', 'middle', 'slow']

    A model without rotation is refused:

    >>> rotation_effect("bundled", limit=2)
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: rotation_effect is not defined for small-mlm: queries and keys are not turned by \
    positions. Choose another analysis
    """
    given = few_texts(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_model(given.model, given.first(limit), periods, band=band, draws=draws, seed=seed)


ANALYSIS = Analysis(
    "rotation_effect",
    "Without the rotation",
    "Effects of the position scheme",
    lambda study: of_model(study.model, study.first(), band=study.band, seed=study.seed),
    needs=(ROTATION,),
    section=SCHEME,
    pictures=(
        Picture(
            "rotation-effect",
            "Without the rotation",
            (
                "Black is the model; each colour turns only some of the pairs of queries and keys, by "
                "their period in tokens."
            ),
            draw="attnscope.results.figures.panels:scheme_effect",
            of="heads",
        ),
    ),
    units="share",
)
