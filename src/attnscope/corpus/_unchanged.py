"""A file that is read more than once, and must hold the same each time."""

import hashlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from attnscope.corpus._opening import opened, shown
from attnscope.corpus.files import BLOCK
from attnscope.errors import AttnscopeError
from attnscope.remote import Url, stamp


class Unchanged:
    """A file whose bytes are those of its first reading, or an error before any other is handed out.

    A digest of each block is kept from the first reading on, so that memory does not grow with the file. What a
    URL names is refused before it is read where its store says that it was written anew.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("The tide is out.")
    ...     file = Unchanged(path)
    ...     print(file.read())
    ...     _ = path.write_text("The tide is in.")
    ...     file.read()
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: .../a.txt: changed while it was being read; ...
    """

    def __init__(self, path: Path | Url) -> None:
        self.path = path
        self._stamp: tuple[str, ...] | None = None
        self._digests: list[bytes] = []  # of the blocks, and at last of the nothing behind them

    def read(self) -> bytes:
        """All of it at once."""
        return b"".join(self._blocks(-1))

    def blocks(self) -> Iterator[bytes]:
        """About a megabyte at a time."""
        return self._blocks(BLOCK)

    def _blocks(self, size: int) -> Iterator[bytes]:
        self._check()
        with opened(self.path) as file:
            for number in count():
                block = file.read(size)
                digest = hashlib.sha256(block).digest()
                if number == len(self._digests):
                    self._digests.append(digest)
                elif digest != self._digests[number]:
                    raise self._changed("changed")
                if not block:
                    return
                yield block

    def _check(self) -> None:
        """Refuse at once what is known to be another file."""
        if isinstance(self.path, Path):
            if self._digests and not self.path.is_file():
                raise self._changed("is gone")
            return
        now = stamp(self.path)
        if self._stamp not in {None, now}:
            raise self._changed("changed")
        self._stamp = now

    def _changed(self, what: str) -> AttnscopeError:
        return AttnscopeError(
            f"{shown(self.path)}: {what} while it was being read; expected it to stay as it is to the end. What was "
            "written before is kept.\nGive the same command again to measure the text as it is now: that is another "
            "run, in another folder (name a new one where --out names one)"
        )
