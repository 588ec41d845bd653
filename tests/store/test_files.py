"""Files that a user names are written as the user would have it."""

import os
import stat

import pytest

from attnscope import AttnscopeError
from attnscope.store import explained, write_output


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


def test_a_second_name_of_the_file_keeps_naming_it(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("old")
    two.hardlink_to(one)
    write_output(one, "new")
    assert two.read_text() == "new"


def test_a_new_file_is_for_those_for_whom_new_files_are(tmp_path):
    usual = tmp_path / "usual"
    usual.touch()
    write_output(tmp_path / "ours", "text")
    assert (tmp_path / "ours").stat().st_mode == usual.stat().st_mode


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(AttnscopeError, match="no space left on device"),
        explained("write", "Nothing is lost"),
    ):
        write_output(file, "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
