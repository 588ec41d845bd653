"""Images as a corpus: files, folders, Pillow's images, arrays of pixels, or what an image processor gives."""

from __future__ import annotations

import hashlib
import io
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from attnscope.read.columns import SUFFIXES as TEXT_SUFFIXES
from attnscope.read.columns import Names
from attnscope.read.files import Unchanged, file_mode, files_below, is_standard_input, shown
from attnscope.read.sources import names_a_dataset
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from torch import Tensor

    _Item = tuple[str, Path] | np.ndarray | Tensor

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_CHANNELS = (1, 3, 4)
_RGB = 3
_PROCESSED = "pixel_values"
_TO_8_BITS = 65535 / 255
_HALF = 2  # bytes
_NEAR = 1e-2  # sums of weights of 8 bits of precision
_WIDE = {"I": "whole ones of 32 bits", "F": "floats"}  # modes of Pillow's that it cuts off at 255


@dataclass(frozen=True, eq=False)
class Image:
    """One image and the name by which results refer to it."""

    # file name, path inside the given folder (with a number where another has the same), or ``image 1`` for one that
    # was given as an object
    name: str
    # RGB, ``(row, column, 3)``, of 8 bits; or what an image processor made of it, ``(channel, row, column)`` float
    pixels: np.ndarray | Tensor


class Images:
    """Named images, read one at a time as they are reached; built by `images_of`."""

    def __init__(self, items: Sequence[_Item], *, beside_text: bool = False) -> None:
        objects = [item for item in items if not isinstance(item, tuple)]
        self._items: list[tuple[str, Unchanged | np.ndarray | Tensor]] = []
        numbers = count(1)
        for item in items:
            if isinstance(item, tuple):
                self._items.append((item[0], Unchanged(item[1])))
            else:
                self._items.append((f"image {next(numbers)}", item))
        self.beside_text = beside_text and not objects

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Image]:
        for name, item in self._items:
            yield Image(name, _read(item) if isinstance(item, Unchanged) else item)

    @property
    def is_processed(self) -> bool:
        """Whether they are ``pixel_values`` already, so that no image processor is needed."""
        return all(_is_tensor(item) for _, item in self._items)

    @property
    def files(self) -> list[Path]:
        """Those of them that are files."""
        return [Path(str(item.path)) for _, item in self._items if isinstance(item, Unchanged)]

    def sha256(self) -> str:
        """Hash names and contents in order: of files their bytes, of arrays type, shape and numbers."""
        digest = hashlib.sha256(b"images")
        for name, item in self._items:
            if isinstance(item, Unchanged):
                kind, data = "file", item.read()
            else:
                array = item.cpu().numpy() if _is_tensor(item) else item
                kind, data = f"{array.dtype}{array.shape}", np.ascontiguousarray(array).tobytes()
            for part in (name.encode(), kind.encode(), data):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()


def images_of(given: Any) -> Images | None:
    """Take images in whatever form they are given; None where what is given holds no image."""
    if isinstance(given, Mapping) and _PROCESSED in given:
        given = cast("Mapping[str, Any]", given)[_PROCESSED]
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    read = [_items_of(item) for item in many]
    if not any(items for items, _ in read):
        return None
    for number, (entry, (items, _)) in enumerate(zip(many, read, strict=True), start=1):
        if not items:
            raise AttnscopeError(
                f"item {number} is {shown(str(entry))[:100]!r}, which is not an image, beside others that are: "
                f"expected images alone ({', '.join(SUFFIXES)}, or objects)"
            )
    names = Names()
    items = [
        (names.new(item[0]), item[1]) if isinstance(item, tuple) else item for several, _ in read for item in several
    ]
    if len({_is_tensor(item) for item in items}) > 1:
        raise AttnscopeError("pixel_values stand beside images that no processor has read: give either")
    return Images(items, beside_text=any(text for _, text in read))


def _is_tensor(given: object) -> TypeGuard[Tensor]:
    """Whether this is one of PyTorch's, which is not imported to ask."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def _items_of(given: Any) -> tuple[Sequence[_Item], bool]:
    """The images in one thing that was given, and whether there is text beside them."""
    if isinstance(given, Path):
        return _at(given)
    if type(given).__module__.partition(".")[0] == "PIL":
        with explaining("an image of Pillow's cannot be read", "Convert it to RGB, or leave it out"):
            return [_rgb(given)], False
    if isinstance(given, np.ndarray) or _is_tensor(given):
        return _in_array(given), False
    return [], False


def _at(path: Path) -> tuple[Sequence[_Item], bool]:
    if is_standard_input(path) or names_a_dataset(path):
        return [], False
    if not stat.S_ISDIR(file_mode(path)):
        return [(path.name, path)] if path.suffix.lower() in SUFFIXES else [], False
    files = files_below(path)
    images = [file for file in files if file.suffix.lower() in SUFFIXES]
    text = any(file.suffix.lower() in TEXT_SUFFIXES for file in files)
    return [(file.relative_to(path).as_posix(), file) for file in images], text


def _in_array(given: Tensor | np.ndarray) -> Sequence[_Item]:
    """Images in an array; none in one that has fewer dimensions, which may hold token ids."""
    if given.ndim not in (3, 4):
        return []
    several = given if given.ndim == 4 else given[None]  # noqa: PLR2004
    if _is_tensor(several):
        several = several.detach().cpu()
        # NumPy does not know all types of floats
        array = (several.float() if several.dtype.itemsize == _HALF else several).numpy()
    else:
        array = np.asarray(several)
    if array.dtype == np.uint8 and array.shape[-1] == _RGB:
        return list(array)
    if array.dtype.kind == "f" and np.allclose(array.sum(-1), 1, atol=_NEAR):
        raise AttnscopeError(
            f"rows of the array of shape {tuple(given.shape)} add up to 1, as those of attention weights: "
            "attnscope.measure_weights measures them"
        )
    if array.dtype.kind == "f" and array.shape[1] in _CHANNELS:
        import torch

        return list(torch.tensor(array))
    raise AttnscopeError(
        f"an array of shape {tuple(given.shape)} and type {given.dtype} is not an image in a known form: expected "
        "pixels (row, column, 3) of uint8, or pixel_values (image, channel, row, column) of floats"
    )


def _read(file: Unchanged) -> np.ndarray:
    """RGB pixels of a file."""
    try:
        from PIL import Image as pillow  # noqa: N813
    except ImportError as error:
        raise AttnscopeError(
            "images are read by Pillow, which is not installed: pip install 'attnscope[images]'"
        ) from error
    what, advice = f"{shown(file.path)} cannot be read as an image", "Convert it to PNG, or take it away"
    with explaining(what, advice):
        try:
            opened = pillow.open(io.BytesIO(file.read()))
        except pillow.UnidentifiedImageError as error:  # which says where in memory it lies
            raise ValueError("it is not in a form that Pillow knows, or broken at its beginning") from error
        with opened:
            return _rgb(opened)


def _rgb(image: Any) -> np.ndarray:
    """RGB pixels of one of Pillow's images, turned as its camera says; of an animation, of its first frame."""
    from PIL import ImageOps

    turned: Any = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16"):  # grey of 16 bits, which Pillow cuts off at 255
        grey = (np.asarray(turned).astype(np.float64) / _TO_8_BITS).round().astype(np.uint8)
        return np.repeat(grey[..., None], _RGB, -1)
    if turned.mode in _WIDE:
        raise ValueError(f"its numbers are {_WIDE[turned.mode]}, of which none is known to be white")
    return np.asarray(turned.convert("RGB"))
