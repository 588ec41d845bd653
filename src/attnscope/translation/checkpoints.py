"""What a training needs to go on where it stopped: written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from attnscope.store import as_new_files, explained

_UNFINISHED = ".unfinished"


class Checkpoints:
    """Numbered folders within one, each with weights, the optimizer's moments and the state of the training.

    A folder is written under another name, flushed to the disk and then renamed, so that one that bears its number
    is whole, whatever happens.

    Parameters
    ----------
    folder
        Where they lie; made with the first.

    Examples
    --------
    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> kept, layer = Checkpoints(Path(place.name)), nn.Linear(2, 2)
    >>> kept.save(10, layer, torch.optim.Adam(layer.parameters()), {"epoch": 0})
    >>> kept.updates(), kept.load(10, layer, torch.optim.Adam(layer.parameters()))
    ([10], {'epoch': 0})
    >>> torch.equal(kept.mean_weights([10, 10])["bias"], layer.bias)
    True
    >>> place.cleanup()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def updates(self) -> list[int]:
        """Numbers of the whole checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        return sorted(int(one.name) for one in self.folder.iterdir() if one.name.isdecimal())

    def save(self, update: int, model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Write one.

        Raises
        ------
        AttnscopeError
            If the disk is full or cannot be written; the earlier ones stay as they are.
        """
        new = self.folder / f"{update:08d}{_UNFINISHED}"
        safe = "Those before it are whole: make room and give the same command again"
        try:
            with explained(f"write the checkpoint of update {update} to {self.folder}", safe):
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir(parents=True)
                save_file(weights_of(model), new / "model.safetensors")
                save_file(_moments(model, optimizer), new / "optimizer.safetensors")
                (new / "state.json").write_text(json.dumps(state), encoding="utf-8")
                for file in new.iterdir():
                    as_new_files(file)
                    _flush(file)
                _flush(new)
                new.rename(self.folder / f"{update:08d}")
                _flush(self.folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def load(self, update: int, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Bring model and optimizer to where they were, and return the state of the training."""
        place = self.folder / f"{update:08d}"
        moments = load_file(place / "optimizer.safetensors")
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, kept in load_file(place / "model.safetensors").items():
                named[name].copy_(kept)
        for name, parameter in named.items():
            parts = ("step", "exp_avg", "exp_avg_sq")
            if f"{name}/step" in moments:
                optimizer.state[parameter] = {
                    part: moments[f"{name}/{part}"].to(parameter.device if part != "step" else "cpu")
                    for part in parts
                }
        return json.loads((place / "state.json").read_text(encoding="utf-8"))

    def mean_weights(self, updates: list[int]) -> dict[str, Tensor]:
        """Mean of the weights of several checkpoints, summed in float64."""
        total: dict[str, Tensor] = {}
        for update in updates:
            for name, one in load_file(self.folder / f"{update:08d}" / "model.safetensors").items():
                total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + one.double()
        return {name: (one / len(updates)).float() for name, one in total.items()}

    def keep(self, updates: set[int]) -> None:
        """Remove all others, and what was never finished."""
        for one in self.folder.iterdir():
            if not one.name.isdecimal() or int(one.name) not in updates:
                shutil.rmtree(one, ignore_errors=True)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by name."""
    return {name: one.detach().cpu().contiguous() for name, one in model.named_parameters()}


def _moments(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{part}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
