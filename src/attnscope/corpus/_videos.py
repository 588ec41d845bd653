"""Videos as their frames: a folder of images, a list of them, or an array of pixels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnscope._paths import is_path
from attnscope.corpus._opening import shown
from attnscope.corpus.files import files_below
from attnscope.corpus.images import SUFFIXES, Images, images_of
from attnscope.errors import AttnscopeError

_FILMS = (".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, eq=False)
class Video:
    """Frames that belong together.

    Attributes
    ----------
    frames
        In order.
    rate
        Frames a second; None where it was not told.

    Examples
    --------
    >>> from attnscope.corpus import Images
    >>> Video(Images([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 6, 3), np.uint8)])).pixels()
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: frames of one video have 8 x 6 and 8 x 8 pixels: expected one size ...
    """

    frames: Images
    rate: float | None = None

    def pixels(self) -> np.ndarray:
        """RGB of all frames, ``(frame, row, column, 3)`` of 8 bits.

        Raises
        ------
        AttnscopeError
            If the frames are not all of one size.
        """
        frames = [cast("np.ndarray", image.pixels) for image in self.frames]
        sizes = sorted({frame.shape[:2] for frame in frames})
        if len(sizes) > 1:
            shapes = " and ".join(f"{rows} x {columns}" for rows, columns in sizes[:2])
            raise AttnscopeError(
                f"frames of one video have {shapes} pixels: expected one size (give images of several sizes as images)"
            )
        return np.stack(frames)


def video_of(source: Any, rate: object, where: str, folder: Path | None) -> Video:
    """Take the frames of one video.

    Parameters
    ----------
    source
        Path of a folder of frames (``.png``, ``.jpg``, ``.webp``; by the numbers in their names), a list of paths, of
        Pillow's images or of arrays ``(row, column, 3)``, or an array ``(frame, row, column, 3)`` of 8 bits.
    rate
        Frames a second, or None.
    where
        Its name, for errors.
    folder
        From which paths count; None for the working folder.

    Raises
    ------
    AttnscopeError
        If there are no frames, or it is a film, which is not decoded here.

    Examples
    --------
    >>> len(video_of(np.zeros((2, 8, 8, 3), np.uint8), None, "text 1", None).frames)
    2
    """
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0):
        raise AttnscopeError(f"{where}: fps is {rate!r:.40}; expected frames a second, above 0")
    if isinstance(source, str | Path):
        frames = images_of(_files(_path(source, folder), where))
    else:
        listed = isinstance(source, list | tuple)
        parts = list(cast("Sequence[Any]", source)) if listed else [source]
        paths = [_path(part, folder) if isinstance(part, str | Path) else part for part in parts]
        gone = next((path for path in paths if isinstance(path, Path) and not is_path(path, "is_file")), None)
        if gone is not None:
            raise AttnscopeError(f"{where}: there is no image {shown(gone)[:200]}: check the path")
        try:
            frames = images_of(paths) if paths else None
        except AttnscopeError as error:
            raise AttnscopeError(f"{where}: {error}") from error
    if frames is None or frames.is_processed:
        raise AttnscopeError(
            f"{where}: found no frames of a video; expected a folder or a list of images ({', '.join(SUFFIXES)}), or "
            "pixels (frame, row, column, 3) of uint8"
        )
    return Video(frames, None if rate is None else float(rate))


def frames_in(folder: Path) -> list[Path]:
    """The images of a folder, by the numbers in their names: ``2.png`` stands before ``10.png``."""
    files = [file for file in files_below(folder) if file.suffix.lower() in SUFFIXES]
    return sorted(files, key=lambda file: _by_number(file.relative_to(folder).as_posix()))


def is_film(path: Path) -> bool:
    """Whether a name is that of a film.

    Examples
    --------
    >>> is_film(Path("boat.MP4")), is_film(Path("boat.png"))
    (True, False)
    """
    return path.suffix.lower() in _FILMS


def film_refused(path: Path, where: str) -> AttnscopeError:
    """A film is not decoded here, and which frames a model reads of it matters: say how to take them out."""
    named = f"{where}: " if where else ""
    line = "" if where else ', in a line of JSON Lines, {"text": "<video> What?", "video": "frames"}'
    return AttnscopeError(
        f"{named}{shown(path)[:200]} is a film, which is not decoded here: give the folder of its frames, of 2 a "
        f"second for example (mkdir frames && ffmpeg -i {shown(path.name)[:100]} -vf fps=2 frames/%05d.png){line}"
    )


def _files(path: Path, where: str) -> list[Path]:
    if is_film(path):
        raise film_refused(path, where)
    if not is_path(path, "is_dir"):
        raise AttnscopeError(f"{where}: there is no folder of frames {shown(path)[:200]}: check the path")
    return frames_in(path)


def _path(given: str | Path, folder: Path | None) -> Path:
    return Path(given) if folder is None else folder / given


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(name)]
