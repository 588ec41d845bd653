"""Texts that come one by one and only once: kept on disk, so that they can be read again."""

import struct
import weakref
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile

_IN_MEMORY = 1 << 26  # bytes: more goes to disk
_LENGTH = struct.Struct(">Q")


class Spool:
    """Strings in their order: few are held in memory, many in a file that goes with this object.

    Examples
    --------
    >>> spool = Spool()
    >>> for text in ("The tide", "is out."):
    ...     spool.add(text)
    >>> list(spool), list(spool)
    (['The tide', 'is out.'], ['The tide', 'is out.'])
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._file = SpooledTemporaryFile(max_size=in_memory)  # noqa: SIM115 it lives as long as this
        weakref.finalize(self, self._file.close)
        self._end = 0

    def add(self, text: str) -> None:
        """Keep one more."""
        data = text.encode()
        self._file.seek(self._end)
        self._file.write(_LENGTH.pack(len(data)) + data)
        self._end = self._file.tell()

    def __iter__(self) -> Iterator[str]:
        """Yield all of them; several may read at the same time."""
        place = 0
        while place < self._end:
            self._file.seek(place)
            (length,) = _LENGTH.unpack(self._file.read(_LENGTH.size))
            yield self._file.read(length).decode()
            place += _LENGTH.size + length
