"""Videos as a corpus, for encoders without text: folders of frames, lines that name them, arrays of pixels."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnscope.read.files import files_below, inner_suffix, is_standard_input, json_objects, shown
from attnscope.read.images import SUFFIXES, Images, Media, images_of, items_of
from attnscope.read.messages import CHAT_FIELDS
from attnscope.read.picture_parts import VIDEO
from attnscope.read.sources import names_a_dataset
from attnscope.support.checks import is_path
from attnscope.support.errors import AttnscopeError

if TYPE_CHECKING:
    from torch import Tensor

_PROCESSED = ("pixel_values", "pixel_values_videos")
_ONE, _SEVERAL = 4, 5  # dimensions of one video, and of several


@dataclass(frozen=True, eq=False)
class Clip:
    """One video and its name in results."""

    # path of its folder inside the given one, file and line (``clips.jsonl:1``), or ``video 1`` for an object
    name: str
    video: Video | Tensor  # its frames, or a processor's output, ``(frame, channel, row, column)`` float


class Videos(Media[Clip]):
    """Named videos, read lazily; built by `videos_of`."""

    called = "videos"

    def __iter__(self) -> Iterator[Clip]:
        return (Clip(name, cast("Video | Tensor", video)) for name, video in self._named())

    @property
    def is_processed(self) -> bool:
        """Whether they are a processor's output, so that none is needed."""
        return not any(isinstance(video, Video) for _, video in self._items)

    @property
    def files(self) -> list[Path]:
        return [file for _, video in self._items if isinstance(video, Video) for file in video.frames.files]

    def _hashed(self, item: Video | Tensor) -> list[bytes]:
        if isinstance(item, Video):
            return [item.frames.sha256().encode()]
        array = item.numpy()
        return [f"{array.dtype}{array.shape}".encode(), np.ascontiguousarray(array).tobytes()]


def videos_of(given: Any) -> Videos | None:
    """Videos from any form; None for inputs without videos."""
    if isinstance(given, Mapping):
        mapping = cast("Mapping[str, Any]", given)
        given = next((mapping[name] for name in _PROCESSED if name in mapping), given)
    items = items_of(given, _clips_of, "a video", "videos alone (folders of frames, JSON Lines with video, or arrays)")
    if items is None:
        return None
    if len({isinstance(video, Video) for _, video in items}) > 1:
        raise AttnscopeError("found both pixel values and videos: give only one of them")
    videos = Videos(items)
    videos.note_skipped(given)
    videos.notes |= _gaps_note(items)
    return videos


def _clips_of(item: Any) -> list[tuple[str, Video | Tensor]]:
    """The videos in one input, with their names; "" for objects."""
    if isinstance(item, Path):
        return _at(item)
    if isinstance(item, Mapping):
        line = cast("Mapping[str, Any]", item)
        return [("", _named_in(line, "a video", None))] if line.get(VIDEO) is not None else []
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.Tensor):
        tensor: Any = item
        if tensor.is_floating_point() and tensor.ndim in (_ONE, _SEVERAL):
            whole = tensor.detach().cpu().float()
            return [("", video) for video in (whole if whole.ndim == _SEVERAL else whole[None])]
        item = tensor.cpu().numpy()
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (_ONE, _SEVERAL):
        several = item if item.ndim == _SEVERAL else item[None]
        return [("", video_of(frames, None, "a video", None)) for frames in several]
    return []


def _at(path: Path) -> list[tuple[str, Video | Tensor]]:
    if is_standard_input(path) or names_a_dataset(path):
        return []
    if path.is_file() and inner_suffix(path) == ".jsonl":
        with suppress(AttnscopeError):  # the reader of texts has a better message
            first = next((line for _, line in json_objects(path, VIDEO)), None)
            if first is None or VIDEO not in first or any(name in first for name in ("text", *CHAT_FIELDS)):
                return []
        each = ((f"{path.name}:{number}", line) for number, line in json_objects(path, VIDEO))
        return [(name, _named_in(line, name, path.parent)) for name, line in each]
    if is_film(path) and path.is_file():
        raise reject_film(path, "")
    if not path.is_dir():
        return []
    by_folder: dict[Path, list[Path]] = {}
    for frame in frames_in(path):
        by_folder.setdefault(frame.parent, []).append(frame)
    films = [] if by_folder else files_below(path)
    if films and all(map(is_film, films)):
        raise reject_film(films[0], "")
    clips: list[tuple[str, Video | Tensor]] = []
    for folder, frames in sorted(by_folder.items()):
        images = images_of(frames)
        if images is not None:
            name = folder.relative_to(path).as_posix() if folder != path else path.resolve().name
            clips.append((name, Video(images)))
    return clips


def _named_in(line: Mapping[str, Any], where: str, folder: Path | None) -> Video:
    source = line.get(VIDEO)
    if source is None:
        raise AttnscopeError(f"{where}: has no video, but others do: name a folder of frames, or a list")
    return video_of(source, line.get("fps"), where, folder)


_FILMS = (".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, eq=False)
class Video:
    """The frames of a video."""

    frames: Images  # in order
    rate: float | None = None  # frames a second; None if unknown

    def pixels(self) -> np.ndarray:
        """RGB of all frames, ``(frame, row, column, 3)`` of 8 bits."""
        frames = [cast("np.ndarray", image.pixels) for image in self.frames]
        sizes = sorted({frame.shape[:2] for frame in frames})
        if len(sizes) > 1:
            shapes = " and ".join(f"{rows} x {columns}" for rows, columns in sizes[:2])
            raise AttnscopeError(
                f"frames of one video have {shapes} pixels; expected one size (give images of several sizes as images)"
            )
        return np.stack(frames)


def video_of(source: Any, rate: object, where: str, folder: Path | None) -> Video:
    """The frames of one video."""
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0):
        raise AttnscopeError(f"{where}: fps is {rate!r:.40}; expected frames a second, above 0")
    if isinstance(source, str | Path):
        frames = images_of(_files(_path(source, folder), where))
    else:
        parts = list(cast("Sequence[Any]", source)) if isinstance(source, list | tuple) else [source]
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
            f"{where}: found no frames; expected a folder or a list of images ({', '.join(SUFFIXES)}), or pixels "
            "(frame, row, column, 3) of uint8"
        )
    return Video(frames, None if rate is None else float(rate))


def frames_in(folder: Path) -> list[Path]:
    """The images of a folder, by the numbers in their names: ``2.png`` is before ``10.png``."""
    files = [file for file in files_below(folder) if file.suffix.lower() in SUFFIXES]
    _reject_strays(files)

    def by_number(file: Path) -> list[tuple[int, str]]:
        parts = _NUMBERS.split(file.relative_to(folder).as_posix())
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    return sorted(files, key=by_number)


def _reject_strays(files: Sequence[Path]) -> None:
    """Reject an image without a number among numbered frames: it is no frame."""
    for folder in {file.parent for file in files}:
        of_folder = [file for file in files if file.parent == folder]
        without = [file for file in of_folder if not _NUMBERS.search(file.stem)]
        if without and len(of_folder) - len(without) > 1:
            raise AttnscopeError(
                f"{shown(without[0])[:200]} has no number, unlike the other frames of its folder: number it, or move "
                "it away"
            )


def _gaps_note(videos: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """A note on frames that are missing between the numbers of a video's files."""
    missing: list[str] = []
    for name, video in videos:
        files = video.frames.files if isinstance(video, Video) else []
        numbers = [int(digits[-1]) for file in files if (digits := _NUMBERS.findall(file.stem))]
        steps = np.diff(numbers)
        if len(steps) > 1 and steps.max() > np.median(steps) > 0:
            at = int(steps.argmax())
            missing.append(f"{name} (after {files[at].name} comes {files[at + 1].name})")
    listed = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)  # noqa: PLR2004
    return {"gaps": f"Frames seem to be missing, by their numbers, in {listed}."} if missing else {}


def is_film(path: Path) -> bool:
    """Whether a name is that of a video file."""
    return path.suffix.lower() in _FILMS


def reject_film(path: Path, where: str) -> AttnscopeError:
    """The error for a video file, with the command that extracts its frames."""
    named = f"{where}: " if where else ""
    line = "" if where else ', in a line of JSON Lines, {"text": "<video> What?", "video": "frames"}'
    return AttnscopeError(
        f"{named}{shown(path)[:200]} is a video file, which attnscope does not decode: give a folder of its frames, "
        f"for example 2 a second (mkdir frames && ffmpeg -i {shown(path.name)[:100]} -vf fps=2 frames/%05d.png){line}"
    )


def _files(path: Path, where: str) -> list[Path]:
    if is_film(path):
        raise reject_film(path, where)
    if not is_path(path, "is_dir"):
        raise AttnscopeError(f"{where}: there is no folder of frames {shown(path)[:200]}: check the path")
    return frames_in(path)


def _path(given: str | Path, folder: Path | None) -> Path:
    return Path(given) if folder is None else folder / given
