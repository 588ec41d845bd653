"""Images as a page shows them: which of the tokens lie where on which image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.corpus import IMAGE, VIDEO
from attnscope.statistics.images import jpeg, jpeg_of
from attnscope.statistics.pictured._tiles import Tile, pixels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xarray as xr

    from attnscope.corpus import PicturedText
    from attnscope.statistics.pictured._reading import Placed

_OF_IMAGES = {
    "image_first": "first token",
    "image_tokens": "tokens",
    "image_tiles": "parts read by themselves",
    "image_rows": "rows of tokens in each part",
    "image_columns": "columns of tokens in each part",
}


_OF_VIDEOS = {
    "video_first": "first token",
    "video_tokens": "tokens",
    "video_frames": "frames that are read by themselves",
    "video_rows": "rows of tokens in each frame",
    "video_columns": "columns of tokens in each frame",
}


def picture_sizes(placed: Placed, images: int, videos: int) -> dict[str, Any]:
    """Where the tokens of each image and video of a text lie; -1 where there is none, or it is not known.

    Parameters
    ----------
    placed
        The text.
    images, videos
        The most that a text has.
    """
    of_images = _sizes(placed, IMAGE, placed.images, images, _OF_IMAGES) if images else {}
    return of_images | (_sizes(placed, VIDEO, placed.videos, videos, _OF_VIDEOS) if videos else {})


def _sizes(
    placed: Placed, kind: str, pieces: list[list[int]], most: int, named: dict[str, str]
) -> dict[str, Any]:
    """Of one kind, ``(text, image)`` or ``(text, video)``."""
    sizes = {name: np.full((1, most), -1) for name in named}
    for image, tokens in enumerate(pieces):
        tiles = [tile for tile in placed.tiles if (tile.kind, tile.image) == (kind, image + 1)]
        known = (tokens[0] if tokens else -1, len(tokens))
        shape = (len(tiles), tiles[0].rows, tiles[0].columns) if tiles else ()
        for name, value in zip(named, (*known, *shape), strict=False):
            sizes[name][0, image] = value
    return {
        name: (("text", kind), sizes[name], {"long_name": f"of {kind}s: {words}", "units": ""})
        for name, words in named.items()
    }


def with_views(
    sample: xr.Dataset,
    placed: Sequence[Placed],
    texts: Sequence[PicturedText],
    given: Sequence[dict[str, Any]],
    processors: dict[str, Any],
) -> xr.Dataset:
    """The sample with its images.

    ``view_name``, ``view_picture`` (base64 of a JPEG), ``view_window``, ``view_rows`` and ``view_columns (view)``;
    ``view_of`` and ``view_place (window, query)`` say on which, and where in its rows, a token lies, -1 for none.

    Parameters
    ----------
    sample
        Attention of a few windows, as the run keeps it.
    placed
        Images and frames in each window, and where they are among its tokens.
    texts
        Texts of these windows, with their images.
    given
        Arguments of the model's forward pass, of each window.
    processors
        Image processors, by the kind of tile.

    Examples
    --------
    >>> import torch
    >>> import xarray as xr
    >>> from attnscope.corpus import Window, pictured_of
    >>> from attnscope.statistics.pictured import Placed, Tile
    >>> window = Window((9, 9, 3), (False,) * 3, ((0, 1), (1, 2), (2, 3)), "text 1", 0, ("", "", "a"))
    >>> placed = Placed(window, [[0, 1]], [], (Tile(1, 0, 1, 2, (0, 1), 0),))
    >>> sample = xr.Dataset({"weight": (("window", "query"), np.zeros((1, 3)))})
    >>> given = {"pixel_values": torch.rand(1, 3, 4, 8)}
    >>> texts = pictured_of([{"text": "<image>a", "images": [np.zeros((4, 8, 3), np.uint8)]}])
    >>> shown = with_views(sample, [placed], list(texts), [given], {"image": None})
    >>> shown.view_name.values.tolist(), shown.view_of.values.tolist(), shown.view_place.values.tolist()
    (['image 1'], [[0, 0, -1]], [[0, 1, -1]])
    """
    of = np.full((len(placed), sample.sizes["query"]), -1)
    place = of.copy()
    views: list[tuple[int, Tile, str]] = []
    for window, window_tiles in enumerate(placed):
        for tile in window_tiles.tiles:
            tokens = np.array([token for token in tile.tokens if token < of.shape[1]], dtype=int)
            of[window, tokens], place[window, tokens] = len(views), np.arange(len(tokens))
            pixels = pixels_of(given[window], tile.key)
            picture = (
                jpeg(pixels[tile.source], processors[tile.kind])
                if pixels is not None and tile.source >= 0
                else jpeg_of(_original(texts[window], window_tiles, tile), tile.columns / tile.rows)
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


def _original(text: PicturedText, placed: Placed, tile: Tile) -> np.ndarray:
    """What was given of a tile: an image, or of a video the first of the frames that are read in one."""
    if tile.kind == IMAGE:
        return text.pixels()[tile.image - 1]
    frames = text.videos[tile.image - 1].pixels()
    steps = sum((other.kind, other.image) == (VIDEO, tile.image) for other in placed.tiles)
    together = -(-len(frames) // steps)
    return frames[min(len(frames) - 1, (tile.number - 1) * together)]
