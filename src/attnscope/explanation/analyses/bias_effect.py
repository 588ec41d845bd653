"""Without the bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.explanation.analyses.rotation_effect import SCHEME
from attnscope.explanation.passes.kernel import bias_effect as of_model
from attnscope.explanation.study import BIAS, Analysis, Picture, few_texts, studied
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@validated
def bias_effect(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    band: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """Effect of a position bias of the scores (T5, ALiBi): the profile as it is less the one with the bias at its mean.

    See docs/mathematics.md, Effects of the position scheme.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    band, draws, seed
        See `attnscope.explanation.passes.kernel.bias_effect`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.passes.kernel.bias_effect`: over ``variant, layer, head, offset`` (tokens)
        ``profile``, the
        mean weight (share), and ``effect``, the model's less the variant's.

    Raises
    ------
    AttnscopeError
        If no bias by distance is added to the scores; if there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.bias_effect import bias_effect
    >>> from transformers import T5Config, T5EncoderModel
    >>> config = T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=9)
    >>> effects = bias_effect(T5EncoderModel(config).eval(), [[5, 6, 7, 8], [8, 5, 6, 5]], band=2)
    >>> effects.variant.values.tolist(), effects.effect.dims
    (['model', 'without_bias'], ('variant', 'layer', 'head', 'offset'))

    A model without such a bias is refused:

    >>> bias_effect("bundled", limit=2)
    Traceback (most recent call last):
    ...
    attnscope.AttnscopeError: bias_effect is not defined for small-mlm: no bias is added to the scores. Choose \
    another analysis
    """
    given = few_texts(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return of_model(given.model, given.first(limit), band=band, draws=draws, seed=seed)


ANALYSIS = Analysis(
    "bias_effect",
    "Without the bias",
    "Effects of the position scheme",
    lambda study: of_model(study.model, study.first(), band=study.band, seed=study.seed),
    needs=(BIAS,),
    section=SCHEME,
    pictures=(
        Picture(
            "bias-effect",
            "Without the bias",
            "Black is the model; the colour has the position bias of the scores set to its mean.",
            draw="attnscope.results.figures.panels:scheme_effect",
            of="heads",
        ),
    ),
    units="share",
)
