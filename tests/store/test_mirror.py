"""A run folder in an object store is what one here is, whenever its process dies."""

import json
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest
import xarray as xr

import attnscope
from attnscope import AttnscopeError
from attnscope.remote import Objects, Url
from attnscope.store import OwnedFolder, RunFolder, is_finished, named, remove_folder, staged

URL = "memory://bucket/mirrored"
SIGNATURE = {"command": "scan", "model": "m"}


@pytest.fixture(autouse=True)
def store():
    found = fsspec.filesystem("memory")
    yield found
    for name in [name for name in found.store if name.startswith("/bucket/mirrored")]:
        del found.store[name]


def opened(**changes):
    """What another process finds."""
    with staged(URL) as path, OwnedFolder(path, "scan") as folder:
        if changes:
            folder.write(**changes)
        assert folder.damaged() == []
        return {name: folder.read(name) for name in folder.files}, folder.state


def test_files_are_there_for_the_next_process(store):
    opened(contents={"a.txt": b"one", "b/c.txt": b"two"}, step=1)
    assert opened() == ({"a.txt": b"one", "b/c.txt": b"two"}, {"step": 1})
    opened(contents={"a.txt": b"three"}, remove=["b/c.txt"], step=2)
    assert opened() == ({"a.txt": b"three"}, {"step": 2})
    assert sorted(Objects(Url(URL)).names()) == ["a.txt", "manifest.json"]


class _KilledError(BaseException):
    pass


def test_death_at_any_request_leaves_the_old_state_or_the_new(monkeypatch, store):
    """Every request that changes the store is the last one, in turn: before it is done, and after."""
    old = ({"a.txt": b"one", "b.txt": b"two"}, {"step": 1})
    new = ({"a.txt": b"three", "c.txt": b"four"}, {"step": 2})
    seen, last, place = [], 0, 0
    while place == last:
        last += 1
        for after in (False, True):
            store.store.clear()
            opened(contents=old[0], step=1)
            place = 0

            def dying(method, after=after, last=last):
                def call(*given):
                    nonlocal place
                    if "/claims/" in str(given[1]):  # a lease given back before is let go by a thread
                        method(*given)
                        return
                    place += 1
                    if place == last and not after:
                        raise _KilledError
                    method(*given)
                    if place == last:
                        raise _KilledError

                return call

            with monkeypatch.context() as patched:
                for name in ("write", "send", "remove"):
                    patched.setattr(Objects, name, dying(getattr(Objects, name)))
                patched.setattr(
                    "attnscope.remote._lease.Lease.take", lambda _: None
                )  # its claim would have to end
                patched.setattr("attnscope.remote._lease.Lease.check", lambda _: None)
                with suppress(_KilledError):
                    opened(contents=new[0], remove=["b.txt"], step=2)
            files, state = found = opened()
            # what was being written anew is known to be neither
            assert found in (old, new) or (files, state) == ({"b.txt": b"two"}, {"step": 1})
            seen.append(found)
            opened(contents=new[0], remove=["b.txt"], step=2)
            assert opened() == new
            assert sorted(Objects(Url(URL)).names()) == ["a.txt", "c.txt", "manifest.json"]
    assert old in seen
    assert new in seen
    assert len(seen) > 8


def test_pieces_are_sent_as_they_come_and_fetched(store):
    with staged(URL) as path, RunFolder(path, SIGNATURE) as run:
        run.append(xr.Dataset({"length": ("text", [3, 4])}), 0)
        assert "/bucket/mirrored/pieces/000000000-000000001.npz" in store.store
        run.append(xr.Dataset({"length": ("text", [5])}), 2)
    with staged(URL) as path, RunFolder(path, SIGNATURE) as run:
        assert run.holds(range(3)) or run.texts == 3
        assert run.results().length.values.tolist() == [3, 4, 5]
        assert not is_finished(path)
        run.finish()
        assert is_finished(path)


def test_damage_is_named_by_its_url_and_repaired(store):
    with staged(URL) as path, RunFolder(path, SIGNATURE) as run:
        run.append(xr.Dataset({"length": ("text", [3, 4])}), 0)
        run.finish()
    store.pipe_file("/bucket/mirrored/pieces/000000000-000000001.npz", b"other")
    with pytest.raises(AttnscopeError, match=r"memory://bucket/mirrored/pieces/.* is not what was written"):
        attnscope.open_run(URL)
    with staged(URL) as path, RunFolder(path, SIGNATURE, repair=True) as run:
        assert not run.pieces


def test_what_is_not_ours_stays(store):
    store.pipe_file("/bucket/mirrored/notes.txt", b"mine")
    with pytest.raises(AttnscopeError, match=r"memory://bucket/mirrored holds other files \(notes.txt\)"):
        opened(contents={"a.txt": b"one"})
    del store.store["/bucket/mirrored/notes.txt"]
    opened(contents={"a.txt": b"one"})
    store.pipe_file("/bucket/mirrored/notes.txt", b"mine")
    with pytest.raises(AttnscopeError, match=r"memory://bucket/mirrored/notes.txt is there already"):
        opened(contents={"notes.txt": b"ours"})
    assert store.cat("/bucket/mirrored/notes.txt") == b"mine"
    with pytest.raises(AttnscopeError, match="belongs to attnscope scan"), staged(URL) as path:
        OwnedFolder(path, "train").__enter__()


@pytest.mark.parametrize("name", ["../outside.txt", "/outside.txt", "a/../../outside.txt"])
def test_a_manifest_that_names_files_elsewhere_is_not_followed(store, name):
    store.pipe_file("/bucket/mirrored/manifest.json", json.dumps({"files": {name: [1, "0"]}}).encode())
    with pytest.raises(AttnscopeError, match="names a file outside"):
        opened()


def test_a_finished_run_is_read_where_nothing_may_be_written(store, monkeypatch):
    with staged(URL) as path, RunFolder(path, SIGNATURE) as run:
        run.finish()

    def refuse(*_, **__):
        raise PermissionError("Forbidden")

    for method in ("pipe_file", "put_file", "rm_file"):
        monkeypatch.setattr(store, method, refuse)
    with staged(URL) as path, RunFolder(path, SIGNATURE) as run:
        assert run.complete
        assert not run.is_writable()
    with pytest.raises(AttnscopeError, match="no permission"), staged(f"{URL}2") as path:
        RunFolder(path, SIGNATURE).__enter__()


def test_folders_beside_and_within_stand_for_theirs(store):
    with staged(URL) as path:
        for part in ("run.tasks/1-of-2", "mirrored.tasks/1-of-2"):
            beside = path.parent / part
            assert named(beside) == f"memory://bucket/{part}"
        assert named(path / "relearned") == f"{URL}/relearned"
        with OwnedFolder(beside, "scan") as folder:
            folder.write({"a.txt": b"one"})
        assert "/bucket/mirrored.tasks/1-of-2/a.txt" in store.store
        remove_folder(beside)
        assert "/bucket/mirrored.tasks/1-of-2/a.txt" not in store.store
    assert named(path) == str(path)  # no longer
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("https://host/run", "no place for a run folder"),
        ("memory://run", "names no folder"),
        ("gopher://host/run", "nothing here reads"),
        (Path("s3://bucket/run"), "give the string itself"),
    ],
)
def test_what_is_no_place_for_a_run_is_refused(given, says):
    with pytest.raises(AttnscopeError, match=says):
        attnscope.scan(texts="The tide is out.", out=given)


def test_a_file_url_is_the_folder_itself(tmp_path):
    with staged((tmp_path / "run").as_uri()) as path:
        assert path == tmp_path / "run"
