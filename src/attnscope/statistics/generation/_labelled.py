"""Generated sequences as one labelled Dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture import layer_coordinates
from attnscope.errors import AttnscopeError
from attnscope.statistics._catalogue import EQUAL, wording
from attnscope.statistics.generation._places import PLACES
from attnscope.statistics.generation._rows import BINS, DOUBLINGS, RANGES, SPANS
from attnscope.statistics.generation._spans import OWN, START

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnscope.statistics.generation._texts import Written

    Shown = Callable[[Sequence[int]], Sequence[str]]

#: Name and unit of what no scan has.
_WORDS = {
    SPANS: ("Weight on each span", "share"),
    f"{EQUAL}{SPANS}": ("Weight on each span, of equal weights", "share"),
    f"{EQUAL}mean_offset": ("Mean offset (negative is left), of equal weights", "tokens"),
    PLACES: ("Weight on each span by the head's places alone", "share"),
    BINS: ("Weight in each bin of offsets", "share"),
    "top_key": ("Place of the key with the largest weight", "tokens"),
}


def generation_dataset(
    texts: Sequence[Written],
    shown: Shown | None = None,
    *,
    steps: int = 0,
    places: int = 0,
    source_places: int = 0,
    spans: Sequence[str] = (),
) -> xr.Dataset:
    """Label what was measured of generated sequences, one behind the other.

    Parameters
    ----------
    texts
        Texts of one model.
    shown
        From token ids to what each token is shown as; without it, tokens have ids alone.
    steps, places, source_places
        Sizes of the dimensions of the new tokens, of whole texts and of sources, at least.
    spans
        Names of spans that are there in any case, in their order.

    Raises
    ------
    AttnscopeError
        If the sequences have other layers than each other.

    Examples
    --------
    >>> from attnscope.capture import Site
    >>> from attnscope.statistics.generation import Written
    >>> sites, spans = [Site(0, "h.0.attn", "causal")], (("prompt", "own output"), np.array([[True, True]]))
    >>> def written(number, new):
    ...     return Written([5, 6], new, [], 2, number, sites, spans, {"entropy": np.ones((len(new), 1, 1))})
    >>> results = generation_dataset([written(0, [7, 8]), written(1, [9])])
    >>> results.entropy.squeeze().values.tolist()  # the second text has one token
    [[1.0, 1.0], [1.0, nan]]
    >>> results.text_token_id.values.tolist(), results.position.values.tolist()
    ([[5, 6, 7, 8], [5, 6, 9, -1]], [[1, 2], [1, -1]])
    """
    sites = texts[0].sites
    if any([site.name for site in text.sites] != [site.name for site in sites] for text in texts):
        raise AttnscopeError("generate() calls differ in their layers: watch anew for each of them")
    names_of = _merged([text.spans[0] for text in texts], spans)
    steps = max(steps, *(len(text.new) for text in texts))
    heads = max(text.measured["entropy"].shape[2] for text in texts)
    far = max(places, *(text.given + len(text.new) for text in texts))
    bins = slice(next(number for number, (_, last) in enumerate(DOUBLINGS) if -last < far), None)
    data: dict[str, Any] = {}
    for name in texts[0].measured:
        of_equal = name.startswith(EQUAL)
        along = "span" if name.endswith(SPANS) else "offset_bin" if name == BINS else ""
        more = {"": (), "span": (len(names_of),), "offset_bin": (len(DOUBLINGS[bins]),)}[along]
        array = np.full((len(texts), steps, len(sites), *(() if of_equal else (heads,)), *more), np.nan)
        for number, text in enumerate(texts):
            value = text.measured[name]
            value = value[:, :, 0] if of_equal else value
            if along != "span":
                array[number, : len(value)] = _doubled(value)[..., bins] if along else value
                continue
            names, there = text.spans
            value = np.where(there if of_equal else there[:, None], value, np.nan)
            array[number, : len(value)][..., [names_of.index(span) for span in names]] = value
        dims = ("sequence", "step", "layer", *(() if of_equal else ("head",)), *((along,) if along else ()))
        data[name] = (dims, array, _attributes(name))
    return xr.Dataset(
        data | _tokens(texts, shown, places, source_places),
        coords={
            "sequence": np.arange(len(texts)),
            "step": np.arange(steps),
            **layer_coordinates(sites),
            "head": np.arange(heads),
            "span": np.array(names_of, dtype=object),
            "offset_bin": np.array([last for _, last in DOUBLINGS[bins]]),
            "bin_first": ("offset_bin", np.array([first for first, _ in DOUBLINGS[bins]])),
            **_of_steps(texts, steps),
        },
    )


def _doubled(values: np.ndarray) -> np.ndarray:
    """From parts of doublings, the last dimension, to doublings."""
    starts = [first for first, _ in RANGES]
    return np.add.reduceat(values, [starts.index(first) for first, _ in DOUBLINGS], axis=-1)


def _merged(each: Sequence[tuple[str, ...]], known: Sequence[str]) -> list[str]:
    """The spans of all sequences in their order: what a model always has stands around those that were named."""
    last = [name for name in each[0] if name in {START, OWN}]
    named = dict.fromkeys([each[0][0], *known, *(name for names in each for name in names)])
    return [name for name in named if name not in last] + last


def _attributes(name: str) -> dict[str, str]:
    if name in _WORDS:
        long_name, units = _WORDS[name]
        return {"long_name": long_name, "units": units}
    return wording(name).attributes


def _filled(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Rows of numbers, -1 behind their ends."""
    array = np.full((len(rows), width), -1, dtype=np.int64)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array


def _named(rows: Sequence[Sequence[int]], width: int, shown: Shown) -> np.ndarray:
    """Rows of tokens as they are shown, nothing behind their ends."""
    array = np.full((len(rows), width), "", dtype=object)
    for number, row in enumerate(rows):
        known = [token for token in row if token >= 0]
        array[number, len(row) - len(known) : len(row)] = shown(known)
    return array


def _tokens(texts: Sequence[Written], shown: Shown | None, places: int, source_places: int) -> dict[str, Any]:
    """The whole texts, and how many tokens of them were there and were written."""
    counted = {"units": "tokens"}
    data: dict[str, Any] = {
        "prompt_length": ("sequence", np.array([text.given for text in texts]), counted),
        "length": ("sequence", np.array([len(text.new) for text in texts]), counted),
    }
    sides = {"text": ([text.whole for text in texts], places)}
    if any(text.source for text in texts):
        sides["source"] = ([text.source for text in texts], source_places)
    for side, (rows, least) in sides.items():
        width = max(least, *map(len, rows))
        dims = ("sequence", f"{side}_place")
        data[f"{side}_token_id"] = (dims, _filled(rows, width))
        if shown is not None:
            data[f"{side}_token"] = (dims, _named(rows, width, shown))
    return data


def _of_steps(texts: Sequence[Written], steps: int) -> dict[str, Any]:
    """Coordinates of the steps: which token was chosen, and where the token stands from which it was."""
    places = [range(text.given - 1, text.given - 1 + len(text.new)) for text in texts]
    return {
        "prompt": ("sequence", np.array([text.number for text in texts])),
        "token_id": (("sequence", "step"), _filled([text.new for text in texts], steps)),
        "position": (("sequence", "step"), _filled(places, steps)),
    }
