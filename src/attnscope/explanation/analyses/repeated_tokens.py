"""What a head does with a token that occurred before: duplicates and induction, on repeated random tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.explanation.arrays.checks import Labelled, NotDefinedError, labelled
from attnscope.explanation.inputs import interval, read_all, token_ids
from attnscope.explanation.study import Picture, Section, analysis
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.engines import attend_in_full
from attnscope.store.arrays import padded_heads
from attnscope.support.arguments import Seed
from attnscope.support.checks import check_whole

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from attnscope.explanation.study import Study

_TOKENS, _TEXTS = 32, 16


_PLACES = {"duplicate": 0, "induction": 1}  # tokens after the earlier occurrence


REPEATED = Section(
    "repeated",
    "Tokens said twice",
    "Random tokens, and the same again: nothing but the repetition tells where to look. A head that looks"
    " from the second occurrence to the first matches duplicates; one that looks to the token after it "
    "expects what came next (induction, Olsson et al. 2022). What such a head gives to the same place "
    "where other tokens stand there, by position alone, is taken off.",
)


@analysis(
    "repeated_tokens",
    "Duplicates and induction",
    "Repeated tokens",
    section=REPEATED,
    pictures=(
        Picture(
            "induction",
            "Induction",
            "Mean weight from a token's second occurrence to the token after the first, less what the same place gets "
            "where nothing is repeated. An induction head has nearly 1, a head that goes by position alone 0. The "
            "intervals over texts stand in the results.",
            draw="attnscope.results.figures.scan:overview",
            variable="induction",
        ),
        Picture(
            "duplicates",
            "Duplicates",
            "The same of the first occurrence itself.",
            draw="attnscope.results.figures.scan:overview",
            variable="duplicate",
        ),
    ),
    units="share",
    few_texts=True,
)
def repeated_tokens(study: Study, *, tokens: int = _TOKENS, seed: Seed | None = None) -> xr.Dataset:
    """Weight of each head from a token to its earlier occurrence, and to the token after that.

    See mathematics.md, Repeated tokens. 16 texts of random tokens, each sequence twice, beside 16 whose second
    half has other tokens: the difference is the effect of the repetition. Tokens are drawn from those of `texts`,
    without the special ones; each text begins as a window of `texts` does.

    Parameters
    ----------
    tokens
        Number of repeated tokens, 2 or more; fewer if a window has no room for them, or the texts have fewer.
    seed
        Seed of the random tokens, and of the bootstrap over texts.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head``: ``duplicate`` and ``induction``, the mean weight from the second half to the earlier
        occurrence and to the token after it, less that of the texts without repetition; with ``_low`` and ``_high``,
        the 95% interval of the bootstrap over texts, and ``_weight``, the weight itself.

    References
    ----------
    Olsson et al. (2022), In-context learning and induction heads. Elhage et al. (2021), A mathematical framework for
    Transformer circuits.
    """
    check_whole(2, tokens=tokens)
    seed = study.seed if seed is None else seed
    start, words = _words(study)
    length = len(study.windows[0])
    room = length - len(start)
    if room < 4:  # noqa: PLR2004
        raise NotDefinedError(
            f"windows of {length} tokens have room for {room} after the special ones; expected 4 or more, to say two "
            "tokens twice: give a larger --window"
        )
    count = min(tokens, room // 2, len(words) // 2)
    if count < 2:  # noqa: PLR2004
        raise NotDefinedError(
            f"found {len(words)} different tokens in windows of {length}; expected 4 or more, to say two of "
            "them twice beside two others: give more text, or a larger --window"
        )
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(words)[: 2 * count].tolist() for _ in range(_TEXTS)]
    twice = _weights(study, [[*start, *half[:count], *half[:count]] for half in drawn], count)
    once = _weights(study, [[*start, *half] for half in drawn], count)
    variables: dict[str, Labelled] = {}
    for number, name in enumerate(_PLACES):
        weights = padded_heads([twice[site][:, :, number] for site in twice], axis=1)  # layer, text, head
        beside = padded_heads([once[site][:, :, number] for site in once], axis=1)
        mean, low, high = interval(np.moveaxis(weights - beside, 1, 0), range(_TEXTS), seed=seed)
        of_heads = {"": mean, "_low": low, "_high": high, "_weight": weights.mean(1)}
        for end, values in of_heads.items():
            variables[name + end] = labelled("layer head", values, f"Weight on the {name} place{_SAYS[end]}", "share")
    places = layer_coordinates(twice)
    made = xr.Dataset(variables, places, {"tokens": count, "texts": _TEXTS})
    made = made.assign_coords(head=np.arange(made.sizes["head"]))
    for name in _PLACES:
        made[name].attrs["signed"] = 1
    return made


_SAYS = {"": ", by the repetition", "_low": ", lower end", "_high": ", upper end", "_weight": ""}


def _words(study: Study) -> tuple[list[int], np.ndarray]:
    """The special tokens that a window begins with, and the different tokens of all windows but those."""
    ids = token_ids(study.windows).ids.numpy()
    special = np.array([getattr(window, "special", [False] * ids.shape[1]) for window in study.windows])
    begins = int(special[0].argmin())
    return ids[0, :begins].tolist(), np.unique(ids[~special])


def _weights(study: Study, rows: list[list[int]], count: int) -> dict[Site, Float[np.ndarray, "window head place"]]:
    """Mean weight from the second half to each place, of every self-attention."""
    by_site: dict[Site, list[np.ndarray]] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, weights = attend_in_full(call)
        if site.kind != "cross":
            places = [
                weights.diagonal(after - count, dim1=2, dim2=3)[..., -count:].mean(-1) for after in _PLACES.values()
            ]
            by_site.setdefault(site, []).append(np.stack([place.double().cpu().numpy() for place in places], -1))
        return output

    read_all(study.model, token_ids(rows), observe)
    return {site: np.concatenate(parts) for site, parts in by_site.items()}
