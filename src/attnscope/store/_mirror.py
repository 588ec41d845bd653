"""Run folders in an object store: written here first, whole file after whole file, and sent at once."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar

from attnscope.errors import AttnscopeError
from attnscope.remote import Lease, Objects, Url, is_url, refuse_path_of_url
from attnscope.store._names import MANIFEST, WORKPLACE

P = ParamSpec("P")
R = TypeVar("R")
_stages: dict[Path, Objects] = {}  # folders here, and what they stand for


class Mirror:
    """The folder in an object store that one here stands for.

    A file is sent before the manifest that names it, and taken away after the one that does not: the manifest there
    never names what is not there, whenever the process is killed.

    Parameters
    ----------
    path
        Folder here.
    objects
        Folder there.
    """

    def __init__(self, path: Path, objects: Objects) -> None:
        self.path, self.objects = path, objects
        self._lease = Lease(objects)
        self._held = False
        self._there: dict[str, object] = {}  # files there, and what the manifest says of each

    def lock(self) -> None:
        """Become the one process that writes there."""
        if not self._held:
            self._lease.take()
            self._held = True

    def unlock(self) -> None:
        """Let others write."""
        if self._held:
            self._lease.give_back()
            self._held = False

    def look(self) -> None:
        """Fetch the manifest as it is now.

        Raises
        ------
        AttnscopeError
            It names files outside the folder.
        """
        content = self.objects.read(MANIFEST)
        self.path.mkdir(parents=True, exist_ok=True)
        if content is None:
            (self.path / MANIFEST).unlink(missing_ok=True)
            self._there = {}
            return
        with suppress(ValueError, AttributeError, TypeError):  # another program's: whoever reads it says so
            said = json.loads(content)
            names = [*said.get("files", {}), *said.get("undefined", [])]
            _refuse_outside(names, self.objects.url)
            self._there = dict.fromkeys(said.get("undefined", [])) | said.get("files", {})
        (self.path / MANIFEST).write_bytes(content)

    def bring(self, name: str) -> bool:
        """Fetch a file; False where there is none."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".attnscope-{path.name}")
        is_there = self.objects.fetch(name, new)
        if is_there:
            new.replace(path)
        return is_there

    def names(self) -> list[str]:
        """What lies at the top of the folder there, but for what is only at work."""
        return sorted(
            {
                PurePosixPath(name).parts[0]
                for name in self.objects.names()
                if not name.startswith(f"{WORKPLACE}/")
            }
        )

    def has(self, name: str) -> bool:
        """Whether anything of that name is there."""
        return self.objects.has(name)

    def send(self, files: dict[str, Any], manifest: bytes) -> None:
        """Make the folder there as the one here, where this process may write still."""
        self._lease.check()
        for name, known in files.items():
            if self._there.get(name) != known:
                self._there[name] = None  # it is neither the old nor the new while it is sent
                self.objects.send(self.path / name, name)
                self._there[name] = known
        self.objects.write(MANIFEST, manifest)
        for name in self._there.keys() - files.keys():
            self.objects.remove(name)
            del self._there[name]


def mirror_of(path: Path) -> Mirror | None:
    """What a folder here stands for; None where it stands for itself."""
    objects = _objects_of(path)
    return None if objects is None else Mirror(path, objects)


@contextmanager
def staged(place: str | Path, *, bucket: bool = False) -> Generator[Path]:
    """A folder here that stands for one in an object store while this lasts; any other place is itself.

    Parameters
    ----------
    place
        A URL as a string, or a folder here.
    bucket
        Whether a whole bucket may be looked at.

    Raises
    ------
    AttnscopeError
        It is of no object store; and whatever is raised within, with the URL in the place of the folder.

    Examples
    --------
    >>> from attnscope.store import OwnedFolder
    >>> with staged("memory://bucket/staged") as path, OwnedFolder(path, "scan") as folder:
    ...     folder.write({"note.txt": b"whole"})
    ...     print(named(path))
    memory://bucket/staged
    >>> Objects(Url("memory://bucket/staged")).names()
    ['manifest.json', 'note.txt']
    """
    if not isinstance(place, str) or not is_url(place):
        refuse_path_of_url(Path(place))
        yield Path(place)
        return
    url = Url(place)
    if url.scheme in ("file", "local"):
        yield Path(url.place()[1])
        return
    objects = Objects(url, bucket=bucket)
    with tempfile.TemporaryDirectory(prefix="attnscope-", ignore_cleanup_errors=True) as folder:
        path = Path(os.path.realpath(folder)) / url.name
        _stages[path] = objects
        try:
            yield path
        except AttnscopeError as error:
            said = str(error).replace(str(path), str(url))
            if said == str(error):
                raise
            raise type(error)(said) from error.__cause__
        finally:
            del _stages[path]


def named(path: Path) -> str:
    """What people know a folder by: its URL, where it stands for one in an object store.

    Examples
    --------
    >>> named(Path("runs/first"))
    'runs/first'
    """
    objects = _objects_of(path)
    return str(path) if objects is None else str(objects.url)


def written_at(path: Path) -> float | None:
    """When a file was written last, in seconds since 1970, here or in the store; None where there is none.

    Examples
    --------
    >>> written_at(Path("/no/such/file")) is None
    True
    """
    objects = _objects_of(path.parent)
    if objects is not None:
        return objects.written(path.name)
    return path.stat().st_mtime if path.is_file() else None


def folders_beside(path: Path, pattern: str) -> list[Path]:
    """Folders that match a pattern in one, whether here or in the store that it stands for; sorted.

    Parameters
    ----------
    path
        Folder, or what stands for one in a store.
    pattern
        Pattern of names, such as ``"task-*"``.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     (Path(folder) / "task-1").mkdir()
    ...     [path.name for path in folders_beside(Path(folder), "task-*")]
    ['task-1']
    """
    objects = _objects_of(path)
    if objects is None:
        return sorted(path.glob(pattern))
    return sorted(path / top for top in objects.folders() if PurePosixPath(top).match(pattern))


def is_bucket(path: Path) -> bool:
    """Whether a folder here stands for a whole bucket, which is no run and has nothing beside it.

    Examples
    --------
    >>> is_bucket(Path("/"))
    False
    """
    objects = _objects_of(path)
    return objects is not None and objects.is_bucket


def has_folder(path: Path) -> bool:
    """Whether there is such a folder, here or in the store that it stands for.

    Examples
    --------
    >>> has_folder(Path("/")), has_folder(Path("/no/such/folder"))
    (True, False)
    """
    objects = _objects_of(path)
    return path.is_dir() if objects is None else objects.has("")


def remove_folder(path: Path) -> None:
    """Take a folder of ours away, here and in the store that it stands for.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp())
    >>> remove_folder(folder)
    >>> folder.exists()
    False
    """
    objects = _objects_of(path)
    if objects is not None:
        for name in objects.names():
            objects.remove(name)
    shutil.rmtree(path, ignore_errors=True)


def keeping_elsewhere(verb: Callable[P, R]) -> Callable[P, R]:
    """Let a function whose `out` is a folder take the URL of one in an object store.

    Where the result names its folder, it names the URL.

    Examples
    --------
    >>> @keeping_elsewhere
    ... def verb(*, out):
    ...     return named(out)
    >>> verb(out="memory://bucket/elsewhere"), verb(out=Path("run"))
    ('memory://bucket/elsewhere', 'run')
    """

    @wraps(verb)
    def keeper(*arguments: P.args, **given: P.kwargs) -> R:
        place = given.get("out")
        if not isinstance(place, str | Path):
            return verb(*arguments, **given)
        with staged(place) as path:
            given["out"] = path
            return naming_url(verb(*arguments, **given))

    return keeper


def naming_url(result: R) -> R:
    """Results that name the URL of their run folder, where they named a folder here that stands for it.

    Examples
    --------
    >>> import xarray as xr
    >>> naming_url(xr.Dataset(attrs={"run": "runs/first"})).attrs["run"]  # a folder here
    'runs/first'
    """
    for notes, key in ((getattr(result, "attrs", {}), "run"), (getattr(result, "encoding", {}), "source")):
        if key in notes:
            notes[key] = named(Path(notes[key]))
    return result


def _objects_of(path: Path) -> Objects | None:
    """Also of a folder beside one that stands for another, such as that of its tasks."""
    for stage, objects in _stages.items():
        if path == stage:
            return objects
        if path.is_relative_to(stage.parent):
            beside = path.relative_to(stage.parent).as_posix()
            parent = objects.url.address.rstrip("/").rpartition("/")[0]
            return Objects(Url(f"{parent}/{beside}"))
    return None


def _refuse_outside(names: Iterable[str], url: Url) -> None:
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise AttnscopeError(
                f"{url}: its manifest names a file outside of it ({name!r:.60}): do not trust it"
            )
