"""One process writes: of two the living one, and of the dead none."""

import threading

import fsspec
import pytest

from attnscope.remote import HeldError, Lease, Objects, Url, _lease


@pytest.fixture
def folder(monkeypatch):
    monkeypatch.setattr(_lease, "LEASE", 0.6)
    yield Objects(Url("memory://bucket/lease"))
    store = fsspec.filesystem("memory").store
    for name in [name for name in store if name.startswith("/bucket/lease/")]:
        del store[name]


def test_who_lives_is_left_in_peace(folder):
    first, second = Lease(folder), Lease(folder)
    first.take()
    with pytest.raises(HeldError, match="another command is writing to memory://bucket/lease"):
        second.take()
    first.check()
    first.give_back()
    second.take()
    second.check()
    second.give_back()
    assert folder.names() == []


def test_who_is_dead_is_followed_after_a_lease(folder):
    dead, living = Lease(folder), Lease(folder)
    dead._claim()  # and never again
    living.take()
    with pytest.raises(HeldError, match="said nothing"):
        dead.check()
    living.check()
    living.give_back()


def test_who_lives_is_left_in_peace_where_the_clock_of_the_store_goes_backwards(folder, monkeypatch):
    written = Objects.written

    def backwards(objects, name):
        then = written(objects, name)
        return None if then is None else -then

    monkeypatch.setattr(Objects, "written", backwards)
    first, second = Lease(folder), Lease(folder)
    first.take()
    with pytest.raises(HeldError, match="another command is writing"):
        second.take()
    first.check()
    first.give_back()


def test_of_many_at_once_one_holds_at_a_time(folder):
    holding, most, had = [], [], []

    def work():
        lease = Lease(folder)
        try:
            lease.take()
        except HeldError:
            return
        holding.append(lease)
        most.append(len(holding))
        had.append(lease)
        threading.Event().wait(0.05)
        holding.remove(lease)
        lease.give_back()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert had
    assert max(most) == 1


def test_who_slept_for_too_long_does_not_come_back(folder, monkeypatch):
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(_lease, "_clock", lambda: next(clock))
    lease = Lease(folder)
    lease.take()
    lease._ended.wait(0.3)  # for the thread to wake
    with pytest.raises(HeldError, match="said nothing"):
        lease.check()
    lease.give_back()
