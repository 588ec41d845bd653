"""Models, logs and checkpoints of a training."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attnscope.models.configs import EncoderConfig, TransformerConfig
from attnscope.models.transformer import EncoderForMaskedLM
from attnscope.report.signature import Signature
from attnscope.store.files import explained
from attnscope.store.folder import OwnedFolder, damage, manifest_of
from attnscope.support.checks import check_installed
from attnscope.support.errors import AttnscopeError
from attnscope_lineage.config import TrainConfig
from attnscope_lineage.models.configs import RecurrentConfig
from attnscope_lineage.models.recurrent import RecurrentForConditionalGeneration
from attnscope_lineage.models.transformer import TransformerForConditionalGeneration

_TRAINED = 16  # bytes of a parameter in training: itself, its gradient and Adam's two moments


def check_model(config: TrainConfig, vocabulary: int) -> None:
    """Reject settings of a model that cannot be built or trained here, without building it."""
    both = 2 * config.encoder_width
    if config.model == "recurrent" and config.attention == "dot" and config.decoder_width != both:
        raise AttnscopeError(
            f"dot-product attention needs decoder_width = 2 × encoder_width, found {config.decoder_width} and "
            f"{config.encoder_width}: set decoder_width to {both}, or use bilinear or additive attention"
        )
    with torch.device("meta"):  # its sizes alone
        parameters = sum(parameter.numel() for parameter in build_model(config, vocabulary).parameters())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = parameters * _TRAINED
    if needed > memory:
        raise AttnscopeError(
            f"training a model of {parameters:,} parameters needs {needed / 1e9:,.0f} GB; "
            f"this machine has {memory / 1e9:,.0f} GB: use smaller widths, fewer layers or a smaller vocabulary"
        )


def build_model(config: TrainConfig, vocabulary: int, **special_ids: int) -> Any:
    """A model of these settings, with random weights; `special_ids` are those of `special_ids_of`."""

    def sizes(*names: str) -> dict[str, Any]:
        return {"vocab_size": vocabulary, **special_ids, **{name: getattr(config, name) for name in names}}

    if config.model == "recurrent":
        widths = "embedding_width", "encoder_width", "decoder_width"
        return RecurrentForConditionalGeneration(RecurrentConfig(**sizes(*widths, "cell", "attention", "dropout")))
    of_transformer: dict[str, Any] = sizes("width", "heads", "feed_forward", "positions", "norm", "dropout") | {
        "encoder_layers": config.layers, "decoder_layers": config.layers, "max_position_embeddings": config.longest
    }  # fmt: skip
    if config.model == "masked-lm":
        return EncoderForMaskedLM(EncoderConfig(**of_transformer))
    return TransformerForConditionalGeneration(TransformerConfig(**of_transformer))


def special_ids_of(tokenizer: Any) -> dict[str, int]:
    """The numbers of the tokens that a model pads with, begins with and ends with."""
    first = tokenizer.bos_token_id
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": first, "eos_token_id": tokenizer.eos_token_id}
    return {**ids, "decoder_start_token_id": first}


def begin_with(model: nn.Module, folder: Path) -> str:
    """Copy the weights of a training or of a checkpoint into a model of the same sizes; returns their hash."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise AttnscopeError(
            f"{folder} has no {WEIGHTS}; expected the folder of a finished training, or a checkpoint such as "
            f"{folder / _PLACE}00001000"
        )
    with explained(f"read {file}", "Train it again"):
        weights, digest = load_file(file), hashlib.sha256(file.read_bytes()).hexdigest()
    named = dict(model.named_parameters())
    for name in sorted({*weights, *named}):
        sizes = [tuple(part[name].shape) if name in part else "missing" for part in (weights, named)]
        if sizes[0] != sizes[1]:
            raise AttnscopeError(
                f"{file} does not fit the model: {name} is {sizes[0]} there and {sizes[1]} here: use the settings "
                "(--model, widths, layers, vocabulary) of that training"
            )
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weights[name])
    return digest


METRICS = {
    "loss": ("loss on the validation text", "nats per token"),
    "bleu": ("BLEU of greedy translations of the validation text", "points"),
    "alignment_error_rate": ("alignment error rate of the best head on the generated task", "share"),
    "alignment_error_rate_lower": ("lower end of its 95% interval over sentence pairs", "share"),
    "alignment_error_rate_upper": ("upper end of its 95% interval over sentence pairs", "share"),
    "alignment_diagonal": ("alignment error rate of the diagonal", "share"),
    "alignment_chance": ("mean alignment error rate of links to random words", "share"),
    "alignment_chance_level": ("alignment error rate below which random links fall in 1 of 100 cases", "share"),
}
_LOGGED = {
    "loss": ("training_loss", "loss since the previous entry, with smoothed targets and R-Drop", "nats per token"),
    "learning_rate": ("learning_rate", "learning rate", "1"),
    "tokens_per_second": ("tokens_per_second", "target tokens per second", "tokens/s"),
    "epoch": ("epoch", "epoch, from 0", "1"),
    "tokens": ("tokens", "target tokens seen", "tokens"),
    "seconds": ("seconds", "seconds of training", "s"),
}
_VALIDATED = {f"valid_{name}": (f"validation_{name}", *METRICS[name]) for name in ("loss", "bleu")}


def training_results(folder: OwnedFolder) -> xr.Dataset:
    """The result of `train`, from the folder of a finished training."""
    log = read_log(folder.path)
    metrics: dict[str, float] = folder.state["metrics"]
    dataset = xr.Dataset(
        {name: ((), value, _attributes(*METRICS[name])) for name, value in metrics.items()}
        | _curves(log, "training", _LOGGED)
        | _curves(log, "validation", _VALIDATED)
    )
    signature = Signature.of(folder.state["signature"])
    notes = {name: line[name] for line in log for name in ("chosen", "left_out") if name in line}
    dataset.attrs = {"signature": signature.to_json(), "model": signature.name} | {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in notes.items()
    }
    dataset.encoding["source"] = str(folder.path)
    return dataset


def _curves(log: list[dict[str, Any]], column: str, of: dict[str, tuple[str, str, str]]) -> dict[str, Any]:
    """Lines of the log as variables over their updates; `of` has the name of each, its long name and its units."""
    dim = f"{column}_update"
    lines = [line for line in log if next(iter(of)) in line]
    curves: dict[str, Any] = {
        name: (dim, np.array([line[key] for line in lines]), _attributes(long_name, units))
        for key, (name, long_name, units) in of.items()
        if column == "training" or (lines and key in lines[0])  # a masked language model has no BLEU
    }
    return curves | {dim: (dim, np.array([line["update"] for line in lines], dtype=np.int64))}


def _attributes(long_name: str, units: str) -> dict[str, str]:
    return {"long_name": long_name, "units": units}


LOG = "log.jsonl"
_SAFE = "The checkpoints are complete: free some disk space and repeat the command"


class Log:
    """One JSON object a line, each with its ``update``."""

    def __init__(self, folder: OwnedFolder, update: int = 0, *, tensorboard: bool = False) -> None:
        before = read_log(folder.path) if update and LOG in folder.files else []
        lines = [line for line in before if line["update"] <= update and "chosen" not in line]
        with explained(f"write {folder.path / LOG}", _SAFE):
            folder.write({LOG: "".join(json.dumps(line) + "\n" for line in lines).encode()}, growing=[LOG])
            self._file = (folder.path / LOG).open("a", encoding="utf-8")
        self._board: Any = None
        if tensorboard:
            check_installed("--tensorboard", "tensorboard", "tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(folder.path / "tensorboard", purge_step=update + 1)

    def write(self, update: int, **values: Any) -> None:
        with explained(f"write {self._file.name}", _SAFE):
            self._file.write(json.dumps({"update": update, **values}) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._board.add_scalar(name, value, update)

    def close(self) -> None:
        """Write out what is held back."""
        with suppress(OSError):  # every line is already written, or its error was reported
            self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Lines of a training log; an incomplete last line is skipped."""
    path = folder / LOG
    manifest = manifest_of(folder)
    if manifest is not None:
        owned = OwnedFolder(folder, manifest.command).look()
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


#: What an optimizer remembers of each parameter, by name.
Moments: TypeAlias = "MutableMapping[Tensor, dict[str, Tensor]]"
_PLACE = "checkpoints/"
WEIGHTS = "model.safetensors"
_log = logging.getLogger("attnscope")


class Checkpoints:
    """Checkpoints of a training: weights, the optimizer's moments and the state of the training."""

    def __init__(self, folder: OwnedFolder) -> None:
        self.folder = folder

    def updates(self) -> list[int]:
        """Numbers of the complete checkpoints, ascending."""
        return sorted({_update(name) for name in self.folder.files if name.startswith(_PLACE)})

    def save(self, update: int, model: nn.Module, moments: Moments, state: dict[str, Any], keep: Iterable[int]) -> None:
        """Write a checkpoint and remove the outdated ones in one step."""
        prefix = f"{_PLACE}{update:08d}/"
        stay = {update, *keep}
        gone = [name for name in self.folder.files if name.startswith(_PLACE) and _update(name) not in stay]
        safe = "Earlier checkpoints are complete: free some disk space and repeat the command"
        named = dict(model.named_parameters())
        weights = {name: parameter.detach().cpu().contiguous() for name, parameter in named.items()}
        stored = {
            f"{name}/{part}": value.detach().cpu().contiguous()
            for name, parameter in named.items()
            for part, value in moments.get(parameter, {}).items()
        }
        with explained(f"write the checkpoint of update {update} to {self.folder.path}", safe):
            self.folder.write(
                {
                    f"{prefix}{WEIGHTS}": partial(save_file, weights),
                    f"{prefix}optimizer.safetensors": partial(save_file, stored),
                    f"{prefix}state.json": json.dumps(state).encode(),
                },
                remove=gone,
                growing=[LOG],
            )

    def drop_damaged(self, damaged: Iterable[str]) -> None:
        """Discard every checkpoint with a damaged file."""
        broken = {_update(name) for name in damaged if name.startswith(_PLACE)}
        if not broken:
            return
        self.folder.forget([name for name in self.folder.files if name.startswith(_PLACE) and _update(name) in broken])
        whole = self.updates()
        after = f"update {whole[-1]}" if whole else "the beginning"
        message = "the checkpoint of update %s in %s is damaged: training resumes from %s"
        for update in sorted(broken):
            _log.warning(message, update, self.folder.path, after)

    def load(self, update: int, model: nn.Module, moments: Moments) -> dict[str, Any]:
        """Restore weights and moments, and return the state of the training."""
        folder = self.folder.path / f"{_PLACE}{update:08d}"
        named = dict(model.named_parameters())
        with torch.no_grad():
            for name, weights in load_file(folder / WEIGHTS).items():
                named[name].copy_(weights)
        for key, stored in load_file(folder / "optimizer.safetensors").items():
            name, _, part = key.rpartition("/")
            moments.setdefault(named[name], {})[part] = stored.to(named[name].device)
        return json.loads((folder / "state.json").read_text(encoding="utf-8"))

    def mean_weights(self, updates: list[int]) -> dict[str, Tensor]:
        """Mean of the weights of several checkpoints, summed in float64."""
        total: dict[str, Tensor] = {}
        for update in updates:
            for name, tensor in load_file(self.folder.path / f"{_PLACE}{update:08d}" / WEIGHTS).items():
                total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
        return {name: (tensor / len(updates)).float() for name, tensor in total.items()}


def _update(name: str) -> int:
    return int(name.removeprefix(_PLACE).partition("/")[0])
