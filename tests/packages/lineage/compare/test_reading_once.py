"""A training reads its texts once, and all of its processes the same."""

import os
import threading
from dataclasses import dataclass

import pytest

from attnscope.store.folder import OwnedFolder
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.config import TrainConfig
from attnscope_lineage.training import Processes, Training

SMALL = {"vocabulary": 300, "width": 8, "heads": 2, "feed_forward": 8, "layers": 1, "device": "cpu"}
LINES = [f"{i} a b c" for i in range(60)]


@dataclass(frozen=True)
class WithAnother(Processes):
    """This process beside another, which has read something else."""

    world: int = 2
    difference: int = 0

    def sum(self, values):
        return 2 * values + self.difference

    def wait(self):
        pass


def test_a_text_that_can_be_read_only_once_is_enough(tmp_path):
    """As `--text <(zcat text.gz)` gives it."""
    sides = [tmp_path / "source", tmp_path / "target"]
    writers = []
    for side in sides:
        os.mkfifo(side)
        writers.append(threading.Thread(target=side.write_text, args=("\n".join(LINES),)))
        writers[-1].start()
    config = TrainConfig(model="transformer", source=sides[0], target=sides[1], **SMALL)
    with OwnedFolder(tmp_path / "model", "train") as folder:
        training = Training(config, folder, Processes())
        training.log.close()
    assert len(training.data.train.source) + len(training.data.valid) == len(LINES)
    for writer in writers:
        writer.join()


@pytest.mark.parametrize("difference", [0, 1])
def test_processes_that_read_different_texts_do_not_train(tmp_path, difference):
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(LINES))
    config = TrainConfig(source=tmp_path / "source", target=tmp_path / "target", **SMALL)
    group = WithAnother(difference=difference)
    with OwnedFolder(tmp_path / "model", "train") as folder:
        if not difference:
            Training(config, folder, group).log.close()
            return
        with pytest.raises(AttnscopeError, match="the texts changed during reading"):
            Training(config, folder, group)
