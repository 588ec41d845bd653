"""Who may write to a folder of an object store: one process at a time, for as long as it says that it lives."""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from contextlib import suppress

from attnscope.errors import AttnscopeError
from attnscope.remote._objects import Objects

#: Seconds after which a process that has said nothing counts as dead.
LEASE = float(os.environ.get("ATTNSCOPE_LEASE_SECONDS", "60"))
_CLAIMS = ".attnscope/claims"
_TIES = 5
_log = logging.getLogger("attnscope")


class Lease:
    """The right to write, held while a claim of this process lies in the folder.

    A process writes its claim, an object with a name of its own, and then lists all claims. If there is another, it
    takes its own back. As stores list every object that was written before, two processes never hold a folder together:
    of two, the one that lists last sees the other. A claim is written again every sixth of a lease. One that was
    not, for a whole lease by the store's own clock, is of a dead process and is removed.

    Parameters
    ----------
    objects
        The folder.

    Raises
    ------
    AttnscopeError
        On `take`, if another process holds it and lives; on `check`, if this one was taken for dead.

    Examples
    --------
    >>> from attnscope.remote import Url
    >>> folder = Objects(Url("memory://bucket/leased"))
    >>> lease = Lease(folder)
    >>> lease.take()
    >>> len(folder.names())
    1
    >>> lease.give_back()
    >>> folder.names()
    []
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._name = f"{_CLAIMS}/{secrets.token_hex(16)}"
        self._ended: threading.Event | None = None
        self._lost = False

    def take(self) -> None:
        """Become the one that writes; wait for a dead one's claim to end."""
        for _ in range(_TIES):
            self._wait_for_others()
            self._claim()
            if not self._others():
                self._ended = threading.Event()
                threading.Thread(target=self._renew, args=(self._ended,), daemon=True).start()
                return
            self._objects.remove(self._name)
            time.sleep(random.uniform(0, 1))  # two that came together: the one that wakes first has it
        raise self._held()

    def check(self) -> None:
        """Make sure that nobody has taken this process for dead, as after a long sleep of the machine."""
        if self._lost or self._objects.written(self._name) is None:
            raise HeldError(
                f"{self._objects.url}: this process said nothing for a while, and another may write there now: give "
                "the same command again"
            )

    def give_back(self) -> None:
        """Let others write."""
        if self._ended is not None:
            self._ended.set()
            self._ended = None
            with suppress(AttnscopeError):  # it ends by itself
                self._objects.remove(self._name)

    def _claim(self) -> None:
        self._objects.write(self._name, b"{}")

    def _renew(self, ended: threading.Event) -> None:
        said = _clock()
        while not ended.wait(LEASE / 6):
            now = _clock()
            if now - said > LEASE * 3 / 4:  # another may be taking it: what it removes must not come back
                self._lost = True
                return
            with suppress(AttnscopeError):
                self._claim()
                said = now
        with suppress(AttnscopeError):  # it may have been on its way when it was given back
            self._objects.remove(self._name)

    def _others(self) -> list[str]:
        return [name for name in self._objects.names(_CLAIMS) if name != self._name]

    def _wait_for_others(self) -> None:
        """Until there is no claim, or one is renewed: its process lives."""
        first = {name: self._objects.written(name) for name in self._others()}
        if not first:
            return
        _log.warning(
            "%s: another command has been writing there; waiting at most %g seconds to see whether it lives",
            self._objects.url,
            LEASE,
        )
        now = self._now()
        ends = {
            name: time.monotonic() + LEASE - max(0, now - (written or now)) for name, written in first.items()
        }
        while ends:
            for name in [*ends]:
                written = self._objects.written(name)
                if written not in {None, first[name]}:  # the store's clock may have been set back
                    raise self._held()
                if written is None or time.monotonic() > ends[name]:
                    self._objects.remove(name)
                    del ends[name]
            time.sleep(min(1.0, LEASE / 6) if ends else 0)

    def _now(self) -> float:
        """The time by the store's own clock."""
        name = f".attnscope/now-{secrets.token_hex(16)}"
        self._objects.write(name, b"")
        written = self._objects.written(name)
        self._objects.remove(name)
        return time.time() if written is None else written

    def _held(self) -> AttnscopeError:
        return HeldError(
            f"another command is writing to {self._objects.url}: wait for it, or choose another folder with --out"
        )


def _clock() -> float:
    """Seconds that go on while the machine sleeps, where it can tell."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeldError(AttnscopeError):
    """Another process is writing to a folder of an object store.

    Examples
    --------
    >>> from attnscope.remote import Url
    >>> folder = Objects(Url("memory://bucket/held"))
    >>> lease = Lease(folder)
    >>> lease.take()
    >>> (claim,) = folder.names()
    >>> folder.remove(claim)  # another process took this one for dead
    >>> lease.check()
    Traceback (most recent call last):
    ...
    attnscope.remote._lease.HeldError: memory://bucket/held: this process said nothing for a while, ...
    >>> lease.give_back()
    """
