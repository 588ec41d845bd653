"""A model folder, or a repository on the hub: its files, and whether they stay what they were when they were read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from attnscope.capture._hub import fetched, out_of_reach
from attnscope.errors import AttnscopeError, explaining, reason_of
from attnscope.store import MANIFEST, OwnedFolder, damage, file_state, manifest_of


@dataclass(frozen=True, eq=False)
class Repository:
    """A folder, or one commit of a repository on the hub in this machine's cache.

    Attributes
    ----------
    source
        What the user called it.
    folder
        Where its files lie.
    commit
        Commit of the hub; None for a folder.
    taken
        The files that were taken from it, and their state just before.
    """

    source: str
    folder: Path
    commit: str | None = None
    taken: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])

    @classmethod
    def of(cls, source: str, revision: str | None = None) -> Repository:
        """Find a repository; of the hub's, whichever commit the revision is now.

        Raises
        ------
        AttnscopeError
            If there is no such folder, and the hub has no model or tokenizer of that name; if a file is not what
            `attnscope train` wrote.

        Examples
        --------
        >>> from attnscope.bundled import MODEL
        >>> Repository.of(str(MODEL)).find("model.safetensors").name
        'model.safetensors'
        """
        if Path(source).is_dir():
            _refuse_damaged(Path(source))
            return cls(source, Path(source))
        try:
            file = fetched(source, "config.json", revision) or fetched(
                source, "tokenizer_config.json", revision
            )
        except Exception as error:
            raise AttnscopeError(
                f"there is no folder {source}, and the hub gave no model of that name: {reason_of(error)}"
            ) from error
        if file is None:
            why = (
                "it cannot be reached, and nothing of that name was fetched before"
                if out_of_reach()
                else "no config.json"
            )
            raise AttnscopeError(
                f"there is no folder {source}, and the hub gave no model of that name: {why}"
            )
        return cls(source, file.parent, file.parent.name)

    def find(self, name: str) -> Path | None:
        """The file of that name, fetched from the hub if need be; None where there is none."""
        if self.commit is None:
            file = self.folder / name
            return file if file.is_file() else None
        with explaining(f"{name} of {self.source} cannot be fetched", "Try again"):
            return fetched(self.source, name, self.commit)

    def take(self, name: str) -> Path | None:
        """Find a file whose content decides about the model: part of `sha256`, and not to change from now on."""
        file = self.find(name)
        if file is not None:
            self.taken.setdefault(file, file_state(file))
        return file

    def read(self, name: str) -> dict[str, Any] | None:
        """Take the JSON object in the file of that name; None where there is none.

        Raises
        ------
        AttnscopeError
            If the file cannot be read, or holds anything else.
        """
        path = self.take(name)
        if path is None:
            return None
        with explaining(f"{path} is not JSON that can be read", "Fetch it again"):
            settings = json.loads(path.read_bytes())
        if not isinstance(settings, dict):
            raise AttnscopeError(
                f"{path} holds a {type(settings).__name__}: expected a JSON object of settings"
            )
        return settings

    def within(self, name: str, named_in: str = "the folder") -> Path:
        """Take a file that must be there, and lie in the folder in truth.

        Raises
        ------
        AttnscopeError
            If it is missing, or lies elsewhere.
        """
        plain = PurePosixPath(name.replace("\\", "/"))
        outside = plain.is_absolute() or ".." in plain.parts
        file = None if outside else self.take(name)
        what = f"{name[:200]} of {self.source} (named in {named_in})"
        if outside or (file is not None and not self._holds(file)):
            raise AttnscopeError(f"{what} lies outside the folder: put the file itself into {self.folder}")
        if file is None:
            raise AttnscopeError(f"{what} is not there: fetch it, or the whole model, again")
        return file

    def _holds(self, path: Path) -> bool:
        """Whether a file lies in the folder in truth; links of a hub's snapshot may lead to its repository's blobs."""
        real, home = path.resolve(), self.folder.resolve()
        repository = home.parent.parent
        in_cache = home.parent.name == "snapshots" and repository.name.startswith("models--")
        return real.is_relative_to(home) or (in_cache and real.is_relative_to(repository / "blobs"))

    def identity(self) -> dict[str, str]:
        """What was taken: the commit on the hub, or the SHA-256 over the names and contents of all files taken."""
        if self.commit is not None:
            return {"revision": self.commit}
        digest = hashlib.sha256()
        named = {path.relative_to(self.folder).as_posix(): path for path in self.taken}
        for name, path in sorted(named.items()):
            with path.open("rb") as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return {"sha256": digest.hexdigest()}

    def refuse_changed(self) -> None:
        """Refuse files that are no longer what was taken.

        Raises
        ------
        AttnscopeError
            If one was written, replaced or removed since.
        """
        for path, state in self.taken.items():
            if not path.is_file() or file_state(path) != state:
                raise AttnscopeError(
                    f"{path} changed while the model was loaded: wait until it is written, and try again"
                )


@contextmanager
def asking_trust(source: str) -> Generator[None]:
    """Say what to do where transformers refuses to run code that came with a model."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise AttnscopeError(
            f"{source} brings code of its own, which would run on this machine. "
            "If you trust it, say --trust-remote-code"
        ) from error


def _refuse_damaged(folder: Path) -> None:
    """Refuse a folder that `attnscope train` made if a file that decides about the model is no longer what it wrote."""
    made = manifest_of(folder)
    if made is None:
        return
    owned = OwnedFolder(folder, made.command).look()
    damaged = owned.damaged(
        name for name in owned.files if "/" not in name and name.endswith((".json", ".safetensors"))
    )
    if damaged:
        raise damage(
            folder / damaged[0],
            f". Give the same attnscope {made.command} again to mend it; if it was changed on purpose, remove "
            f"{MANIFEST} beside it",
        )
