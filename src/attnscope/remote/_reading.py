"""Reading what lies in an object store or on the web: a few megabytes at a time, and again where the line breaks."""

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from attnscope.errors import AttnscopeError
from attnscope.remote._calls import answering, explained, patiently
from attnscope.remote._url import Url

BLOCK = 4 << 20  # bytes of one request
_SUMS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "crc32c", "checksum")
_TIMES = ("LastModified", "last_modified", "Last-Modified", "updated", "mtime", "created")


def stamp(url: Url) -> tuple[str, ...]:
    """What changes when a file is written anew: its size, with the store's checksum or else the time of writing.

    Raises
    ------
    AttnscopeError
        It cannot be read.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe_file("/stamp/a.txt", b"The tide")
    >>> stamp(Url("memory://stamp/a.txt"))[0]
    '8'
    """
    with explained(url):
        return _stamp(_info(url))


def files_below(url: Url) -> list[Url] | None:
    """All files of a folder and its subfolders, in the order of `pathlib`; hidden ones are left out. None of a file.

    Raises
    ------
    AttnscopeError
        There is nothing, or it cannot be listed.

    Examples
    --------
    >>> import fsspec
    >>> store = fsspec.filesystem("memory")
    >>> for name in ("b/c.txt", "b.txt", ".hidden/d.txt"):
    ...     store.pipe_file(f"/below/{name}", b"The tide")
    >>> [file.name for file in files_below(Url("memory://below"))], files_below(Url("memory://below/b.txt"))
    (['c.txt', 'b.txt'], None)
    """
    if url.is_web:
        if url.inner.endswith("/"):
            raise AttnscopeError(
                f"{url}: a folder of the web, which cannot be listed: name the files themselves"
            )
        return None
    with explained(url):
        if _info(url)["type"] != "directory":
            return None
        store, path = url.place()
        paths = patiently(lambda: [str(file) for file in store.find(path)])
    names = [PurePosixPath(file).relative_to(PurePosixPath(path)) for file in paths if not file.endswith("/")]
    seen = [name for name in names if name.parts and not any(part.startswith(".") for part in name.parts)]
    return [url.child(str(name)) for name in sorted(seen, key=lambda name: name.parts)]


@contextmanager
def opened(url: Url) -> Generator[BinaryIO]:
    """Open a file to read bytes, and to seek where the store can.

    Raises
    ------
    AttnscopeError
        It cannot be read, or changes while it is read.

    Examples
    --------
    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe_file("/opened/a.txt", b"The tide")
    >>> with opened(Url("memory://opened/a.txt")) as file:
    ...     file.read()
    b'The tide'
    """
    with explained(url):
        raw = _Raw(url)
    with io.BufferedReader(raw, BLOCK) as file:
        yield cast("BinaryIO", file)


class _Raw(io.RawIOBase):
    """A file that is opened again, where it was left, when reading fails for a moment."""

    def __init__(self, url: Url) -> None:
        self._url, self._at = url, 0
        self._file: Any = None
        self._failed = False
        self._info = _info(url)
        self._streams = url.is_web and not self._info.get("partial")  # a server that gives no parts of files
        if self._info["type"] == "directory":
            raise IsADirectoryError("it is a folder")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        with explained(self._url):
            return not self._streams and bool(patiently(self._ready).seekable())

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        size = self._info.get("size") or 0
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: size}[whence]
        if self._file is not None:
            self._file.seek(self._at)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        room = memoryview(buffer).cast("B")
        data = self._some(len(room))
        room[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._some(BLOCK), b""))

    def close(self) -> None:
        self._drop()
        super().close()

    def _some(self, size: int) -> bytes:
        with explained(self._url):
            return patiently(lambda: self._read(size))

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._ready().read(size)
            self._refuse_early_end(data)
        except Exception:
            self._drop()
            self._failed = True
            raise
        self._at += len(data)
        return data

    def _refuse_early_end(self, data: bytes) -> None:
        whole = self._info.get("size")
        if not data and whole is not None and self._at < whole:
            raise ConnectionError(f"it ended after {self._at} of {whole} bytes")

    def _ready(self) -> Any:
        """The file at the place that was reached; another file than before is refused."""
        if self._file is None:
            self._file = self._open()
        return self._file

    def _open(self) -> Any:
        if self._failed:
            again = _info(self._url)
            if _stamp(again) != _stamp(self._info):
                raise AttnscopeError(
                    f"{self._url}: changed while it was being read; expected it to stay as it is to the end. Give the "
                    "same command again"
                )
        store, path = self._url.place()
        file = store.open(path, "rb", cache_type="none", **({"block_size": 0} if self._streams else {}))
        try:
            if not self._streams and file.seekable():
                file.seek(self._at)
            else:
                _pass_over(file, self._at)
        except BaseException:
            file.close()
            raise
        return file

    def _drop(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.close()
            self._file = None


def _pass_over(file: Any, size: int) -> None:
    while size and (passed := file.read(min(size, BLOCK))):
        size -= len(passed)
    if size:
        raise ConnectionError(f"it ended {size} bytes before the place that was reached")


def _info(url: Url) -> dict[str, Any]:
    store, path = url.place()
    store.invalidate_cache()  # which would remember what was there
    return answering(lambda: dict(store.info(path)), url)


def _stamp(info: dict[str, Any]) -> tuple[str, ...]:
    sums = [str(info[key]) for key in _SUMS if info.get(key)]
    return str(info.get("size")), *(sums or [str(info[key]) for key in _TIMES if info.get(key)])
