"""Attention to earlier occurrences of a token: duplicates and induction, on repeated random tokens."""

from __future__ import annotations

import numpy as np
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnscope.capture.notes import layer_coordinates
from attnscope.capture.watch import Site
from attnscope.explanation.arrays.checks import Labelled, NotDefinedError, labelled
from attnscope.explanation.inputs import interval, read_all, token_ids
from attnscope.explanation.study import Picture, Section, Study, analysis
from attnscope.kernels.call import AttentionCall
from attnscope.kernels.full import attend_in_full
from attnscope.options import Seed
from attnscope.store.arrays import padded_heads
from attnscope.support.checks import check_whole

_TOKENS, _TEXTS = 32, 16


_PLACES = {"duplicate": 0, "induction": 1}  # tokens after the earlier occurrence


REPEATED = Section(
    "repeated",
    "Repeated tokens",
    "The text is a sequence of random tokens, repeated once. A duplicate head attends from the second occurrence of a "
    "token to the first. An induction head attends to the token after the first (Olsson et al. 2022). The weight at "
    "the same position without a repetition is subtracted.",
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
            "Mean weight from a token's second occurrence to the token after the first, minus the weight at the same "
            "position without a repetition. Induction heads are near 1, purely positional heads at 0. Intervals are in "
            "the results.",
            draw="attnscope.results.figures.scan:overview",
            variable="induction",
        ),
        Picture(
            "duplicates",
            "Duplicates",
            "The same for the first occurrence itself.",
            draw="attnscope.results.figures.scan:overview",
            variable="duplicate",
        ),
    ),
    units="share",
    few_texts=True,
)
def repeated_tokens(study: Study, *, tokens: int = _TOKENS, seed: Seed | None = None) -> xr.Dataset:
    """Weight of each head from a token to its earlier occurrence, and to the token after that.

    See mathematics.md, Repeated tokens. 16 texts repeat a sequence of random tokens; 16 others have different tokens
    in their second half. The difference is the effect of the repetition. Tokens are drawn from `texts`, without
    special ones; each text begins like a window of `texts`.

    Parameters
    ----------
    tokens
        Number of repeated tokens, 2 or more; reduced if the window or the vocabulary of the texts is too small.
    seed
        Seed of the random tokens, and of the bootstrap over texts.

    Returns
    -------
    xarray.Dataset
        Dimensions ``layer, head``: ``duplicate`` and ``induction``, the mean weight from the second half to the earlier
        occurrence and to the token after it, minus that of the texts without repetition; with ``_low`` and ``_high``,
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
            f"windows of {length} tokens have room for {room} after the special ones; expected 4 or more, to repeat 2 "
            "tokens: use a larger --window"
        )
    count = min(tokens, room // 2, len(words) // 2)
    if count < 2:  # noqa: PLR2004
        raise NotDefinedError(
            f"found {len(words)} different tokens in windows of {length}; expected 4 or more, 2 to repeat and 2 as "
            "control: use more text, or a larger --window"
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
        for end, values in {"": mean, "_low": low, "_high": high, "_weight": weights.mean(1)}.items():
            variables[name + end] = labelled("layer head", values, _LABELS[name + end], "share")
    dataset = xr.Dataset(variables, layer_coordinates(twice), {"tokens": count, "texts": _TEXTS})
    dataset = dataset.assign_coords(head=np.arange(dataset.sizes["head"]))
    for name in _PLACES:
        dataset[name].attrs["signed"] = 1
    return dataset


_LABELS = {
    "duplicate": "Duplicate weight minus control",
    "duplicate_low": "Duplicate weight, lower end",
    "duplicate_high": "Duplicate weight, upper end",
    "duplicate_weight": "Duplicate weight",
    "induction": "Induction weight minus control",
    "induction_low": "Induction weight, lower end",
    "induction_high": "Induction weight, upper end",
    "induction_weight": "Induction weight",
}


def _words(study: Study) -> tuple[list[int], np.ndarray]:
    """The special tokens at the start of a window, and the different other tokens of all windows."""
    ids = token_ids(study.windows).ids.numpy()
    special = np.array([getattr(window, "special", [False] * ids.shape[1]) for window in study.windows])
    return ids[0, : int(special[0].argmin())].tolist(), np.unique(ids[~special])


def _weights(study: Study, rows: list[list[int]], count: int) -> dict[Site, Float[np.ndarray, "window head place"]]:
    """Mean weight from the second half to each of the two key positions, for every self-attention."""
    by_site: dict[Site, list[np.ndarray]] = {}

    def observe(site: Site, call: AttentionCall) -> Tensor:
        output, weights = attend_in_full(call)
        if site.kind != "cross":
            means = [
                weights.diagonal(after - count, dim1=2, dim2=3)[..., -count:].mean(-1) for after in _PLACES.values()
            ]
            by_site.setdefault(site, []).append(np.stack([mean.double().cpu().numpy() for mean in means], -1))
        return output

    read_all(study.model, token_ids(rows), observe)
    return {site: np.concatenate(parts) for site, parts in by_site.items()}
