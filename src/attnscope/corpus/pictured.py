"""Texts and chats with images, as models of vision and language read them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from attnscope.corpus._compressed import inner_suffix, unpacked
from attnscope.corpus._messages import CHAT_FIELDS
from attnscope.corpus._opening import file_mode, is_standard_input, shown
from attnscope.corpus._picture_parts import PLACE, chat_of, has_images, sources_of
from attnscope.corpus.files import check_characters, json_objects, read_blocks
from attnscope.corpus.images import Images, images_of
from attnscope.errors import AttnscopeError

_LOOKED_AT = 100  # lines of a file, for one that has images


@dataclass(frozen=True, eq=False)
class PicturedText:
    """A text or a chat, and its images.

    Attributes
    ----------
    name
        By which results refer to it.
    text
        With ``<image>`` where an image stands, or a model's own mark for it; None for a chat.
    messages
        Of a chat: ``role`` and ``content`` each, the content a list of parts as chat templates read them.
    images
        In the order of their places.
    """

    name: str
    text: str | None
    messages: tuple[dict[str, Any], ...]
    images: Images

    def pixels(self) -> list[np.ndarray]:
        """RGB of each image, ``(row, column, 3)`` of 8 bits."""
        return [cast("np.ndarray", image.pixels) for image in self.images]


class PicturedTexts:
    """Texts with images; built by `pictured_of`.

    Examples
    --------
    >>> texts = pictured_of([{"text": "<image> What is this?", "images": [np.zeros((8, 8, 3), np.uint8)]}])
    >>> [(one.name, one.text, len(one.images)) for one in texts]
    [('text 1', '<image> What is this?', 1)]
    """

    def __init__(self, items: Sequence[PicturedText]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[PicturedText]:
        return iter(self._items)

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
            digest.update(
                json.dumps([item.name, item.text, item.messages, item.images.sha256()]).encode() + b"\n"
            )
        return digest.hexdigest()


def pictured_of(given: object, field: str | None = None) -> PicturedTexts | None:
    """Take texts with images; None where what is given holds no image beside a text.

    Parameters
    ----------
    given
        Objects with ``text``, or ``messages`` (``conversations``), and with ``image`` or ``images``: paths, Pillow's
        images, or arrays of pixels ``(row, column, 3)`` of 8 bits. Or a path of JSON Lines with such objects; paths in
        it count from its folder. It is known by its first 100 lines.
    field
        Where a field of the text is named, the text alone is read, and this gives None.

    Raises
    ------
    AttnscopeError
        A line has no text, an image is not there or is none, or places and images do not agree.

    Examples
    --------
    >>> pictured_of(["The tide is out."]) is None
    True
    """
    if field is not None:
        return None
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    files = [_has_pictured_lines(one) if isinstance(one, Path) else has_images(one) for one in many]
    if not any(files):
        return None
    found: list[PicturedText] = []
    for number, one in enumerate(many, start=1):
        if isinstance(one, Path):
            found += _in_file(one)
        else:
            found.append(_of(one, f"text {number}", None))
    return PicturedTexts(found)


def _has_pictured_lines(path: Path) -> bool:
    if is_standard_input(path) or inner_suffix(path) != ".jsonl" or not path.is_file():
        return False
    lines = json_objects(path, "text", unpacked(path, read_blocks(path)))
    return any(has_images(value) for _, value in islice(lines, _LOOKED_AT))


def _in_file(path: Path) -> list[PicturedText]:
    file_mode(path)
    if inner_suffix(path) != ".jsonl":
        raise AttnscopeError(f"{shown(path)} stands beside JSON Lines with images: give it by itself")
    return [
        _of(value, f"{shown(path.name)}:{number}", path.parent)
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
        return PicturedText(name, text, (), _images(sources_of(named, name), name, folder))
    if not any(named.get(one) for one in CHAT_FIELDS):
        raise AttnscopeError(f"{name}: expected a text (with {PLACE} where an image stands) or messages")
    messages, sources = chat_of(named, name)
    return PicturedText(name, None, tuple(messages), _images(sources, name, folder))


def _images(sources: Sequence[Any], name: str, folder: Path | None) -> Images:
    """The images that one text names; paths in a file count from its folder."""
    found: list[Any] = []
    for source in sources:
        if isinstance(source, str | Path):
            if "://" in str(source):
                raise AttnscopeError(
                    f"{name}: the image {source!s:.80} is an address: fetch it, and name the file"
                )
            path = Path(source) if folder is None else folder / source
            if not path.is_file():
                raise AttnscopeError(f"{name}: there is no image {shown(path)}: check the path")
            found.append(path)
        else:
            found.append(source)
    images = images_of(found) if found else Images([])
    if images is None or len(images) != len(found) or (found and images.is_processed):
        raise AttnscopeError(
            f"{name}: found what is no image that can be read here; expected paths (.png, .jpg, .webp), Pillow's "
            "images or arrays of pixels (row, column, 3) of uint8"
        )
    return images
