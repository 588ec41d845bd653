"""A folder of one command, which identifies its own files by checksum and touches no others."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PureWindowsPath
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from attnscope.report.signature import Signature
from attnscope.store import files
from attnscope.support.errors import AttnscopeError, reason_of

if TYPE_CHECKING:
    import xarray as xr

_ANEW = "Give the command that wrote it again, with --repair if it has that option, to recompute it"

#: Content of a file, or a function that writes it to a path.
Content: TypeAlias = bytes | Callable[[Path], Any]


class OwnedFolder:
    """A folder of files from one command, each with its checksum in ``manifest.json``."""

    def __init__(self, path: Path, command: str) -> None:
        self.path, self.command = path, command
        self.files: dict[str, Checksum] = {}
        self.state: dict[str, Any] = {}
        self._growing: set[str] = set()
        self._undefined: set[str] = set()  # ours, of unknown content: being written, or to be removed
        self._lock: IO[bytes] | None = None
        self._cleared = False
        self._made: list[Path] = []  # folders that this process made, the innermost first

    def __enter__(self) -> OwnedFolder:  # noqa: PYI034 beartype knows no Self here
        with files.explained(f"use {self.path}", "Choose another folder with --out"):
            self.look()
            if not self.state.get("complete"):  # a finished one is read, also where nothing can be written
                self.lock()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._lock is None:
            return
        try:
            if not (self.path / files.MANIFEST).exists():  # nothing was written: leave nothing
                shutil.rmtree(self.path / files.WORKPLACE, ignore_errors=True)
                with suppress(OSError):
                    for folder in self._made:
                        folder.rmdir()
        finally:
            self._lock.close()
            self._lock = None

    def lock(self) -> None:
        """Become the only process that writes here, unless it is already."""
        if self._lock is not None:
            return
        while self._lock is None:
            self._made = self._made or [it for it in (self.path, *self.path.parents) if not it.exists()]
            (self.path / files.WORKPLACE).mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # the process that just left removed it: try again
                self._lock = files.locked(self.path / files.WORKPLACE / "lock")
        try:
            self.look()  # another process may have written between the first read and the lock
            _reject_links(self.path)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def is_writable(self) -> bool:
        """Whether the folder is writable: a finished run may be on a read-only disk."""
        try:
            self.lock()
        except OSError:
            return False
        return True

    def look(self) -> OwnedFolder:
        """Read the manifest without a lock; reject folders of others."""
        workplace, manifest = self.path / files.WORKPLACE, self.path / files.MANIFEST
        if workplace.is_symlink() or workplace.is_file():
            raise AttnscopeError(f"{workplace} is not a folder: remove it, or choose another folder with --out")
        content = read_manifest(manifest) if manifest.is_file() else None
        others: list[str] = []
        if content is None:
            others = [entry.name for entry in _entries(self.path)]
            others = [name for name in others if name != files.WORKPLACE]
            if files.MANIFEST in others:  # another process has written it since our read
                content = read_manifest(manifest)
        if content is None:
            if others:
                raise AttnscopeError(
                    f"{self.path} holds other files ({min(others)}), which attnscope {self.command} did not write: "
                    "choose an empty or new folder with --out"
                )
            return self
        if content.command != self.command:
            raise AttnscopeError(
                f"{self.path} belongs to attnscope {content.command}, not to attnscope {self.command}: "
                "choose another folder with --out"
            )
        self.files, self.state = dict(content.files), dict(content.state)
        self._growing, self._undefined = set(content.growing), set(content.undefined)
        return self

    def path_of(self, name: str) -> Path:
        """Path of one of our files, which is within the folder and not behind a link."""
        try:
            path = self.path / check_name(name)
        except ValueError as error:
            raise AttnscopeError(f"{self.path} cannot hold a file of {error}: choose another name") from error
        for parent in (path, *path.parents):
            if parent == self.path:
                return path
            if parent.is_symlink():
                raise _linked(parent)
        raise AttnscopeError(f"{path} is not in {self.path}")

    def _clear(self) -> None:
        """Remove unfinished files of earlier processes, once."""
        if self._cleared:
            return
        self._cleared = True
        for leftover in _entries(self.path / files.WORKPLACE):
            if leftover.name != "lock":
                shutil.rmtree(leftover) if leftover.is_dir(follow_symlinks=False) else Path(leftover).unlink()
        for name in self._undefined:
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove one of our files, and the folders that are then empty."""
        path = self.path_of(name)
        with suppress(FileNotFoundError, NotADirectoryError):
            if not path.is_dir():  # a folder that a user put there stays
                path.unlink()
        for folder in path.parents:
            if folder == self.path:
                break
            with suppress(OSError):
                folder.rmdir()

    def write(
        self, contents: Mapping[str, Content], *, remove: Iterable[str] = (), growing: Iterable[str] = (), **state: Any
    ) -> None:
        """Write files, remove others, and change the state, all or nothing."""
        self.lock()
        for name in contents:
            ours = name in self.files or name in self._undefined
            if os.path.lexists(self.path_of(name)) and not ours:
                raise AttnscopeError(
                    f"{self.path / name} is there already, and attnscope {self.command} did not write it: "
                    "move it away, or choose another folder with --out"
                )
        self._clear()
        ready: dict[str, tuple[Path, Checksum]] = {}
        try:
            for name, content in contents.items():
                ready[name] = self._prepared(content)
            if not self._undefined.issuperset(ready):
                # marked before they are replaced: after a crash it is known which files may be of either state
                self._undefined.update(ready)
                self._drop(ready)
                self._mark()
            for name, (path, _) in ready.items():
                self._place(path, name)
        finally:
            for path, _ in ready.values():
                path.unlink(missing_ok=True)
        unwanted = [name for name in remove if name in self.files]
        self._drop(unwanted)
        self.files |= {name: checksum for name, (_, checksum) in ready.items()}
        for name in growing:
            files.sync(self.path_of(name))
            self.files[name] = Checksum.of(self.path_of(name))
            self._growing.add(name)
        self._undefined = (self._undefined | {*unwanted}) - {*self.files}
        self.state = {key: value for key, value in (self.state | state).items() if value is not None}
        self._mark()
        for name in unwanted:
            self._remove(name)

    @contextmanager
    def replacing(self, *prefixes: str, **state: Any) -> Generator[Path]:
        """Yield an empty folder; its contents then replace all our files under the prefixes."""
        self.lock()
        self._clear()
        new = self.path / files.WORKPLACE / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            yield new
            files_by_name = {path.relative_to(new).as_posix(): path for path in new.rglob("*") if path.is_file()}
            old = [name for name in self.files if name.startswith(prefixes) and name not in files_by_name]
            self.write({name: path.replace for name, path in files_by_name.items()}, remove=old, **state)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def damaged(self, names: Iterable[str] | None = None) -> list[str]:
        """Our files (or some of them) that are missing or not as they were written."""
        asked = {name: self.files[name] for name in (self.files if names is None else names)}
        return [name for name, expected in asked.items() if not self._is_whole(name, expected)]

    def forget(self, names: Iterable[str], **state: Any) -> None:
        """Discard damaged files."""
        self.write({}, remove=names, **state)

    def remove(self) -> None:
        """Remove all our files, and the folder if it is then empty."""
        for name in {*self.files, *self._undefined}:
            self._remove(name)
        (self.path / files.MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.path / files.WORKPLACE, ignore_errors=True)
        with suppress(OSError):
            self.path.rmdir()

    def read(self, name: str) -> bytes:
        """A file's content, checked."""
        expected = self.files.get(name)
        content = self._content(name, expected)
        if content is not None:
            return content
        if self._has_changed(name, expected):
            return self.read(name)
        raise damage(self.path / name, f". {_ANEW}")

    def arrays(self, name: str) -> xr.Dataset:
        """A file's labelled arrays, checked, in memory."""
        from attnscope.store.arrays import unpacked

        return unpacked(self.read(name), self.path / name)

    def _content(self, name: str, expected: Checksum | None) -> bytes | None:
        """The content; None if it has changed since it was written."""
        if expected is None:
            return None
        try:
            with open_regular(self.path_of(name)) as file:
                # one byte more than expected shows a longer file without reading all of it
                content: bytes = file.read(expected.size + 1)
        except OSError:
            return None
        return content if (expected == (len(content), hashlib.sha256(content).hexdigest())) else None

    def _has_changed(self, name: str, expected: Checksum | None) -> bool:
        """Whether another process has written the file, or begun to, since the manifest was read."""
        if self._lock is not None:
            return False
        self.look()
        return self.files.get(name) != expected

    def _is_whole(self, name: str, expected: Checksum) -> bool:
        path = self.path_of(name)
        with suppress(OSError):
            size = path.stat().st_size
            # a growing file may be longer than its checksum covers: the rest was not confirmed yet
            fits = size >= expected.size and (size == expected.size or name in self._growing)
            if fits and Checksum.of(path, expected.size) == expected:
                return True
        if not self._has_changed(name, expected):
            return False
        now = self.files.get(name)
        return now is None or self._is_whole(name, now)  # without a checksum it is just being replaced

    def _prepared(self, content: Content) -> tuple[Path, Checksum]:
        """A file with that content, on the disk, under a temporary name."""
        workplace = self.path / files.WORKPLACE
        if isinstance(content, bytes):
            path = files.new_file(workplace, content)
            return path, Checksum(len(content), hashlib.sha256(content).hexdigest())
        path = files.new_file(workplace)
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            content(path)
            files.set_mode(path, mode)  # safetensors leaves its files to their owner alone
            files.sync(path)
            return path, Checksum.of(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self.files.pop(name, None)
            self._growing.discard(name)

    def _place(self, path: Path, name: str) -> None:
        final = self.path_of(name)
        missing = [folder for folder in final.parents if not folder.exists()]
        final.parent.mkdir(parents=True, exist_ok=True)
        # a new folder is on the disk only once its parent is
        for folder in missing:
            files.sync(folder.parent)
        # atomic on one file system: a reader finds the old file or the new one
        path.replace(final)
        files.sync(final.parent)

    def _mark(self) -> None:
        content = {
            "attnscope": _ABOUT,
            "command": self.command,
            "files": {name: list(checksum) for name, checksum in self.files.items()},
            "growing": sorted(self._growing),
            "undefined": sorted(self._undefined),
            "state": self.state,
        }
        whole = files.json_bytes(content | {"sha256": digest_of(content)})
        files.new_file(self.path / files.WORKPLACE, whole).replace(self.path / files.MANIFEST)
        files.sync(self.path)


def damage(path: Path, lost: str = "") -> AttnscopeError:
    """The error for a file whose content has changed since it was written."""
    what = "is not what was written (its checksum differs)" if path.exists() else "is gone"
    return AttnscopeError(f"{path} {what}{lost}")


def _reject_links(folder: Path) -> None:
    for entry in _entries(folder):
        if entry.is_symlink():
            raise _linked(folder / entry.name)


def _linked(path: Path) -> AttnscopeError:
    return AttnscopeError(
        f"{path} is a link, and nothing in a folder of results may be one: put there what it leads to, or choose "
        "another folder with --out"
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise AttnscopeError(f"{folder} is a file; expected a folder for the run: name another")
    with os.scandir(folder) as entries:
        return list(entries)


_ABOUT = "files of this folder that attnscope wrote: size and SHA-256"
_MOST_BYTES = 1 << 28  # of a manifest; a million pieces take about half of it
_LONGEST = 1024  # bytes of a name
_TURNING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # characters that turn the direction of text


class Checksum(NamedTuple):
    """Size and SHA-256 of a file, or of the beginning of one that grows."""

    size: _Size
    sha256: _Sha256

    @classmethod
    def of(cls, path: Path, size: int | None = None) -> Checksum:
        """Read a file, or its first bytes."""
        digest, done = hashlib.sha256(), 0
        with open_regular(path) as file:
            while block := file.read(1 << 20 if size is None else min(1 << 20, size - done)):
                digest.update(block)
                done += len(block)
        return cls(done, digest.hexdigest())


def open_regular(path: Path) -> Any:
    """Open a file to read; a link, a pipe or a device raises `OSError`."""
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return os.fdopen(os.open(path, os.O_RDONLY | flags), "rb")


def check_name(name: str) -> str:
    """Check that a file's path is relative, inside the folder, and of plain characters."""
    right = (
        0 < len(name) <= _LONGEST
        and all(part not in {"", ".", "..", files.WORKPLACE} for part in name.split("/"))
        and name != files.MANIFEST
        and "\\" not in name
        and not (os.name == "nt" and PureWindowsPath(name).drive)
        and not any(unicodedata.category(c) in {"Cc", "Cs"} or ord(c) in _TURNING for c in name)
    )
    if not right:
        raise ValueError(f"the name {name!r:.60}")
    return name


def _in_order(units: list[int]) -> list[int]:
    if units != sorted(units):
        raise ValueError("not in order")
    return units


_Name: TypeAlias = Annotated[str, AfterValidator(check_name)]
_Size: TypeAlias = Annotated[int, Field(ge=0, le=1 << 60)]
_Sha256: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Analyses(BaseModel):
    requested: list[str]
    names: list[str]
    skipped: list[tuple[str, str]]


class _Also(BaseModel):
    file: str
    model: str
    identity: str


class _State(BaseModel):
    """Shapes in the state of commands; other keys may have any value."""

    complete: bool = False
    signature: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    texts: _Size = 0
    units: Annotated[list[_Size], AfterValidator(_in_order)] = []
    views: str = ""
    asked: dict[str, Any] = {}
    analyses: _Analyses | None = None
    also: list[_Also] = []
    parts: list[str] = []
    measured: tuple[str, str] = ("", "")
    config: dict[str, Any] = {}
    records: dict[str, dict[str, Any]] = {}
    metrics: dict[str, float] = {}


class _Noted(BaseModel):
    state: _State


class Manifest(BaseModel):
    """The contents of a ``manifest.json``, validated."""

    command: Annotated[str, Field(pattern="^[a-z][a-z_-]{0,39}$")]  # whose files they are
    files: dict[_Name, Checksum]  # size and SHA-256 of each, by its path in the folder
    growing: set[_Name]  # files that may have grown
    undefined: set[_Name]  # files of ours of unknown content
    state: dict[str, Any]  # what the command noted

    @classmethod
    def of(cls, raw: bytes) -> Manifest:
        """The record that a file holds, every part of it checked."""
        try:
            _Noted.model_validate_json(raw, strict=True)
            manifest = cls.model_validate_json(raw, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if "signature" in manifest.state:
            Signature.of(manifest.state["signature"])
        for name in manifest.files:
            if name.startswith(files.PIECES):
                files.texts_of(name)
        return manifest


def manifest_of(folder: Path) -> Manifest | None:
    """Read the record of one of our folders; None without such a folder."""
    path = folder / files.MANIFEST
    return read_manifest(path) if path.is_file() else None


def read_manifest(path: Path) -> Manifest | None:
    """The manifest, checked; None where it is another program's."""
    if path.is_symlink():
        raise _linked(path)
    try:
        with open_regular(path) as file:
            raw: bytes = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise AttnscopeError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    whole = False
    with suppress(ValueError, RecursionError):
        content = json.loads(raw) if len(raw) <= _MOST_BYTES else None
        whole = isinstance(content, dict) and content.pop("sha256", None) == digest_of(content)
    if not whole:
        if b'"attnscope"' not in raw:
            return None
        raise AttnscopeError(
            f"{path} is damaged, so nothing in {path.parent} can be trusted: restore it from a copy, or start again in "
            "another folder"
        )
    try:
        return Manifest.of(raw)
    except (ValueError, AttnscopeError) as error:
        raise AttnscopeError(
            f"{path} is not as this version of attnscope writes it ({reason_of(error)}): open it with the version that "
            "did, or start again in another folder"
        ) from error


def digest_of(content: Any) -> str:
    return hashlib.sha256(files.json_bytes(content)).hexdigest()
