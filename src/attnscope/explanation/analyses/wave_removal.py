"""A test of cause: the waves held responsible taken out of the position table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.explanation.analyses.cross_spectrum import of_heads
from attnscope.explanation.analyses.interventions import CHANGED
from attnscope.explanation.passes.cause import band_removed, gain_without_band, responsible_band
from attnscope.explanation.study import BILINEAR_SCORES, POSITION_TABLE, Analysis, Picture, few_texts, studied
from attnscope.support.arguments import validated

if TYPE_CHECKING:
    import xarray as xr

    from attnscope.capture.load import Model
    from attnscope.capture.processors import Tokenizer
    from attnscope.explanation.study import Study
    from attnscope.read.encoded import Sources


@validated
def wave_removal(
    model: Model | Study | None = None,
    texts: Sources = None,
    *,
    targets: Sources = None,
    tokenizer: Tokenizer = None,
    window: int | None = None,
    limit: int | None = None,
    frequencies: tuple[int, int] | None = None,
    band: int = 10,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    """Take the waves that heads rest on out of the position table, and compare what follows with what was foretold.

    See docs/mathematics.md, Test of cause.

    Parameters
    ----------
    model, texts, targets, tokenizer, window, limit
        See `attnscope.explanation.study.study`.
    frequencies
        First and last frequency removed, cycles per window. By default
        `attnscope.explanation.passes.cause.responsible_band`:
        the narrowest band that holds half of the heads' cross-spectra.
    band, draws, seed
        See `attnscope.explanation.passes.cause.band_removed`.

    Returns
    -------
    xarray.Dataset
        As `attnscope.explanation.passes.cause.band_removed`: over ``layer, head, offset`` (tokens) ``profile_before``,
        ``profile_expected`` and ``profile_after``, the mean weights (share); over nothing ``fit`` and ``fit_chance``.

    Raises
    ------
    AttnscopeError
        If the model has no table of absolute positions, or no layer has scores that are bilinear in X; if the
        frequencies do not fit the windows, or there are fewer than two full windows.

    Examples
    --------
    >>> from attnscope.explanation.analyses.wave_removal import wave_removal
    >>> wave_removal("bundled", limit=2, band=4).profile_expected.dims
    ('layer', 'head', 'offset')
    """
    given = few_texts(model, texts, targets=targets, tokenizer=tokenizer, window=window, limit=limit)
    with studied(given, ANALYSIS):
        return _of_study(given, frequencies, band=band, limit=limit, draws=draws, seed=seed)


def _of_study(
    study: Study,
    frequencies: tuple[int, int] | None,
    *,
    band: int,
    limit: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> xr.Dataset:
    known = study.result("cross_spectrum")
    spectra = of_heads(study.evidence, None) if known is None else known
    cross = (spectra.cross_amplitude * np.exp(1j * spectra.phase)).transpose("layer", "head", "frequency")
    by_layer = {
        layer.site.index: cross.sel(layer=layer.site.index).values[: layer.heads]
        for layer in study.evidence.bilinear
    }
    chosen = frequencies or responsible_band(np.abs(np.concatenate(list(by_layer.values()))))
    gains = {layer.site.index: gain_without_band(layer.moments, *chosen) for layer in study.evidence.bilinear}
    return band_removed(
        study.model, study.first(limit), by_layer, chosen, gains=gains, band=band, draws=draws, seed=seed
    )


ANALYSIS = Analysis(
    "wave_removal",
    "Waves removed: expected and measured",
    "Test of cause",
    lambda study: _of_study(study, None, band=study.band, seed=study.seed),
    needs=(POSITION_TABLE, BILINEAR_SCORES),
    section=CHANGED,
    pictures=(
        Picture(
            "wave-removal",
            "Waves removed: expected and measured",
            (
                "The waves that these heads rest on most are taken out of the position table. Dashed is what the "
                "cross-spectrum says will follow, blue what follows; grey is before. Where the two agree and lie apart "
                "from grey, the waves are a cause."
            ),
            draw="attnscope.results.figures.panels:wave_removal",
            of="heads",
        ),
    ),
    units="weight",
)
