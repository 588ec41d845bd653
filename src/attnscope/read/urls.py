"""URLs of texts: fsspec copies files to this machine; errors are one line without secrets."""

from __future__ import annotations

import atexit
import errno
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import Any, TypeVar
from urllib.parse import unquote

from attnscope.support.checks import is_path
from attnscope.support.errors import AttnscopeError, reason_of

WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before the second to the fifth try, plus or minus half
PATIENCE = 30.0  # seconds: total for tries, as libraries below also retry
ANSWER = 6.0  # seconds for the first answer of a store
_answered: set[tuple[str, str]] = set()  # stores that answered
_OF_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_OF_CODE = (ImportError, NotImplementedError, AttributeError, TypeError, ValueError, MemoryError)
_FINAL = (AttnscopeError, *_OF_FILES, *_OF_CODE)
_FINAL_NUMBERS = (errno.EINVAL, errno.ENOSPC, errno.ENAMETOOLONG, errno.ENOSYS, errno.EPERM)
_PASSING_STATUS = (408, 425, 429)
_NO_RIGHT, _GONE = (401, 403), (404, 410)
_Result = TypeVar("_Result")


def patiently(call: Callable[[], _Result]) -> _Result:
    """Call, with a few retries after temporary failures of a store or the network."""
    began = time.monotonic()
    for wait in WAITS:
        try:
            return call()
        except Exception as error:
            if not passes(error) or time.monotonic() - began > PATIENCE:
                raise
        time.sleep(wait * random.uniform(0.5, 1.5))
    return call()


def answering(call: Callable[[], _Result], url: Url) -> _Result:
    """Call a store with a timeout, as libraries would wait minutes for a dead one."""
    store = url.scheme, url.inner.partition("/")[0]
    if store in _answered:
        return patiently(call)
    heard: Future[_Result] = Future()

    def asked() -> _Result:
        try:
            return call()
        except Exception as error:
            reason = _behind(error)
            if isinstance(reason, _FINAL) or _status(reason) or hasattr(reason.__cause__, "response"):
                _answered.add(store)
            raise

    def ask() -> None:
        try:
            heard.set_result(patiently(asked))
        except BaseException as error:  # noqa: BLE001 raised where it is waited for
            heard.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        result = heard.result(None if store in _answered else ANSWER)
    except FutureTimeoutError:
        if not heard.done() and store not in _answered:
            raise AttnscopeError(
                f"{url}: no answer within {ANSWER:g} seconds: check the address and the network"
            ) from None
        result = heard.result()
    _answered.add(store)
    return result


def passes(error: Exception) -> bool:
    """Whether an error may be temporary."""
    error = _behind(error)
    status = _status(error)
    if status is not None:
        return status >= 500 or status in _PASSING_STATUS  # noqa: PLR2004 errors of the server
    if isinstance(error, _FINAL) or "Credentials" in type(error).__name__:
        return False
    return getattr(error, "errno", None) not in _FINAL_NUMBERS


@contextmanager
def explained(url: Url) -> Generator[None]:
    """Turn errors of a store into one line, without secrets."""
    try:
        yield
    except AttnscopeError:
        raise
    except Exception as error:  # noqa: BLE001 every store has its own kinds
        raise AttnscopeError(f"{url}: {_said(url, error)}") from None  # the cause may name secrets


def _said(url: Url, error: Exception) -> str:
    error = _behind(error)
    reason = url.clean(reason_of(error))
    if isinstance(error, FileNotFoundError):
        why = "" if url.name in reason else f" ({reason})"
        return f"not found{why}; expected a file or a folder: check the address"
    if isinstance(error, PermissionError) or _status(error) in _NO_RIGHT:
        return f"no permission ({reason}): check bucket and credentials, in the form for the store's own programs"
    if "Credentials" in type(error).__name__:
        return (
            f"no credentials ({reason}): set them in the form for the store's own programs; for a public bucket "
            f"FSSPEC_{url.scheme.upper()}='{{\"anon\": true}}'"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full: set TMPDIR to a folder with more space"
    if passes(error):
        return f"cannot be read ({reason}), after several tries: check the network"
    return f"cannot be read ({reason})"


def _behind(error: Exception) -> Exception:
    """Whether a file is missing: over HTTP, fsspec reports every error as a missing file."""
    cause = error.__cause__
    told = isinstance(cause, OSError | TimeoutError) or type(cause).__module__.startswith("aiohttp")
    if not (isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and told):
        return error
    return error if _status(cause) in _GONE else cause


def _status(error: Exception) -> int | None:
    """The status of an HTTP response."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


_SUMS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "crc32c", "checksum")  # names in stores
_TIMES = ("LastModified", "last_modified", "Last-Modified", "updated", "mtime", "created")


@cache
def _folder() -> Path:
    folder = Path(mkdtemp(prefix="attnscope-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fetched(url: Url) -> Path:
    """A copy of the current file, removed with this process."""
    with explained(url):
        info = _info(url)
        if info["type"] == "directory":
            raise IsADirectoryError("it is a folder")
        return _copy(url, info.get("size"), str([info.get(key) for key in (*_SUMS, *_TIMES)]))


@lru_cache(256)
def _copy(url: Url, size: int | None, version: str) -> Path:  # noqa: ARG001 another version is another copy
    target = _folder() / str(len(list(_folder().iterdir())))
    store, path = url.place()

    def copy() -> None:
        store.get_file(path, str(target))
        if size is not None and target.stat().st_size < size:
            raise ConnectionError(f"it ended after {target.stat().st_size} of {size} bytes")

    patiently(copy)
    return target


def files_below(url: Url) -> list[Url] | None:
    """All files of a folder and its subfolders, in the order of `pathlib`, without hidden ones. None for a file."""
    if url.is_web:
        if url.inner.endswith("/"):
            raise AttnscopeError(f"{url}: folders on the web cannot be listed: name the files")
        return None
    with explained(url):
        if _info(url)["type"] != "directory":
            return None
        store, path = url.place()
        paths = patiently(lambda: [str(file) for file in store.find(path)])
    names = [PurePosixPath(file).relative_to(PurePosixPath(path)) for file in paths if not file.endswith("/")]
    seen = [name for name in names if name.parts and not any(part.startswith(".") for part in name.parts)]
    return [url.child(str(name)) for name in sorted(seen, key=lambda name: name.parts)]


def _info(url: Url) -> dict[str, Any]:
    store, path = url.place()
    store.invalidate_cache()  # it may be outdated
    return answering(lambda: dict(store.info(path)), url)


_FORM = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_COLLAPSED = re.compile(r"([a-z][a-z0-9+.-]+):/[^/]", re.IGNORECASE)  # a URL after pathlib
_AS_QUERY, _AS_USER = re.compile(r"\?[^\s'\"]*=[^\s'\"]*"), re.compile(r"//[^/\s@]+@")
_LONGEST = 8192  # characters of a URL with a key; a longer string is a text
_WEB = ("http", "https")
_HIDDEN = "..."


def is_url(given: object) -> bool:
    """Whether a string is a URL: one word, ``scheme://`` and more."""
    if not isinstance(given, str) or len(given) > _LONGEST or any(map(str.isspace, given)):
        return False
    return _FORM.match(given) is not None


def reject_path_of_url(path: Path) -> None:
    """Reject ``Path("s3://bucket/a.txt")``: a path has only one of the slashes."""
    match = _COLLAPSED.match(str(path))
    if match and match[1].lower() in _schemes() and not is_path(path, "exists"):
        url = Url(str(path).replace(":/", "://", 1))
        raise AttnscopeError(
            f"{str(url).replace('://', ':/', 1)} is a URL as a pathlib.Path, which drops a slash: give a string"
        )


@dataclass(frozen=True)
class Url:
    """A file or folder for fsspec, with the names of a path; as text without user, password and query."""

    address: str = field(repr=False)  # the original

    def __post_init__(self) -> None:
        if _FORM.match(self.address) is None or self.scheme not in _schemes():
            raise AttnscopeError(
                f"{self}: a URL of an unknown type; expected s3://, gs://, az://, https:// or another of fsspec's"
            )

    def __repr__(self) -> str:
        return f"Url({self})"

    def __str__(self) -> str:
        """The URL without secrets."""
        scheme, divider, rest = self.address.partition("://")
        body, query = _cut(rest, web=scheme.lower() in _WEB)
        host, slash, path = body.partition("/")
        return f"{scheme}{divider}{host.rpartition('@')[2]}{slash}{path}{'?' + _HIDDEN if query else ''}"

    @property
    def scheme(self) -> str:
        """``s3``, ``https``, ..., in lower case."""
        return self.address.partition("://")[0].lower()

    @property
    def is_web(self) -> bool:
        """Whether it is on the web, where folders cannot be listed."""
        return self.scheme in _WEB

    @property
    def inner(self) -> str:
        """The part after ``scheme://``, without query and user."""
        body, _ = _cut(self.address.partition("://")[2], web=self.is_web)
        host, slash, path = body.partition("/")
        return f"{host.rpartition('@')[2]}{slash}{unquote(path) if self.is_web else path}"

    @property
    def name(self) -> str:
        """Its last part, without a query."""
        return PurePosixPath(self.inner).name

    @property
    def suffix(self) -> str:
        """As for a path."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """As for a path."""
        return PurePosixPath(self.name).stem

    def child(self, name: str) -> Url:
        """A file below, by its path in this folder."""
        body, _ = _cut(self.address, web=self.is_web)
        return Url(f"{body.rstrip('/')}/{name}{self.address[len(body) :]}") if name else self

    def place(self) -> tuple[Any, str]:
        """The file system of fsspec, and the name in it."""
        from fsspec.core import url_to_fs

        try:
            return url_to_fs(self.address)
        except ImportError as error:
            raise AttnscopeError(f"{self}: {self.scheme}:// {self._lacking()}") from error

    def clean(self, text: str) -> str:
        """A message without the secrets of this address, in any encoding."""
        body, query = _cut(self.address.partition("://")[2], web=self.is_web)
        user = body.partition("/")[0].rpartition("@")[0]
        parts = [user, *user.split(":"), query, *(part.partition("=")[2] for part in re.split("[&#]", query))]
        secrets = {form for part in parts for form in (part, unquote(part)) if len(form) > 1}
        text = text.replace(self.address, str(self))
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return _AS_QUERY.sub("?" + _HIDDEN, _AS_USER.sub("//", text))

    def _lacking(self) -> str:
        from fsspec.registry import known_implementations

        if self.scheme in ("s3", "s3a", *_WEB):
            return "needs a package that is not installed: pip install 'attnscope[remote]'"
        return f"cannot be read: {known_implementations.get(self.scheme, {}).get('err', 'a package lacks')}"


def _cut(rest: str, *, web: bool) -> tuple[str, str]:
    """The name of the file and the query; except on the web, names may contain a question mark."""
    body, mark, query = rest.partition("?")
    if web or "=" in query:
        return body.partition("#")[0] if web else body, query
    return f"{body}{mark}{query}", ""


def _schemes() -> set[str]:
    from fsspec import available_protocols

    return {*available_protocols()}
