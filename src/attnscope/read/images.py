"""Images, sounds and videos in any form; images as files, Pillow objects, arrays or pixel values."""

from __future__ import annotations

import hashlib
import io
import stat
import sys
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeGuard, TypeVar, cast

import numpy as np

from attnscope.read.files import Unchanged, file_mode, files_below, is_standard_input, shown, skipped_note
from attnscope.read.sources import SUFFIXES as TEXT_SUFFIXES
from attnscope.read.sources import Names, names_a_dataset
from attnscope.statistics.units import Repeats
from attnscope.support.checks import check_installed
from attnscope.support.errors import AttnscopeError, explaining

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")


class Media(Generic[T]):
    """Named files and objects of one kind."""

    called: ClassVar[str]  # the kind, in the plural

    # `beside_text`: whether a given folder also has texts, so that it may be meant for a language model
    def __init__(self, items: Sequence[tuple[str, Any]], *, beside_text: bool = False) -> None:
        self._items = [(name, Unchanged(item) if isinstance(item, Path) else item) for name, item in items]
        self.beside_text = beside_text
        self.notes: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._items)

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Each item, read."""

    @property
    def files(self) -> list[Path]:
        """The items that are files."""
        return [Path(str(item.path)) for _, item in self._items if isinstance(item, Unchanged)]

    def sha256(self) -> str:
        """Hash names and contents in order."""
        digest = hashlib.sha256(self.called.encode())
        for name, item in self._items:
            for part in (name.encode(), *self._hashed(item)):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    @abstractmethod
    def _hashed(self, item: Any) -> Sequence[bytes]:
        """The bytes of one item for the hash."""

    def contents(self) -> Iterator[Hashable]:
        """A hash of each item without its name."""
        return (hash(tuple(self._hashed(item))) for _, item in self._items)

    def _named(self) -> Iterator[tuple[str, Any]]:
        """Each item and its name, marked if it equals an earlier one."""
        repeats = Repeats()
        for (name, item), content in zip(self._items, self.contents(), strict=True):
            yield repeats.named(name, content), item

    def note_skipped(self, given: object) -> None:
        """Note the files of given folders that are not among these."""
        many = cast("list[object]", given if isinstance(given, list | tuple) else [given])
        folders = [entry for entry in many if isinstance(entry, Path) and entry.is_dir()]
        self.notes |= skipped_note(folders, self.files)


def items_of(
    given: Any, items: Callable[[Any], Sequence[tuple[str, Any]]], called: str, expected: str
) -> list[tuple[str, Any]] | None:
    """Named items of all inputs, by a function of each with "" for the names of objects; None without items."""
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    several = [items(entry) for entry in many]
    if not any(several):
        return None
    for number, (entry, of_entry) in enumerate(zip(many, several, strict=True), start=1):
        if not of_entry:
            raise AttnscopeError(
                f"item {number} is {shown(str(entry))[:100]!r}, which is not {called}, unlike others: expected "
                f"{expected}"
            )
    names, objects = Names(), 0
    named: list[tuple[str, Any]] = []
    for name, item in (pair for of_entry in several for pair in of_entry):
        objects += not name
        named.append((names.new(name) if name else f"{called.rsplit(maxsplit=1)[-1]} {objects}", item))
    return named


def files_at(path: Path, suffixes: Sequence[str]) -> list[tuple[str, Path]]:
    """The files with these endings at a path or in its folder, and their names."""
    if is_standard_input(path) or names_a_dataset(path):
        return []
    files = files_below(path) if stat.S_ISDIR(file_mode(path)) else [path]
    wanted = (file for file in files if file.suffix.lower() in suffixes)
    return [(path.name if file == path else file.relative_to(path).as_posix(), file) for file in wanted]


def has_files(given: Any, suffixes: Sequence[str]) -> bool:
    """Whether a given path has files with these endings."""
    many = given if isinstance(given, list | tuple) else [given]
    return any(files_at(entry, suffixes) for entry in many if isinstance(entry, Path))


SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_CHANNELS = (1, 3, 4)
_MOST_PIXELS = 50_000_000
_RGB = 3
_PROCESSED = "pixel_values"
_TO_8_BITS = 65535 / 255
_HALF = 2  # bytes
_NEAR = 1e-2  # sums of weights of 8 bits of precision
_WIDE = {"I": "32-bit integers", "F": "floats"}  # Pillow modes that it clips at 255


@dataclass(frozen=True, eq=False)
class Image:
    """One image and its name in results."""

    # file name, path inside the given folder (with a number if another has the same), or ``image 1`` for an object
    name: str
    # RGB, ``(row, column, 3)``, of 8 bits; or an image processor's output, ``(channel, row, column)`` float
    pixels: np.ndarray | Tensor


class Images(Media[Image]):
    """Named images; built by `images_of`."""

    called = "images"

    def __iter__(self) -> Iterator[Image]:
        for name, item in self._named():
            yield Image(name, _read(item) if isinstance(item, Unchanged) else item)

    @property
    def is_processed(self) -> bool:
        """Whether they are ``pixel_values``, so that no image processor is needed."""
        return all(_is_tensor(item) for _, item in self._items)

    def _hashed(self, item: Unchanged | np.ndarray | Tensor) -> tuple[bytes, bytes]:
        if isinstance(item, Unchanged):
            return b"file", item.read()
        array = item.cpu().numpy() if _is_tensor(item) else np.asarray(item)
        return f"{array.dtype}{array.shape}".encode(), np.ascontiguousarray(array).tobytes()


def images_of(given: Any) -> Images | None:
    """Images from any form; None for inputs without images."""
    if isinstance(given, Mapping) and _PROCESSED in given:
        given = cast("Mapping[str, Any]", given)[_PROCESSED]
    items = items_of(given, _items_in, "an image", f"images alone ({', '.join(SUFFIXES)}, or objects)")
    if items is None:
        return None
    objects = [item for _, item in items if not isinstance(item, Path)]
    if len({_is_tensor(item) for _, item in items}) > 1:
        raise AttnscopeError("found both pixel_values and images: give only one of them")
    images = Images(items, beside_text=not objects and has_files(given, TEXT_SUFFIXES))
    images.note_skipped(given)
    return images


def _is_tensor(given: object) -> TypeGuard[Tensor]:
    """Whether this is a PyTorch object, without importing PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def _items_in(given: Any) -> Sequence[tuple[str, Any]]:
    """The images in one input, with the names of files."""
    if isinstance(given, Path):
        return files_at(given, SUFFIXES)
    if type(given).__module__.partition(".")[0] == "PIL":
        with explaining("a Pillow image cannot be read", "Convert it to RGB, or leave it out"):
            return [("", _rgb(given))]
    if isinstance(given, np.ndarray) or _is_tensor(given):
        return [("", image) for image in _in_array(given)]
    return []


def _in_array(given: Tensor | np.ndarray) -> Sequence[Any]:
    """Images in an array; none in one with fewer dimensions, such as token ids."""
    if given.ndim not in (3, 4):
        return []
    several = given if given.ndim == 4 else given[None]  # noqa: PLR2004
    if _is_tensor(several):
        several = several.detach().cpu()
        # NumPy lacks some float types
        array = (several.float() if several.dtype.itemsize == _HALF else several).numpy()
    else:
        array = np.asarray(several)
    if array.dtype == np.uint8 and array.shape[-1] == _RGB:
        return list(array)
    if array.dtype.kind == "f" and np.allclose(array.sum(-1), 1, atol=_NEAR):
        raise AttnscopeError(
            f"rows of the array of shape {tuple(given.shape)} sum to 1, like attention weights: use "
            "attnscope.measure_weights for those"
        )
    if array.dtype.kind == "f" and array.shape[1] in _CHANNELS:
        import torch

        return list(torch.tensor(array))
    raise AttnscopeError(
        f"found an array of shape {tuple(given.shape)} and type {given.dtype}; expected an image: pixels (row, "
        "column, 3) of uint8, or pixel_values (image, channel, row, column) of floats"
    )


def _read(file: Unchanged) -> np.ndarray:
    check_installed("reading images", "PIL", "images")
    from PIL import Image as pillow  # noqa: N813

    problem, advice = f"{shown(file.path)} cannot be read as an image", "Convert it to PNG, or remove it"
    with explaining(problem, advice):
        try:
            opened = pillow.open(io.BytesIO(file.read()))
        except pillow.UnidentifiedImageError as error:  # its message has a memory address
            raise ValueError("its format is unknown to Pillow, or its beginning is damaged") from error
        with opened:
            pixels = opened.width * opened.height
            if pixels > _MOST_PIXELS:  # a small file may hold gigabytes
                raise ValueError(
                    f"it has {pixels / 1e6:,.0f} megapixels; expected at most {_MOST_PIXELS // 1_000_000}: make it "
                    "smaller"
                )
            return _rgb(opened)


def _rgb(image: Any) -> np.ndarray:
    """RGB pixels of a Pillow image, rotated by its camera data; for an animation, of its first frame."""
    from PIL import ImageOps

    turned: Any = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16"):  # grey of 16 bits, which Pillow clips at 255
        grey = (np.asarray(turned).astype(np.float64) / _TO_8_BITS).round().astype(np.uint8)
        return np.repeat(grey[..., None], _RGB, -1)
    if turned.mode in _WIDE:
        raise ValueError(f"its pixels are {_WIDE[turned.mode]} without a known value for white")
    return np.asarray(turned.convert("RGB"))
