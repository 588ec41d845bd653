"""A run folder is a local folder with a name, and its files are written as their user would have it."""

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

import attnscope
import attnscope_lineage
from attnscope import AttnscopeError
from attnscope.results.describe import describe
from attnscope.results.export import export
from attnscope.store import files as _files
from attnscope.store import files as _lock
from attnscope.store.files import explained, write_output
from attnscope.store.folder import OwnedFolder
from tests.store.test_hostile import VERBS as FOLDERS

# --- a run folder is a local folder with a name ---


VERBS = FOLDERS | {
    "diff": lambda out: attnscope.diff("one", "one", out=out),
    "compare": lambda out: attnscope_lineage.compare(["none.yaml"], out=out),
    "open_run": attnscope.open_run,
    "runs": attnscope.runs,
    "describe": describe,
    "export": lambda out: export(out, "csv"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", [Path("s3://bucket/run"), ""])
def test_another_place_is_rejected(verb, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttnscopeError, match=r"is a URL|is ''; expected the name of a folder|not an encoder-decoder"):
        VERBS[verb](place)
    assert not [*tmp_path.iterdir()]


# --- files that a user names are written as the user would have it ---


def test_a_device_stays_a_device():
    write_output(os_null := __import__("pathlib").Path(os.devnull), "lost")
    assert stat.S_ISCHR(os_null.stat().st_mode)


def test_a_link_stays_a_link_and_permissions_stay(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write_output(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    (tmp_path / "second name").hardlink_to(real)
    write_output(real, "newer")
    assert (tmp_path / "second name").read_text() == "newer"


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AttnscopeError, match="no space left on device"), explained("write", "Nothing is lost"):
        write_output(file, "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("lacking", ["fsync of folders", "opening folders", "chmod", "flock"])
def test_a_file_system_that_lacks_something_is_noted_once(lacking, tmp_path, monkeypatch, caplog):
    """As exFAT and SMB: results are written all the same."""
    monkeypatch.setattr(_files, "_noted", [])
    fsync, opening = os.fsync, os.open

    def of_files(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    def not_folders(path, *more):
        if Path(path).is_dir():
            raise OSError(errno.EACCES, "Permission denied")
        return opening(path, *more)

    def refused(*_, **__):
        raise OSError(errno.ENOTSUP if lacking == "flock" else errno.EPERM, "Operation not permitted")

    match lacking:
        case "fsync of folders":
            monkeypatch.setattr(os, "fsync", of_files)
        case "opening folders":
            monkeypatch.setattr(os, "open", not_folders)
        case "chmod":
            monkeypatch.setattr(Path, "chmod", refused)
        case _:
            monkeypatch.setattr(_lock.fcntl, "flock", refused)
    with caplog.at_level(logging.WARNING), OwnedFolder(tmp_path / "run", "scan") as folder:
        folder.write({"note.txt": b"whole", "deep/note.txt": lambda path: path.write_bytes(b"whole")})
        folder.write({}, complete=True)
    assert OwnedFolder(tmp_path / "run", "scan").look().damaged() == []
    assert len(caplog.records) == 1
