"""Calls to a store that may fail for a moment: tried again, and told of in one line where they fail for good."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import TypeVar

from attnscope.errors import AttnscopeError, reason_of
from attnscope.remote._url import Url

WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before the second to the fifth try, more or less by half
PATIENCE = 30.0  # seconds: where libraries below try again by themselves, a few tries take as long
ANSWER = 6.0  # seconds in which a store says anything at all
_answered: set[tuple[str, str]] = set()  # stores that have
_FINAL = (
    AttnscopeError,
    ImportError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    NotImplementedError,
    AttributeError,
    TypeError,
    ValueError,
    MemoryError,
)
_FINAL_NUMBERS = (errno.EINVAL, errno.ENOSPC, errno.ENAMETOOLONG, errno.ENOSYS, errno.EPERM)
_PASSING_STATUS = (408, 425, 429)
_NO_RIGHT, _GONE = (401, 403), (404, 410)
_Result = TypeVar("_Result")


def patiently(call: Callable[[], _Result]) -> _Result:
    """Call, and call again a few times where a store or the network fails for a moment.

    Raises
    ------
    Exception
        What the last call raised, or what no other call would mend.

    Examples
    --------
    >>> patiently(lambda: "there")
    'there'
    """
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
    """The same, of a store that may be dead: libraries would ask one that says nothing for minutes.

    Raises
    ------
    AttnscopeError
        Nothing answers within `ANSWER` seconds.

    Examples
    --------
    >>> answering(lambda: "there", Url("memory://bucket/a.txt"))
    'there'
    """
    store = url.scheme, url.inner.partition("/")[0]
    if store in _answered:
        return patiently(call)
    heard: Future[_Result] = Future()

    def asked() -> _Result:
        try:
            return call()
        except Exception as error:
            known = _behind(error)
            if isinstance(known, _FINAL) or _status(known) or hasattr(known.__cause__, "response"):
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
                f"{url}: nothing answers within {ANSWER:g} seconds: check the address and the network"
            ) from None
        result = heard.result()
    _answered.add(store)
    return result


def passes(error: Exception) -> bool:
    """Whether an error may be gone at the next try.

    Examples
    --------
    >>> passes(ConnectionResetError()), passes(FileNotFoundError()), passes(OSError(errno.ENOSPC, "full"))
    (True, False, False)
    """
    error = _behind(error)
    status = _status(error)
    if status is not None:
        return status >= 500 or status in _PASSING_STATUS  # noqa: PLR2004 errors of the server
    if isinstance(error, _FINAL) or "Credentials" in type(error).__name__:
        return False
    return getattr(error, "errno", None) not in _FINAL_NUMBERS


@contextmanager
def explained(url: Url, action: str = "read") -> Generator[None]:
    """Turn whatever a store refuses into one line, without secrets.

    Parameters
    ----------
    url
        Address that is asked for.
    action
        Word for what is done there: ``"read"``, ``"write"``, ...

    Raises
    ------
    AttnscopeError
        In place of any other exception from within: the address, what was found and what to do.

    Examples
    --------
    >>> with explained(Url("s3://bucket/a.txt")):
    ...     raise FileNotFoundError("bucket/a.txt")
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: s3://bucket/a.txt: nothing is there; expected a file, or a folder of them: ...
    """
    try:
        yield
    except AttnscopeError:
        raise
    except Exception as error:  # noqa: BLE001 every store has its own kinds
        raise AttnscopeError(f"{url}: {_said(url, action, error)}") from None  # the cause may name secrets


def _said(url: Url, action: str, error: Exception) -> str:
    error = _behind(error)
    reason = url.clean(reason_of(error))
    if isinstance(error, FileNotFoundError):
        why = "" if url.name in reason else f" ({reason})"
        return f"nothing is there{why}; expected a file, or a folder of them: check the address"
    if isinstance(error, PermissionError) or _status(error) in _NO_RIGHT:
        return (
            f"no permission ({reason}): check bucket and credentials, as the store's own programs take them"
        )
    if "Credentials" in type(error).__name__:
        return (
            f"no credentials ({reason}): set them as the store's own programs take them; for a public bucket "
            f"FSSPEC_{url.scheme.upper()}='{{\"anon\": true}}'"
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no room is left on the disk here for what is fetched: set TMPDIR to a folder with more"
    if passes(error):
        return f"cannot be {'written' if action == 'write' else 'read'} ({reason}), at several tries: check the network"
    return f"cannot be {'written' if action == 'write' else 'read'} ({reason})"


def _behind(error: Exception) -> Exception:
    """Over HTTP fsspec says that nothing is there, whatever the server or the network said."""
    cause = error.__cause__
    told = isinstance(cause, OSError | TimeoutError) or type(cause).__module__.startswith("aiohttp")
    if not (isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and told):
        return error
    return error if _status(cause) in _GONE else cause


def _status(error: Exception) -> int | None:
    """Of an answer over HTTP."""
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None
