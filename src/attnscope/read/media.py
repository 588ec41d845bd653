"""Images, sounds and videos in whatever form they are given: each has a name, and is read as it is reached."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from attnscope.read.columns import Names
from attnscope.read.files import Unchanged, shown
from attnscope.support.errors import AttnscopeError

T = TypeVar("T")


class Media(Generic[T]):
    """Named files and objects of one kind."""

    called: ClassVar[str]  # the kind, in the plural

    # `beside_text`: whether a folder that was given holds texts too, so that it may be meant for a model of text
    def __init__(self, items: Sequence[tuple[str, Any]], *, beside_text: bool = False) -> None:
        self._items = [(name, Unchanged(item) if isinstance(item, Path) else item) for name, item in items]
        self.beside_text = beside_text

    def __len__(self) -> int:
        return len(self._items)

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """Each of them, read."""

    @property
    def files(self) -> list[Path]:
        """Those of them that are files."""
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
        """What is hashed of one."""


def items_of(
    given: Any, items: Callable[[Any], Sequence[tuple[str, Any]]], called: str, expected: str
) -> list[tuple[str, Any]] | None:
    """Named items in all that is given, by a function of each with "" for the names of objects; None where none is."""
    many = cast("list[Any]", given if isinstance(given, list | tuple) else [given])
    found = [items(entry) for entry in many]
    if not any(found):
        return None
    for number, (entry, of_entry) in enumerate(zip(many, found, strict=True), start=1):
        if not of_entry:
            raise AttnscopeError(
                f"item {number} is {shown(str(entry))[:100]!r}, which is not {called}, beside others that are: "
                f"expected {expected}"
            )
    names, objects = Names(), 0
    named: list[tuple[str, Any]] = []
    for name, item in (pair for of_entry in found for pair in of_entry):
        objects += not name
        named.append((names.new(name) if name else f"{called.rsplit(maxsplit=1)[-1]} {objects}", item))
    return named
