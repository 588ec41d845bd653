"""The log of a training: JSON Lines, and TensorBoard's files if they are wanted."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.store import OwnedFolder, damage, explained, manifest_of

LOG = "log.jsonl"
_SAFE = "The checkpoints are whole: make room and give the same command again"


class Log:
    """One JSON object a line, each with its ``update``.

    Parameters
    ----------
    folder
        Folder of the training. What the log in it tells of updates after `update` was lost with the process that made
        them, and is taken off; so is the end of a training that goes on.
    update
        Update of the checkpoint from which the training goes on; 0 for a new one.
    tensorboard
        Whether to write TensorBoard's files too.

    Raises
    ------
    AttnscopeError
        If TensorBoard is wanted and not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, OwnedFolder(Path(place), "train") as folder:
    ...     log = Log(folder)
    ...     log.write(10, loss=1.5)
    ...     log.close()
    ...     read_log(Path(place))
    [{'update': 10, 'loss': 1.5}]
    """

    def __init__(self, folder: OwnedFolder, update: int = 0, *, tensorboard: bool = False) -> None:
        before = read_log(folder.path) if update and LOG in folder.files else []
        kept = [line for line in before if line["update"] <= update and "chosen" not in line]
        with explained(f"write {folder.path / LOG}", _SAFE):
            folder.write({LOG: "".join(json.dumps(line) + "\n" for line in kept).encode()}, growing=[LOG])
            self._file = (folder.path / LOG).open("a", encoding="utf-8")
        self._board: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise AttnscopeError(
                    "tensorboard is not installed: pip install 'attnscope[tensorboard]'"
                ) from None
            self._board = SummaryWriter(folder.path / "tensorboard", purge_step=update + 1)

    def write(self, update: int, **values: Any) -> None:
        """Add a line."""
        with explained(f"write {self._file.name}", _SAFE):
            self._file.write(json.dumps({"update": update, **values}) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, update)

    def close(self) -> None:
        """Write out what is held back."""
        with suppress(OSError):  # every line is written out already, or was told of
            self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Lines of a training's log; a last line that is not whole is passed over.

    Raises
    ------
    AttnscopeError
        If the log is not what the training wrote.

    Examples
    --------
    >>> read_log(Path("/nowhere"))
    []
    """
    path = folder / LOG
    known = manifest_of(folder)
    if known is not None:
        owned = OwnedFolder(folder, known.command).look()
        if owned.damaged(owned.files.keys() & {LOG}):
            raise damage(path)
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:  # the process was killed while it wrote
            break
    return lines
