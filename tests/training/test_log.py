"""The log of a training is read while another process goes on with it."""

import pytest

from attnscope import AttnscopeError
from attnscope.lineage import checkpoints as _log
from attnscope.lineage.checkpoints import LOG, Log, read_log
from attnscope.store.folder import OwnedFolder, manifest_of


def test_it_is_read_while_a_training_takes_lines_off_it(tmp_path, monkeypatch):
    place, seen = OwnedFolder._place, []

    def placed(folder, path, name):
        monkeypatch.setattr(_log, "manifest_of", lambda _: before)  # read in the moment before, the rest now
        seen.append(read_log(tmp_path))
        place(folder, path, name)
        seen.append(read_log(tmp_path))

    with OwnedFolder(tmp_path, "train") as folder:
        log = Log(folder)
        for update in (10, 20):
            log.write(update, loss=1.0)
        log.close()
        folder.write({}, growing=[LOG])
        before = manifest_of(tmp_path)
        monkeypatch.setattr(OwnedFolder, "_place", placed)
        Log(folder, 10).close()
    assert [[line["update"] for line in lines] for lines in seen] == [[10, 20], [10]]


def test_one_that_was_changed_is_refused(tmp_path):
    with OwnedFolder(tmp_path, "train") as folder:
        log = Log(folder)
        log.write(10, loss=1.0)
        folder.write({}, growing=[LOG])
        log.write(20, loss=0.5)
        log.close()
    path = tmp_path / LOG
    assert [line["update"] for line in read_log(tmp_path)] == [10, 20]
    path.write_text(path.read_text().replace("1.0", "2.0"))
    with pytest.raises(AttnscopeError, match="not what was written"):
        read_log(tmp_path)
