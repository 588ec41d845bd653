"""Generated sequences as one labelled Dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from attnscope.capture import layer_coordinates
from attnscope.errors import AttnscopeError
from attnscope.statistics._catalogue import EQUAL, wording
from attnscope.statistics.generation._rows import SPANS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attnscope.statistics.generation._texts import Written

#: Name and unit of what no scan has.
_WORDS = {
    SPANS: ("Weight on each span", "share"),
    f"{EQUAL}{SPANS}": ("Weight on each span, of equal weights", "share"),
    f"{EQUAL}mean_offset": ("Mean offset (negative is left), of equal weights", "tokens"),
    "top_key": ("Place of the key with the largest weight", "tokens"),
}


def generation_dataset(
    texts: Sequence[Written], shown: Callable[[list[int]], list[str]] | None = None
) -> xr.Dataset:
    """Label what was measured of generated sequences, one behind the other.

    Parameters
    ----------
    texts
        Of one model.
    shown
        From token ids to what each token is shown as; without it, tokens have ids alone.

    Raises
    ------
    AttnscopeError
        If the sequences have other layers than each other.
    """
    sites = texts[0].sites
    if any([site.name for site in text.sites] != [site.name for site in sites] for text in texts):
        raise AttnscopeError("generate() calls differ in their layers: watch anew for each of them")
    spans = _merged([text.spans[0] for text in texts])
    steps = max(len(text.new) for text in texts)
    heads = max(text.measured["entropy"].shape[2] for text in texts)
    data: dict[str, Any] = {}
    for name in texts[0].measured:
        of_equal, along = name.startswith(EQUAL), name.endswith(SPANS)
        shape = (
            len(texts),
            steps,
            len(sites),
            *(() if of_equal else (heads,)),
            *((len(spans),) if along else ()),
        )
        array = np.full(shape, np.nan)
        for number, text in enumerate(texts):
            value = text.measured[name]
            value = value[:, :, 0] if of_equal else value
            if not along:
                array[number, : len(value)] = value
                continue
            names, there = text.spans
            there = there if of_equal else there[:, None]
            array[number, : len(value)][..., [spans.index(span) for span in names]] = np.where(
                there, value, np.nan
            )
        dims = ("sequence", "step", "layer", *(() if of_equal else ("head",)), *(("span",) if along else ()))
        data[name] = (dims, array, _attributes(name))
    return xr.Dataset(
        data | _tokens(texts),
        coords={
            "sequence": np.arange(len(texts)),
            "step": np.arange(steps),
            **layer_coordinates(sites),
            "head": np.arange(heads),
            "span": np.array(spans, dtype=object),
            **_of_steps(texts, steps, shown),
        },
    )


def _merged(names: Sequence[tuple[str, ...]]) -> list[str]:
    """The spans of all sequences in their order: what a model always has stands around those that were named."""
    named = dict.fromkeys(name for one in names for name in one)
    last = [name for name in names[0] if name in {"start", "own output"}]
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


def _tokens(texts: Sequence[Written]) -> dict[str, Any]:
    """The whole texts, and how many tokens of them were there and were written."""
    whole = [[*([-1] * (text.given - len(text.prompt))), *text.prompt, *text.new] for text in texts]
    tokens = {"units": "tokens"}
    data: dict[str, Any] = {
        "text_token_id": (("sequence", "place"), _filled(whole, max(map(len, whole)))),
        "prompt_length": ("sequence", np.array([text.given for text in texts]), tokens),
        "length": ("sequence", np.array([len(text.new) for text in texts]), tokens),
    }
    if any(text.source for text in texts):
        source = [text.source for text in texts]
        data["source_token_id"] = (("sequence", "source_place"), _filled(source, max(map(len, source))))
    return data


def _of_steps(
    texts: Sequence[Written], steps: int, shown: Callable[[list[int]], list[str]] | None
) -> dict[str, Any]:
    """Coordinates of the steps: which token was chosen, and where the token stands from which it was."""
    coords: dict[str, Any] = {
        "prompt": ("sequence", np.array([text.number for text in texts])),
        "token_id": (("sequence", "step"), _filled([text.new for text in texts], steps)),
        "position": (
            ("sequence", "step"),
            _filled([range(text.given - 1, text.given - 1 + len(text.new)) for text in texts], steps),
        ),
    }
    if shown is not None:
        tokens = np.full((len(texts), steps), "", dtype=object)
        for number, text in enumerate(texts):
            tokens[number, : len(text.new)] = shown(text.new)
        coords["token"] = (("sequence", "step"), tokens)
    return coords
