"""A run folder: results with their signature, written piece by piece, that survive a kill and a power cut."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xarray as xr

from attnscope.report.registry import words_of
from attnscope.report.signature import Signature
from attnscope.store import files
from attnscope.store.arrays import in_a_row, packed
from attnscope.store.folder import OwnedFolder, damage, manifest_of
from attnscope.support.errors import AttnscopeError
from attnscope.support.numbers import count

_GO_ON = "Free some room and give the same command to go on"
_DIGEST = re.compile(r" is '?(\w+:)?[0-9a-f]{16,64}'?")  # a difference of two hashes
_log = logging.getLogger("attnscope")


class RunFolder(OwnedFolder):
    """Results on disk under one signature."""

    def __init__(self, path: Path, signature: Signature | Mapping[str, Any], *, repair: bool = False) -> None:
        self.signature = Signature.of(signature)
        super().__init__(path, self.signature.command)
        self.repair = repair
        self._begun = False  # here, by this process

    def __enter__(self) -> RunFolder:  # noqa: PYI034 beartype knows no Self here
        super().__enter__()
        try:
            with files.explained(f"use {self.path} as a run folder", "Choose another folder with --out"):
                if "signature" in self.state:
                    self._check_signature()
                    self._mend()
                else:
                    self._refuse_names()
                if files.RUN not in self.files and not self.complete:
                    signature = self.signature.to_dict()
                    self._begun = not self.files
                    self.write({files.RUN: files.json_bytes(signature)}, signature=signature)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._begun and isinstance(error, AttnscopeError) and self.files.keys() == {files.RUN}:
            # nothing was measured, and the same command would fail again; a kill between loses the signature file alone
            with suppress(OSError):
                (self.path / files.RUN).unlink()
                (self.path / files.MANIFEST).unlink()
        super().__exit__(kind, error, trace)

    @property
    def complete(self) -> bool:
        """Whether all results are there."""
        return bool(self.state.get("complete"))

    @property
    def pieces(self) -> dict[range, str]:
        """Texts and file of each piece."""
        names = {files.texts_of(name): name for name in self.files if name.startswith(files.PIECES)}
        return dict(sorted(names.items(), key=lambda item: item[0].start))

    @property
    def texts(self) -> int:
        """Number of measured texts."""
        return sum(map(len, self.pieces))

    def append(self, results: xr.Dataset, first: int, **apart: xr.Dataset) -> None:
        """Add the results of some texts, numbered from `first`; when this returns, they are safe."""
        name = files.piece_name(range(first, first + results.sizes["window"]))
        with files.explained("write results", f"The {self.texts} texts before are safe. {_GO_ON}"):
            contents = {_sidecar(name, kind): packed(arrays) for kind, arrays in apart.items()}
            self.write({name: packed(results), **contents})

    def results(self) -> xr.Dataset:
        """All results so far, in memory."""
        parts = [self.piece(texts) for texts in self.pieces]
        if not parts:
            raise AttnscopeError(f"{self.path} has no results yet")
        with files.read_as(self.path):
            return in_a_row(parts)

    def piece(self, texts: range) -> xr.Dataset:
        """The results of one of `pieces`, in memory."""
        name = self.pieces[texts]
        piece = self.arrays(name)
        if piece.sizes.get("window") != len(texts):
            raise AttnscopeError(
                f"{self.path / name} does not contain the {len(texts)} texts of its name: do not trust it"
            )
        return piece

    def apart(self, kind: str, texts: range | None = None) -> xr.Dataset | None:
        """The separate results of one of `pieces`, or of all, in memory; None without any."""
        wanted = self.pieces if texts is None else {texts: self.pieces[texts]}
        names = [_sidecar(name, kind) for name in wanted.values()]
        parts = [self.arrays(name) for name in names if name in self.files]
        with files.read_as(self.path):
            return in_a_row(parts, "") if parts else None

    def save(self, name: str, dataset: xr.Dataset) -> None:
        """Write a part that is computed from the results, all or nothing."""
        with files.explained(f"write {name}", f"The results are safe. {_GO_ON}"):
            self.write({name + files.SUFFIX: packed(dataset)})

    def load(self, name: str) -> xr.Dataset | None:
        """Read the output of `save`; None if it is missing."""
        return self.arrays(name + files.SUFFIX) if name + files.SUFFIX in self.files else None

    def part(self, name: str) -> xr.Dataset:
        """Read the output of `save` in a finished run."""
        dataset = self.load(name)
        if dataset is None:
            raise AttnscopeError(f"{self.path} has no {name}: repeat the command, which recomputes missing parts")
        return dataset

    def made(self, name: str, make: Callable[[], xr.Dataset]) -> xr.Dataset:
        """A part of the run as it is read back; computed and written if it is missing."""
        if self.load(name) is None:
            self.save(name, make())
        return self.part(name)

    def finish(self, **state: Any) -> None:
        """Mark the run as complete."""
        with files.explained("write results", _GO_ON):
            self.write({}, complete=True, records=words_of(self.signature.settings) or None, **state)

    def _mend(self) -> None:
        """Discard damaged files where that is allowed; views can always be redrawn."""
        damaged = self.damaged()
        lost = [name for name in damaged if not name.startswith(files.VIEWS)]
        if lost and self.complete and not self.repair:
            raise damage(self.path / lost[0], f"{_windows(lost)}. Repeat the command with --repair to recompute it")
        for name in lost:
            _log.warning("%s is damaged and will be recomputed", self.path / name)
        # pieces, with the separate results of the same texts: they are measured together
        texts = {name.rpartition("/")[2] for name in lost if "/" in name}
        lost += [name for name in self.files if name not in lost and name.rpartition("/")[2] in texts]
        if lost or (damaged and self.is_writable()):
            self.forget([*damaged, *lost], **{"complete": None} if lost else {}, views=None)

    def _refuse_names(self) -> None:
        """The first write has the signature: without it there is no other file of ours."""
        if {*self.files, *self._growing, *self._undefined} - {files.RUN}:
            raise AttnscopeError(
                f"{self.path / files.MANIFEST} has files but no signature, so attnscope did not write it: choose "
                "another folder with --out"
            )

    def _check_signature(self) -> None:
        differing = Signature.of(self.state["signature"]).differences(self.signature)
        differing.sort(key=lambda text: _DIGEST.search(text) is not None)  # a reader knows the others
        if differing:
            raise AttnscopeError(
                f"{self.path} holds another run: its {differing[0]}. It is left as it is; choose a new folder with "
                "--out"
            )


def _sidecar(piece: str, kind: str) -> str:
    """The file of the separate results of a piece."""
    return f"{kind}/{piece.removeprefix(files.PIECES)}"


def is_finished(path: Path) -> bool:
    """Whether a folder holds a run that was finished."""
    try:
        manifest = manifest_of(path)
    except AttnscopeError:
        return False
    return manifest is not None and bool(manifest.state.get("complete"))


def _windows(damaged: Iterable[str]) -> str:
    """The number of windows lost with these files, in words."""
    texts = [files.texts_of(name) for name in damaged if name.startswith(files.PIECES)]
    lost = sum(map(len, texts))
    return f"; {count(lost, 'window')} {'is' if lost == 1 else 'are'} lost with it" if texts else ""


def load_part(run: RunFolder) -> xr.Dataset:
    """The one part that a finished run has, as the verb returned it."""
    return run.part(next(iter(run.state.get("parts", ())), run.command)).assign_attrs(run=str(run.path))


def load_tree(run: RunFolder) -> xr.DataTree:
    """The measurements and their parts, with the attributes of a finished run."""
    node, dimension = run.state["measured"]
    parts = {node: along(run.results(), dimension), **{name: run.part(name) for name in run.state["parts"]}}
    tree = xr.DataTree.from_dict(parts)
    tree.attrs = {**run.state["attributes"], "run": str(run.path)}
    return tree


def along(measured: xr.Dataset, dimension: str) -> xr.Dataset:
    """The measurements along the dimension that users see, in order."""
    return measured if dimension == "window" else measured.rename(window=dimension).sortby(dimension)


def skipped_of(result: xr.Dataset | xr.DataTree) -> dict[str, str]:
    """The skipped parts by name, and the reasons; none where they cannot be read."""
    try:
        return {str(name): str(reason) for name, reason in json.loads(str(result.attrs.get("skipped", "{}"))).items()}
    except (ValueError, AttributeError):
        return {}


def skipped_note(reasons: Mapping[str, str]) -> list[str]:
    """The note of a report on its skipped parts, those with one reason together; none without any."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name.replace("_", " "))
    parts = [f"{', '.join(together)} ({reason})" for reason, together in names.items()]
    return [f"Skipped: {'; '.join(parts)}."] if parts else []
