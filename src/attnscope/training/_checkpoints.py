"""What a training needs to go on where it stopped: written whole or not at all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, MutableMapping
from functools import partial
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attnscope.store import OwnedFolder, explained

#: What an optimizer remembers of each parameter, by name.
Moments: TypeAlias = "MutableMapping[Tensor, dict[str, Tensor]]"
_PLACE = "checkpoints/"
_log = logging.getLogger("attnscope")


class Checkpoints:
    """Checkpoints of a training: weights, the optimizer's moments and the state of the training.

    Parameters
    ----------
    folder
        Folder of the training.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> place = tempfile.TemporaryDirectory()
    >>> folder = OwnedFolder(Path(place.name), "train")
    >>> with folder:
    ...     kept, layer = Checkpoints(folder), nn.Linear(2, 2)
    ...     kept.save(10, layer, moments={}, state={"epoch": 0})
    >>> kept.updates(), kept.load(10, layer, moments={})
    ([10], {'epoch': 0})
    >>> torch.equal(kept.mean_weights([10, 10])["bias"], layer.bias)
    True
    >>> place.cleanup()
    """

    def __init__(self, folder: OwnedFolder) -> None:
        self.folder = folder

    def updates(self) -> list[int]:
        """Numbers of the whole checkpoints, ascending."""
        return sorted({_update(name) for name in self.folder.files if name.startswith(_PLACE)})

    def save(
        self,
        update: int,
        model: nn.Module,
        moments: Moments,
        state: dict[str, Any],
        *,
        keep: Iterable[int] | None = None,
        growing: Iterable[str] = (),
    ) -> None:
        """Write one, and in the same moment remove all others but those to keep.

        Parameters
        ----------
        update, model, moments, state
            What is written.
        keep
            Updates of the checkpoints that stay beside it; all by default.
        growing
            See `OwnedFolder.write`.

        Raises
        ------
        AttnscopeError
            If the disk is full or cannot be written; the earlier ones stay as they are.
        """
        place = f"{_PLACE}{update:08d}/"
        stay = {update, *(self.updates() if keep is None else keep)}
        gone = [name for name in self.folder.files if name.startswith(_PLACE) and _update(name) not in stay]
        safe = "Those before it are whole: make room and give the same command again"
        with explained(f"write the checkpoint of update {update} to {self.folder.path}", safe):
            self.folder.write(
                {
                    f"{place}model.safetensors": partial(save_file, weights_of(model)),
                    f"{place}optimizer.safetensors": partial(save_file, _named(model, moments)),
                    f"{place}state.json": json.dumps(state).encode(),
                },
                remove=gone,
                growing=growing,
            )

    def drop_damaged(self, damaged: Iterable[str]) -> None:
        """Give up every checkpoint of which a file is not what was written."""
        broken = {_update(name) for name in damaged if name.startswith(_PLACE)}
        if not broken:
            return
        whole = [update for update in self.updates() if update not in broken]
        gone = [name for name in self.folder.files if name.startswith(_PLACE) and _update(name) in broken]
        self.folder.forget(gone)
        after = f"update {whole[-1]}" if whole else "the beginning"
        for update in sorted(broken):
            _log.warning(
                "the checkpoint of update %s in %s is damaged: the training goes on from %s",
                update,
                self.folder.path,
                after,
            )

    def load(self, update: int, model: nn.Module, moments: Moments) -> dict[str, Any]:
        """Bring weights and moments to where they were, and return the state of the training."""
        place = self.folder.path / f"{_PLACE}{update:08d}"
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, kept in load_file(place / "model.safetensors").items():
                named[name].copy_(kept)
        for key, kept in load_file(place / "optimizer.safetensors").items():
            name, _, part = key.rpartition("/")
            moments.setdefault(named[name], {})[part] = kept.to(named[name].device)
        return json.loads((place / "state.json").read_text(encoding="utf-8"))

    def mean_weights(self, updates: list[int]) -> dict[str, Tensor]:
        """Mean of the weights of several checkpoints, summed in float64."""
        total: dict[str, Tensor] = {}
        for update in updates:
            place = self.folder.path / f"{_PLACE}{update:08d}"
            for name, tensor in load_file(place / "model.safetensors").items():
                total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
        return {name: (tensor / len(updates)).float() for name, tensor in total.items()}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by name."""
    return {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}


def _named(model: nn.Module, moments: Moments) -> dict[str, Tensor]:
    return {
        f"{name}/{part}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for part, value in moments.get(parameter, {}).items()
    }


def _update(name: str) -> int:
    """The update of a checkpoint's file."""
    return int(name.removeprefix(_PLACE).partition("/")[0])
