"""Images as a page shows them: which of the tokens lie where on which image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.statistics.images import jpeg, jpeg_of
from attnscope.statistics.pictured._tiles import Tile, pixels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

    from attnscope.statistics.pictured._reading import Placed

_OF_IMAGES = {
    "image_first": "first token",
    "image_tokens": "tokens",
    "image_tiles": "parts read by themselves",
    "image_rows": "rows of tokens in each part",
    "image_columns": "columns of tokens in each part",
}


def image_sizes(placed: Placed, images: int) -> dict[str, Any]:
    """Where the tokens of each image of a text lie, ``(text, image)``; -1 where there is no image, or it is not known.

    Parameters
    ----------
    placed
        The text.
    images
        The most that a text has.
    """
    sizes = {name: np.full((1, images), -1) for name in _OF_IMAGES}
    for image, tokens in enumerate(placed.images):
        tiles = [tile for tile in placed.tiles if tile.image == image + 1]
        known = (tokens[0] if tokens else -1, len(tokens))
        shape = (len(tiles), tiles[0].rows, tiles[0].columns) if tiles else ()
        for name, value in zip(_OF_IMAGES, (*known, *shape), strict=False):
            sizes[name][0, image] = value
    return {
        name: (("text", "image"), sizes[name], {"long_name": f"of images: {words}", "units": ""})
        for name, words in _OF_IMAGES.items()
    }


def with_views(
    sample: xr.Dataset,
    placed: Sequence[Placed],
    originals: Sequence[Sequence[np.ndarray]],
    given: Sequence[dict[str, Any]],
    processor: Any,
) -> xr.Dataset:
    """The sample with its images.

    ``view_name``, ``view_picture`` (base64 of a JPEG), ``view_window``, ``view_rows`` and ``view_columns (view)``;
    ``view_of`` and ``view_place (window, query)`` say on which, and where in its rows, a token lies, -1 for none.
    """
    of = np.full((len(placed), sample.sizes["query"]), -1)
    place = of.copy()
    views: list[tuple[int, Tile, str]] = []
    for window, window_tiles in enumerate(placed):
        pixels = pixels_of(given[window])
        for tile in window_tiles.tiles:
            tokens = np.array([token for token in tile.tokens if token < of.shape[1]], dtype=int)
            of[window, tokens], place[window, tokens] = len(views), np.arange(len(tokens))
            picture = (
                jpeg(pixels[tile.source], processor)
                if pixels is not None and tile.source >= 0
                else jpeg_of(originals[window][tile.image - 1], tile.columns / tile.rows)
            )
            views.append((window, tile, picture))
    if not views:
        return sample
    return sample.assign_coords(
        view_of=(("window", "query"), of),
        view_place=(("window", "query"), place),
        view_name=("view", np.array([tile.name for _, tile, _ in views], dtype=object)),
        view_picture=("view", np.array([picture for _, _, picture in views], dtype=object)),
        view_window=("view", np.array([window for window, _, _ in views])),
        view_rows=("view", np.array([tile.rows for _, tile, _ in views])),
        view_columns=("view", np.array([tile.columns for _, tile, _ in views])),
    )
