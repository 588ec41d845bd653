"""What passes is tried again, what does not is told of at once."""

import errno
import threading
import time

import pytest

from attnscope import AttnscopeError
from attnscope.read import urls as _calls
from attnscope.read.urls import Url, explained, patiently


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(_calls, "WAITS", (0, 0, 0))


class _AnsweredError(Exception):
    def __init__(self, status):
        super().__init__(f"answered {status}")
        self.status = status


class _NoCredentialsError(Exception):
    pass


def failing(error, times):
    calls = []

    def call():
        calls.append(error)
        if len(calls) <= times:
            raise error
        return "there"

    return call, calls


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(), TimeoutError(), OSError(errno.EBUSY, "slow down"), *map(_AnsweredError, (429, 500, 503))],
)
def test_what_passes_is_tried_four_times(error):
    call, calls = failing(error, 3)
    assert patiently(call) == "there"
    assert len(calls) == 4
    with pytest.raises(type(error)):
        patiently(failing(error, 4)[0])


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EINVAL, "no such region"),
        _AnsweredError(404),
        _NoCredentialsError("no key"),
        AttnscopeError("known"),
    ],
)
def test_what_does_not_pass_is_tried_once(error):
    call, calls = failing(error, 1)
    with pytest.raises(type(error)):
        patiently(call)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError("The specified bucket does not exist"), "not found .*bucket does not exist"),
        (PermissionError("Forbidden"), "no permission"),
        (_AnsweredError(403), "no permission"),
        (_NoCredentialsError("Unable to locate credentials"), "no credentials .*FSSPEC_S3"),
        (ConnectionResetError("reset by peer"), "reset by peer.*check the network"),
        (OSError(errno.ENOSPC, "No space left"), "TMPDIR"),
        (ValueError("odd"), "cannot be read"),
    ],
)
def test_every_refusal_is_one_line_without_secrets(error, says):
    url = Url("s3://user:pa55word@bucket/a.txt")
    error.args = (*error.args[:-1], f"{error.args[-1]} s3://user:pa55word@bucket\nsecond line") if error.args else ()
    with pytest.raises(AttnscopeError, match=says) as told, explained(url):
        raise error
    assert "\n" not in str(told.value)
    assert "pa55word" not in str(told.value)
    assert told.value.__cause__ is None


def test_a_store_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(_calls, "ANSWER", 0.05)
    monkeypatch.setattr(_calls, "_answered", set())
    never = threading.Event()
    with pytest.raises(AttnscopeError, match=r"memory://dead/a\.txt: no answer within 0\.05 seconds"):
        _calls.answering(never.wait, Url("memory://dead/a.txt"))
    never.set()


def test_a_store_that_has_answered_may_take_its_time(monkeypatch):
    monkeypatch.setattr(_calls, "ANSWER", 0.05)
    monkeypatch.setattr(_calls, "_answered", set())
    with pytest.raises(FileNotFoundError):
        _calls.answering(failing(FileNotFoundError(), 1)[0], Url("memory://slow/a.txt"))
    assert _calls.answering(lambda: time.sleep(0.1) or "there", Url("memory://slow/b.txt")) == "there"
