"""Files below one address in an object store, in which each is whole or not there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePosixPath

from attnscope.errors import AttnscopeError
from attnscope.remote._calls import explained, patiently
from attnscope.remote._url import Url

#: Stores that show a new object only when all of it has come, and at once to everybody.
STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "memory")


class Objects:
    """A folder of an object store.

    Parameters
    ----------
    url
        Its address.
    bucket
        Whether it may be a whole bucket, which is only looked at: a run needs a folder of its own.

    Raises
    ------
    AttnscopeError
        It is of no object store, or names no folder in a bucket; or, in every call, the store refuses.

    Examples
    --------
    >>> folder = Objects(Url("memory://bucket/run"))
    >>> folder.write("pieces/a.txt", b"The tide")
    >>> folder.names(), folder.read("pieces/a.txt"), folder.read("b.txt")
    (['pieces/a.txt'], b'The tide', None)
    >>> folder.remove("pieces/a.txt")
    >>> folder.names()
    []
    """

    def __init__(self, url: Url, *, bucket: bool = False) -> None:
        if url.scheme not in STORES:
            raise AttnscopeError(
                f"{url}: no place for a run folder; expected a folder here or in an object store "
                f"({', '.join(f'{scheme}://' for scheme in STORES)})"
            )
        if len(PurePosixPath(url.inner).parts) < (1 if bucket else 2):
            expected = "a bucket" if bucket else f"bucket and folder: {url.scheme}://BUCKET/RUN"
            raise AttnscopeError(f"{url}: names no {'bucket' if bucket else 'folder'}; expected {expected}")
        self.url = url
        self.is_bucket = len(PurePosixPath(url.inner).parts) == 1
        with explained(url):
            self._store, self._path = url.place()

    def below(self, name: str) -> Objects:
        """A folder within."""
        return Objects(self.url.child(name))

    def read(self, name: str) -> bytes | None:
        """What an object holds; None where there is none."""
        with explained(self.url.child(name)), suppress(FileNotFoundError):
            return patiently(lambda: self._store.cat_file(self._at(name)))
        return None

    def write(self, name: str, content: bytes) -> None:
        """Make an object, or put it in the place of another."""
        with explained(self.url.child(name), "write"):
            patiently(lambda: self._store.pipe_file(self._at(name), content))

    def fetch(self, name: str, path: Path) -> bool:
        """Write what an object holds to a file here; False where there is none."""
        with explained(self.url.child(name)), suppress(FileNotFoundError):
            patiently(lambda: self._store.get_file(self._at(name), str(path)))
            return True
        return False

    def send(self, path: Path, name: str) -> None:
        """Make an object of a file here."""
        with explained(self.url.child(name), "write"):
            patiently(lambda: self._store.put_file(str(path), self._at(name)))

    def remove(self, name: str) -> None:
        """Take an object away, if it is there."""
        with explained(self.url.child(name), "write"), suppress(FileNotFoundError):
            patiently(lambda: self._store.rm_file(self._at(name)))

    def names(self, under: str = "") -> list[str]:
        """All objects, by their path in this folder."""
        with explained(self.url), suppress(FileNotFoundError):
            self._store.invalidate_cache()
            paths = patiently(lambda: [str(path) for path in self._store.find(self._at(under))])
            start = PurePosixPath(self._path)
            return [str(PurePosixPath(path).relative_to(start)) for path in paths if not path.endswith("/")]
        return []

    def folders(self) -> list[str]:
        """Names of the folders in it; what is in these is not listed."""
        with explained(self.url), suppress(FileNotFoundError):
            self._store.invalidate_cache()
            listed = patiently(lambda: self._store.ls(self._path, detail=True))
            return sorted(
                {PurePosixPath(entry["name"]).name for entry in listed if entry["type"] == "directory"}
            )
        return []

    def has(self, name: str) -> bool:
        """Whether there is an object or a folder of that name."""
        with explained(self.url.child(name)), suppress(FileNotFoundError):
            self._store.invalidate_cache()
            return bool(patiently(lambda: self._store.info(self._at(name))))
        return False

    def written(self, name: str) -> float | None:
        """When an object was written, in seconds by the store's own clock; None where there is none."""
        with explained(self.url.child(name)), suppress(FileNotFoundError):
            self._store.invalidate_cache()
            return float(patiently(lambda: self._store.modified(self._at(name))).timestamp())
        return None

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}".rstrip("/")
