"""Texts and chats with images or videos, as models of vision and language read them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnscope._paths import is_path
from attnscope.corpus._compressed import inner_suffix, unpacked
from attnscope.corpus._datasets import names_a_dataset
from attnscope.corpus._messages import CHAT_FIELDS
from attnscope.corpus._names import Names
from attnscope.corpus._opening import file_mode, is_standard_input, shown
from attnscope.corpus._picture_parts import IMAGE, PLACES, VIDEO, chat_of, has_pictures, sources_of
from attnscope.corpus._videos import Video, film_refused, is_film, video_of
from attnscope.corpus.file_names import holds_text
from attnscope.corpus.files import check_characters, files_below, json_objects, read_blocks
from attnscope.corpus.images import Images, images_of
from attnscope.errors import AttnscopeError

_NAMES = (b'"image', b'"video')  # how the names of fields and parts begin that hold an image or a video


@dataclass(frozen=True, eq=False)
class PicturedText:
    """A text or a chat, and its images and videos.

    Attributes
    ----------
    name
        By which results refer to it.
    text
        With ``<image>`` where an image stands and ``<video>`` where a video does, or a model's own mark for it; None
        for a chat.
    messages
        Messages of a chat: ``role`` and ``content`` each, the content a list of parts as chat templates read them.
    images
        In the order of their places.
    videos
        In the order of their places.

    Examples
    --------
    >>> (item,) = pictured_of([{"text": "<image> What is this?", "images": [np.zeros((8, 6, 3), np.uint8)]}])
    >>> item.text, [pixels.shape for pixels in item.pixels()], item.messages  # it is no chat
    ('<image> What is this?', [(8, 6, 3)], ())
    """

    name: str
    text: str | None
    messages: tuple[dict[str, Any], ...]
    images: Images
    videos: tuple[Video, ...] = ()

    def pixels(self) -> list[np.ndarray]:
        """RGB of each image, ``(row, column, 3)`` of 8 bits."""
        return [cast("np.ndarray", image.pixels) for image in self.images]


class PicturedTexts:
    """Texts with images; built by `pictured_of`.

    Attributes
    ----------
    beside_images
        Whether a folder that was given holds images too, so that it may be meant for a vision encoder.

    Examples
    --------
    >>> texts = pictured_of([{"text": "<image> What is this?", "images": [np.zeros((8, 8, 3), np.uint8)]}])
    >>> [(one.name, one.text, len(one.images)) for one in texts]
    [('text 1', '<image> What is this?', 1)]
    """

    def __init__(self, items: Sequence[PicturedText], *, beside_images: bool = False) -> None:
        self._items, self.beside_images = items, beside_images

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PicturedText]:
        return iter(self._items)

    @property
    def has_videos(self) -> bool:
        """Whether any of them has a video."""
        return any(item.videos for item in self._items)

    @property
    def files(self) -> list[Path]:
        """The files of all images."""
        return [
            file
            for item in self._items
            for images in (item.images, *(video.frames for video in item.videos))
            for file in images.files
        ]

    def sha256(self) -> str:
        """Hash names, texts and images in order.

        Examples
        --------
        >>> black, white = (np.full((8, 8, 3), value, np.uint8) for value in (0, 255))
        >>> one, two = (pictured_of([{"text": "<image>", "image": image}]) for image in (black, white))
        >>> one.sha256() == two.sha256()
        False
        """
        digest = hashlib.sha256(b"pictured")
        for item in self._items:
            parts = [item.name, item.text, item.messages, item.images.sha256()]
            parts += [(video.frames.sha256(), video.rate) for video in item.videos]
            digest.update(json.dumps(parts, default=str).encode() + b"\n")
        return digest.hexdigest()


def pictured_of(given: object, field: str | None = None) -> PicturedTexts | None:
    """Take texts with images or videos; None where what is given holds neither beside a text.

    Parameters
    ----------
    given
        Objects with ``text``, or ``messages`` (``conversations``), and with ``image`` or ``images``: paths, Pillow's
        images, or arrays of pixels ``(row, column, 3)`` of 8 bits; or with ``video`` or ``videos``, each a folder of
        frames, a list of images or an array ``(frame, row, column, 3)``, and ``fps``, their frames a second. Or a
        path of JSON Lines with such objects, of which one at least has one of these, or of a folder of them; paths in a
        file count from its own folder.
    field
        Where a field of the text is named, the text alone is read, and this gives None.

    Raises
    ------
    AttnscopeError
        A film is given, a line has no text, an image is not there or is none, or places do not agree with images or
        videos.

    Examples
    --------
    >>> pictured_of(["The tide is out."]) is None
    True
    """
    if field is not None:
        return None
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    film = next((item for item in many if isinstance(item, Path) and is_film(item) and item.is_file()), None)
    if film is not None:
        raise film_refused(film, "")
    files = [_files_at(item) if isinstance(item, Path) else [] for item in many]
    if not any(map(has_pictures, many)) and not any(
        _has_pictured_lines(file) for each in files for file, _ in each
    ):
        return None
    names = Names()
    read: list[PicturedText] = []
    for number, (item, each) in enumerate(zip(many, files, strict=True), start=1):
        if isinstance(item, Path) and not each:
            file_mode(item)
            raise _beside(item)
        for file, name in each:
            read += _in_file(file, names.new(name))
        if not isinstance(item, Path):
            read.append(_of(item, f"text {number}", None))
    folders = [item for item in many if isinstance(item, Path) and item.is_dir()]
    return PicturedTexts(read, beside_images=bool(folders) and images_of(folders) is not None)


def _files_at(path: Path) -> list[tuple[Path, str]]:
    """The JSON Lines at a path, and their names; a folder's other texts are refused once any line has an image."""
    if is_standard_input(path) or names_a_dataset(path):
        return []
    if path.is_dir():
        return [(file, file.relative_to(path).as_posix()) for file in files_below(path) if holds_text(file)]
    return [(path, path.name)] if path.is_file() else []


def _has_pictured_lines(path: Path) -> bool:
    """Whether any line names an image: lines are read as JSON only where the name of such a field is in the file."""
    if inner_suffix(path) != ".jsonl":
        return False
    before = b""
    for block in unpacked(path, read_blocks(path)):
        if any(name in before + block for name in _NAMES):
            lines = json_objects(path, "text", unpacked(path, read_blocks(path)))
            return any(has_pictures(value) for _, value in lines)
        before = block[-len(_NAMES[0]) :]
    return False


def _beside(path: Path) -> AttnscopeError:
    return AttnscopeError(f"{shown(path)} stands beside JSON Lines with images: give it by itself")


def _in_file(path: Path, name: str) -> list[PicturedText]:
    file_mode(path)
    if inner_suffix(path) != ".jsonl":
        raise _beside(path)
    return [
        _of(value, f"{name}:{number}", path.parent)
        for number, value in json_objects(path, "text", unpacked(path, read_blocks(path)))
    ]


def _of(value: object, name: str, folder: Path | None) -> PicturedText:
    if not isinstance(value, Mapping):
        raise AttnscopeError(
            f"{name}: expected an object with text or messages, as the others that have images"
        )
    named = cast("Mapping[str, Any]", value)
    text: Any = named.get("text")
    if isinstance(text, str):
        check_characters(text, name)
        messages, sources = [], {kind: sources_of(named, name, kind) for kind in (IMAGE, VIDEO)}
    elif any(named.get(field) for field in CHAT_FIELDS):
        text = None
        messages, sources = chat_of(named, name)
    else:
        raise AttnscopeError(
            f"{name}: expected a text (with {' or '.join(PLACES.values())} where one stands) or messages"
        )
    videos = tuple(video_of(source, named.get("fps"), name, folder) for source in sources[VIDEO])
    return PicturedText(name, text, tuple(messages), _images(sources[IMAGE], name, folder), videos)


def _images(sources: Sequence[Any], name: str, folder: Path | None) -> Images:
    """The images that one text names; paths in a file count from its folder."""
    paths = [_image(source, name, folder) for source in sources]
    return Images([]) if not paths else cast("Images", images_of(paths))


def _image(source: Any, name: str, folder: Path | None) -> Any:
    """One of them, if it is an image."""
    path = source
    if isinstance(source, str | Path):
        if "://" in str(source) or str(source).startswith("data:"):
            raise AttnscopeError(
                f"{name}: the image {str(source)!r:.80} is an address: fetch it, and name the file"
            )
        path = Path(source) if folder is None else folder / source
        if not is_path(path, "is_file"):
            raise AttnscopeError(f"{name}: there is no image {shown(path)[:200]}: check the path")
    try:
        images = images_of([path])
    except AttnscopeError as error:
        raise AttnscopeError(f"{name}: {error}") from error
    if images is None or len(images) != 1 or images.is_processed:
        raise AttnscopeError(
            f"{name}: found something that cannot be read as an image; expected paths (.png, .jpg, .webp), Pillow's "
            "images or arrays of pixels (row, column, 3) of uint8"
        )
    return path
