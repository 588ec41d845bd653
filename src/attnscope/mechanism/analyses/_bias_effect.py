"""Without the bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._arguments import typed
from attnscope.mechanism._analysis import Analysis, Picture
from attnscope.mechanism._needs import BIAS
from attnscope.mechanism._study import few_texts, studied
from attnscope.mechanism.analyses._rotation_effect import SCHEME
from attnscope.mechanism.passes import bias_effect as of_model

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture import Model, Tokenizer
    from attnscope.corpus import Sources
    from attnscope.mechanism._study import Study


@typed
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
        See `attnscope.mechanism.study`.
    band, draws, seed
        See `attnscope.mechanism.passes.bias_effect`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.mechanism.passes.bias_effect`: over ``variant, layer, head, offset`` (tokens) ``profile``, the
        mean weight (share), and ``effect``, the model's less the variant's.

    Raises
    ------
    AttnscopeError
        If no bias by distance is added to the scores; if there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope import mechanism
    >>> from transformers import T5Config, T5EncoderModel
    >>> config = T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=9)
    >>> effects = mechanism.bias_effect(T5EncoderModel(config).eval(), [[5, 6, 7, 8], [8, 5, 6, 5]], band=2)
    >>> effects.variant.values.tolist(), effects.effect.dims
    (['model', 'without_bias'], ('variant', 'layer', 'head', 'offset'))

    A model without such a bias is refused:

    >>> mechanism.bias_effect("bundled", limit=2)
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: bias_effect is not defined for small-mlm: no bias is added to the scores. Choose \
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
            draw="attnscope.figures.explain:scheme_effect",
            of="heads",
        ),
    ),
    units="share",
)
